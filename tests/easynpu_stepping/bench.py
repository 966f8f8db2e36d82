"""A machine on the test bench: words and weights in, memories with chosen contents, counts and signals out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import Instruction, Layer, words_to_bytes
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.program.artefact import ImageLoad, Segment
from npuc.targets.easynpu.simulate.events import LayerCount
from npuc.targets.easynpu.simulate.hardware import Hardware
from npuc.targets.easynpu.simulate.stepping import Stepper
from npuc.targets.easynpu.simulate.trace import Tracer

CONV, CONV_RELU, DWCONV, BN, RELU, MAXPOOL, ADD = 0x00, 0x04, 0x01, 0x02, 0x06, 0x0E, 0x16
FUSED, STORED = 0x20, 0x40


@dataclass
class Bench:
    """What is left after a run."""

    hardware: Hardware
    layers: list[LayerCount]
    results: list[Array]
    before: Array
    """The Fmap DTCM before the run."""
    vcd: str


def run(
    words: Sequence[Instruction],
    stream: Array | None = None,
    machine: Machine | None = None,
    *,
    seed: int = 0,
    filled: bool = True,
) -> Bench:
    """Runs the words; both map memories hold noise, unless they are not filled."""
    machine = machine or Machine(fmap_words=600, skip_words=600)
    random = np.random.default_rng(seed)
    if stream is None:
        stream = np.zeros((machine.weight_words, 16), np.int8)
    files = {"itcm.bin": words_to_bytes(words), "weight.bin": stream.astype(np.int8).tobytes()}
    signals = StringIO()
    stepper = Stepper(machine, files)
    stepper.watcher = tracer = Tracer(signals, machine)
    hardware = stepper.state(1)
    for dtcm in (hardware.fmap, hardware.skip):
        dtcm.values[...] = random.integers(-128, 128, dtcm.values.shape)
        dtcm.written[...] = filled
    before = hardware.fmap.values.copy()
    images = (
        ImageLoad("itcm", 0, "itcm.bin", 0, len(words)),
        ImageLoad("weight", 0, "weight.bin", 0, len(stream)),
    )
    results: list[Array] = []
    try:
        stepper.run(Segment(images, (), len(words), ()), hardware, {}, lambda _, values: results.append(values[0]))
    finally:
        tracer.close()
    return Bench(hardware, stepper.layers, results, before, signals.getvalue())


def layer(
    opcode: int, size: tuple[int, int], kernel: int, pad: int, Ci: int, Co: int, tile: tuple[int, int]
) -> Layer:
    """A layer with stride 1, a square kernel and this padding before and after."""
    Ho, Wo = (extent + 2 * pad - kernel + 1 for extent in size)
    return Layer(
        opcode=opcode, Ph=pad, Pw=pad, Hk=kernel, Wk=kernel, Hi=size[0], Wi=size[1], Ci=Ci, Ho=Ho, Wo=Wo, Co=Co,
        Zs=-(-Co // 16), y=tile[0], x=tile[1], yi=tile[0] + kernel - 1, xi=tile[1] + kernel - 1,
    )  # fmt: skip
