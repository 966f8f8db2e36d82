"""Register programs that npuc writes, against programs that ran on NVDLA's RTL: same operation, same result."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.ir import Array
from npuc.targets.nvdla.arithmetic.integer import IDLE, SdpStage
from npuc.targets.nvdla.emission import program
from npuc.targets.nvdla.machine.parameters import FULL, SMALL
from npuc.targets.nvdla.machine.registers import Write, register_map
from npuc.targets.nvdla.model import DeviceMemory, run
from npuc.targets.nvdla.operations.operation import (
    Banks,
    Convolution,
    Elementwise,
    Fetch,
    Kernels,
    KernelWindow,
    Operation,
    Pooling,
    Sdp,
    Surface,
    Unit,
)
from tests.given import GIVEN

VECTORS = GIVEN / "nvdla" / "vectors"
pytestmark = pytest.mark.skipif(not VECTORS.exists(), reason="NVDLA's own programs are not here")
DATA, WEIGHTS, OPERAND, RESULT = 0x80000000, 0x80100000, 0x80200000, 0x80300000
NOTHING = Unit(IDLE)
BIAS = Unit(SdpStage(alu=1, relu=1), fetch=Fetch("ALU", 2, OPERAND))

OPERATIONS: dict[str, Operation] = {
    "small_conv_per_channel_scale": Convolution(Surface(DATA, 7, 9, 19, 56, 504),
        Kernels(WEIGHTS, 3712, 21, 3, 3, 19, 171), KernelWindow(1, 1, 1, 1, 1, 1, 1, 1), Banks(21, 1, 1),
        Sdp(Unit(SdpStage(alu=1, multiply=1, shift=6), fetch=Fetch("BOTH", 2, OPERAND)), NOTHING, (0, 0x4D, 4)),
        Surface(RESULT, 7, 9, 21, 56, 504)),
    "small_add_bn_int8": Elementwise(Surface(DATA, 5, 6, 20, 40, 240),
        Sdp(NOTHING, Unit(SdpStage(alu=1), fetch=Fetch("ALU", 1, WEIGHTS, True, 40, 240)), (0, 0x5B, 7)),
        Surface(RESULT, 5, 6, 20, 40, 240)),
    "small_maxpool_3x3_s2": Pooling(Surface(DATA, 11, 9, 12, 88, 792), "MAX", (3, 3),
        KernelWindow(2, 2, 1, 1, 1, 1, 1, 1), (0x5555, 0x5555), Surface(RESULT, 6, 5, 12, 48, 240)),
    "small_avgpool_7x7": Pooling(Surface(DATA, 11, 9, 12, 88, 792), "AVERAGE", (7, 7),
        KernelWindow(1, 1, 1, 1, 0, 0, 0, 0), (0x2492, 0x2492), Surface(RESULT, 5, 3, 12, 40, 120)),
}  # fmt: skip
TRUNCATED = ("CACC.D_CLIP_CFG",)
"""The RTL's programs truncate sums before SDP; npuc leaves that to SDP."""


def _vector(name: str) -> dict[str, Array]:
    with np.load(VECTORS / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_register_that_the_rtls_program_sets_has_the_same_value(name: str) -> None:
    known = register_map("nv_small")
    written = {each.address: each.value for each in program(SMALL, [OPERATIONS[name]]) if isinstance(each, Write)}
    for address, value in _vector(name)["registers"].tolist():
        register = known.register_at(address)
        if register.title in TRUNCATED or register.block == "GLB" or register.title.endswith("_CFG"):
            continue  # interrupts are the driver's affair; switches are compared by what they do, below
        assert written.get(address, register.reset) == value, known.text(address, value)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if "conv" not in name])
def test_the_program_gives_the_bytes_that_the_rtl_gave(name: str) -> None:
    vector = _vector(name)
    spans = [(int(at), vector[f"memory_{number}"]) for number, at in enumerate(vector["memory_addresses"])]
    memory = run(SMALL, program(SMALL, [OPERATIONS[name]]), DeviceMemory(spans))
    found = memory.read(int(vector["expected_address"]), vector["expected"].size)
    assert found == vector["expected"].tobytes()


def test_sizes_and_addresses_of_nv_full_are_written_in_bytes() -> None:
    known = register_map("nv_full")
    surface = Surface(0x80000040, 4, 4, 32, 128, 512)
    commands = program(FULL, [Elementwise(surface, Sdp(NOTHING, NOTHING), surface)])
    written = {each.address: each.value for each in commands if isinstance(each, Write)}
    address = known["SDP_RDMA.D_SRC_BASE_ADDR_LOW"]
    assert written[address.address] == 0x80000040
    assert address.decode(written[address.address]).SRC_BASE_ADDR_LOW == 0x80000040 >> 5


def test_groups_of_registers_take_turns_and_each_operation_is_waited_for() -> None:
    operations = [OPERATIONS["small_maxpool_3x3_s2"]] * 2
    texts = [str(each) for each in program(SMALL, operations) if not isinstance(each, Write)]
    assert texts[1:] == ["PDP_0", "PDP_1"]


def _apart(number: int) -> Pooling:
    """A pooling of maps of its own."""
    at = number * 0x10000
    source, result = Surface(DATA + at, 4, 4, 8, 32, 128), Surface(RESULT + at, 2, 2, 8, 16, 32)
    return Pooling(source, "MAX", (2, 2), KernelWindow(2, 2, 1, 1, 0, 0, 0, 0), (1, 1), result)


def _waits(operations: list[Operation]) -> list[str]:
    """Enables of PDP and waits, in order."""
    enable = register_map("nv_small")["PDP.D_OP_ENABLE"].address
    found: list[str] = []
    for each in program(SMALL, operations):
        if not isinstance(each, Write):
            found.append(str(each))
        elif each.address == enable:
            found.append("enable")
    return found[1:]


def test_an_operation_is_programmed_while_the_one_before_runs_if_they_share_nothing() -> None:
    found = _waits([_apart(0), _apart(1), _apart(2)])
    assert found == ["enable", "enable", "PDP_0", "enable", "PDP_1", "PDP_0"]


def test_an_operation_that_reads_what_another_writes_waits_for_it() -> None:
    first = _apart(0)
    second = Pooling(first.destination, "MAX", (2, 2), first.window, (1, 1), Surface(OPERAND, 1, 1, 8, 8, 8))
    assert _waits([first, second]) == ["enable", "PDP_0", "enable", "PDP_1"]


def test_an_operation_that_writes_what_another_reads_waits_for_it() -> None:
    first = _apart(0)
    second = Pooling(_apart(1).source, "MAX", (2, 2), first.window, (1, 1), Surface(DATA + 64, 2, 2, 8, 16, 32))
    assert _waits([first, second]) == ["enable", "PDP_0", "enable", "PDP_1"]
