"""The self-test of an OKKernel export: memory regions of stored samples, and a program that compares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from npuc.host.c_text import FOLDER, comparing, network_name
from npuc.ir import Array
from npuc.program import Program
from npuc.targets.bm1684.export.sdk import build_files
from npuc.targets.bm1684.program.artefact import WEIGHTS_FILE, KernelPort, MemoryRegion, to_words
from npuc.targets.bm1684.simulate.running import Runner

ROOM = 1e-4
"""Tolerance relative to the largest magnitude of an fp32 output: the chip may add in another order."""
MAKE = """
# Stored samples on the device, compared with what npuc simulated: make check
npuc_compare: npuc_compare.c
\t$(CC) -std=c99 -Wall -Wextra -Werror -O2 -o $@ $< -lm

check: {name}_launch npuc_compare
{commands}

.PHONY: check
"""


class _RegionRecorder(Runner):
    """A runner that keeps the input and output regions of every sample, as the launcher reads and writes them."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, "own")
        self.given: list[list[bytes]] = []
        self.wanted: list[list[bytes]] = []

    def _fill(self, memory: Array, feed: Mapping[str, Array]) -> None:
        super()._fill(memory, feed)
        self.given.append(self._held(memory, "input"))

    def _results(self, memory: Array) -> dict[str, Array]:
        self.wanted.append(self._held(memory, "output"))
        return super()._results(memory)

    def _held(self, memory: Array, direction: str) -> list[bytes]:
        """The bytes of the input or output regions."""
        starts = [(self.starts[region.name], region.bytes) for region, _ in self.placed(direction)]
        return [memory[start : start + size].tobytes() for start, size in starts]

    def placed(self, direction: str) -> list[tuple[MemoryRegion, KernelPort]]:
        """The input or output regions in the launcher's order, each with its first placement."""
        places = {each.region: each for each in reversed(self.contents.placements) if each.direction == direction}
        return [(each, places[each.name]) for each in self.contents.regions if each.name in places]


def files(program: Program, inputs: Mapping[str, Array]) -> dict[str, bytes]:
    """Input and output regions by sample, npuc_compare.c, and a Makefile with `make check`.

    inputs: (samples, *shape) by name. Expected outputs come from npuc's chip model, which executes the call table
    on system memory.
    """
    recorder = _RegionRecorder(program)
    recorder(inputs)
    made: dict[str, bytes] = {}
    for role, samples in (("input", recorder.given), ("output", recorder.wanted)):
        for sample, regions in enumerate(samples):
            made |= {f"{FOLDER}/{sample}/{role}_{number}.bin": data for number, data in enumerate(regions)}
    for number, (region, place) in enumerate(recorder.placed("output")):
        if place.dtype != "float32":
            made[f"{FOLDER}/mask_{number}.bin"] = _mask(region, place)
    kernel = network_name(program.manifest)
    commands = "\n".join(
        f"\t{line}"
        for sample in range(len(recorder.given))
        for line in _commands(kernel, f"{FOLDER}/{sample}", recorder)
    )
    makefile = build_files(kernel)["Makefile"].decode() + MAKE.format(name=kernel, commands=commands)
    return {**made, **comparing(), "Makefile": makefile.encode()}


def _commands(kernel: str, folder: str, recorder: _RegionRecorder) -> Iterator[str]:
    """The commands that run a sample and compare its outputs."""
    inputs = [f"{folder}/input_{number}.bin" for number in range(len(recorder.placed("input")))]
    outputs = recorder.placed("output")
    found = [f"found_{number}.bin" for number in range(len(outputs))]
    yield " ".join([f"./{kernel}_launch", WEIGHTS_FILE, *inputs, *found])
    for number, (file, (_, place)) in enumerate(zip(found, outputs, strict=True)):
        kind = f"float32 {ROOM}" if place.dtype == "float32" else f"int8 0 {FOLDER}/mask_{number}.bin"
        yield f"./npuc_compare {file} {folder}/output_{number}.bin {kind}"


def _mask(region: MemoryRegion, place: KernelPort) -> bytes:
    """The mask of an output region: one byte per byte, 1 where it belongs to an image of the batch."""
    bits = np.zeros(region.bytes, np.uint8)
    bits[place.address : place.address + place.bytes] = to_words(np.ones(place.shape, np.int8), "int8")
    return bits.tobytes()
