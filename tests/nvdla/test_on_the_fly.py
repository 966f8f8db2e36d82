"""Convolution, SDP and PDP without memory between, and what an operation waits for while others run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.nvdla.arithmetic.integer import IDLE, SdpStage
from npuc.targets.nvdla.emission import program
from npuc.targets.nvdla.machine.parameters import SMALL
from npuc.targets.nvdla.machine.registers import Command, Write, register_map
from npuc.targets.nvdla.model import DeviceMemory, run
from npuc.targets.nvdla.operations.operation import (
    Banks,
    Convolution,
    Fetch,
    Kernels,
    KernelWindow,
    Operation,
    Pooling,
    Sdp,
    Surface,
    Unit,
)

DATA, WEIGHTS, OTHER, RESULT, END = 0x80000000, 0x80100000, 0x80200000, 0x80300000, 0x80400000
PLAIN = Sdp(Unit(IDLE), Unit(IDLE), (0, 1, 6))
ADDING = Sdp(
    Unit(IDLE), Unit(SdpStage(alu=1), fetch=Fetch("ALU", 1, OTHER, True, 64, 512, computed=True)), (0, 1, 6)
)
"""A map of 8x8 at OTHER is added."""


def _cube(address: int, size: int) -> Surface:
    """Eight channels."""
    return Surface(address, size, size, 8, 8 * size, 8 * size * size)


POOLING = Pooling(
    _cube(0, 8), "MAX", (2, 2), KernelWindow(2, 2, 1, 1, 0, 0, 0, 0), (1 << 16,) * 2, _cube(RESULT, 4)
)
CONVOLUTION = Convolution(
    _cube(DATA, 8), Kernels(WEIGHTS, 64, 8, 1, 1, 8, 8), KernelWindow(1, 1, 1, 1, 0, 0, 0, 0), Banks(8, 16, 16),
    PLAIN, _cube(OTHER, 8),
)  # fmt: skip


def _memory(seed: int = 0) -> DeviceMemory:
    draw = np.random.default_rng(seed).integers(-128, 128, 1 << 12, np.int8)
    regions: list[tuple[int, Array]] = [
        (each, np.zeros(1 << 12, np.uint8)) for each in (DATA, WEIGHTS, OTHER, RESULT, END)
    ]
    memory = DeviceMemory(regions)
    memory.write(DATA, draw.tobytes()[:512])
    memory.write(WEIGHTS, draw.tobytes()[512:576])
    return memory


def _order(operations: list[Operation]) -> list[str]:
    """Enables of SDP, CDMA and PDP, and waits, in order."""
    known = register_map("nv_small")
    enables = {known[f"{each}.D_OP_ENABLE"].address: each for each in ("SDP", "CDMA", "PDP")}
    found = (
        str(each) if not isinstance(each, Write) else enables.get(each.address, "")
        for each in program(SMALL, operations)[2:]
    )
    return [each for each in found if each]


def test_pooling_behind_sdp_gives_what_it_gives_from_memory() -> None:
    apart = [CONVOLUTION, replace(POOLING, source=CONVOLUTION.destination)]
    together = [replace(CONVOLUTION, pooling=POOLING)]
    expected, found = (run(SMALL, program(SMALL, each), _memory()) for each in (apart, together))
    assert found.read(RESULT, 128) == expected.read(RESULT, 128) != bytes(128)
    assert found.read(OTHER, 512) == bytes(512)


def test_both_interrupts_of_pooling_behind_sdp_are_waited_for() -> None:
    assert _order([replace(CONVOLUTION, pooling=POOLING)]) == ["PDP", "SDP", "CDMA", "SDP_0", "PDP_0"]


def test_what_pdp_may_still_write_is_not_there_when_sdp_has_ended() -> None:
    """Without the wait for PDP the next operation would read too early."""
    reading = replace(CONVOLUTION, source=_cube(RESULT, 4), destination=_cube(END, 4))
    commands = program(SMALL, [replace(CONVOLUTION, pooling=POOLING), reading])
    waits = [number for number, each in enumerate(commands) if str(each) == "PDP_0"]
    early: list[Command] = [each for number, each in enumerate(commands) if number not in waits]
    run(SMALL, commands, _memory())
    with pytest.raises(ArtefactError, match=r"reads at 0x80300000 what PDP may still write"):
        run(SMALL, early, _memory())


def test_the_input_is_fetched_before_the_operand_of_sdp_is_there() -> None:
    adding = replace(CONVOLUTION, sdp=ADDING, destination=_cube(RESULT, 8))
    assert _order([CONVOLUTION, adding]) == ["SDP", "CDMA", "CDMA", "SDP_0", "SDP", "SDP_1"]
    run(SMALL, program(SMALL, [CONVOLUTION, adding]), _memory())


def test_cdma_that_is_enabled_before_its_input_is_there_is_refused() -> None:
    following = replace(CONVOLUTION, source=CONVOLUTION.destination, destination=_cube(RESULT, 8))
    commands = program(SMALL, [CONVOLUTION, following])
    enable = register_map("nv_small")["CDMA.D_OP_ENABLE"].address
    number = max(at for at, each in enumerate(commands) if isinstance(each, Write) and each.address == enable)
    wait = next(at for at, each in enumerate(commands) if str(each) == "SDP_0")
    sdp = max(at for at, each in enumerate(commands) if isinstance(each, Write) and at > wait)
    assert wait < number <= sdp
    early = [*commands[:wait], commands[number], *commands[wait:number], *commands[number + 1 :]]
    with pytest.raises(ArtefactError, match=r"reads at 0x80200000 what SDP may still write"):
        run(SMALL, early, _memory())
