"""Compressed, Winograd and image weights as registers: as in programs of the RTL, and as the firmware has them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from npuc.targets.nvdla.arithmetic.integer import IDLE, SdpStage
from npuc.targets.nvdla.emission import program
from npuc.targets.nvdla.formats.weights import WeightForm
from npuc.targets.nvdla.machine.parameters import FULL, SMALL, Machine
from npuc.targets.nvdla.machine.registers import Write, register_map
from npuc.targets.nvdla.model import DeviceMemory, run
from npuc.targets.nvdla.operations.operation import (
    Banks,
    Convolution,
    Fetch,
    Kernels,
    KernelWindow,
    Mask,
    Sdp,
    Surface,
    Unit,
)
from tests.given import GIVEN

SHARED = GIVEN / "nvdla"
pytestmark = pytest.mark.skipif(not SHARED.exists(), reason="NVDLA's own programs are not here")
DATA, WEIGHTS, MASK, SIZES, OPERAND, RESULT = (
    0x80000000, 0x80100000, 0x80200000, 0x80280000, 0x802C0000, 0x80300000
)  # fmt: skip
SAME = KernelWindow(1, 1, 1, 1, 1, 1, 1, 1)
BIAS = Unit(SdpStage(alu=1, relu=1), fetch=Fetch("ALU", 2, OPERAND))
SDP = Sdp(BIAS, Unit(IDLE), (0, 1, 3))

OPERATIONS: dict[str, tuple[Machine, Convolution]] = {
    "full_direct_int8_sparse": (FULL, Convolution(Surface(DATA, 5, 5, 64, 160, 800),
        Kernels(WEIGHTS, 9088, 40, 3, 3, 64, 576, WeightForm(compressed=True), Mask(MASK, 2944, SIZES, 128)), SAME,
        Banks(3, 1, 1, 1), SDP, Surface(RESULT, 5, 5, 40, 160, 800))),
    "full_winograd_int8": (FULL, Convolution(Surface(DATA, 8, 8, 32, 256, 2048),
        Kernels(WEIGHTS, 16384, 32, 4, 4, 32, 512, WeightForm("winograd")), KernelWindow(1, 1, 1, 1, 1, 1, 3, 3),
        Banks(3, 1, 1), SDP, Surface(RESULT, 8, 8, 32, 256, 2048))),
    "small_image_A8B8G8R8": (SMALL, Convolution(Surface(DATA, 17, 11, 4, 96, 0, pixels="T_A8B8G8R8"),
        Kernels(WEIGHTS, 640, 16, 3, 1, 12, 36, WeightForm("image")), KernelWindow(1, 1, 1, 1, 0, 0, 0, 0),
        Banks(9, 1, 1), Sdp(Unit(IDLE), Unit(IDLE), (0, 1, 5)), Surface(RESULT, 15, 9, 16, 120, 1080))),
}  # fmt: skip
SWITCHES = ("_CFG", "_FORMAT", "CVT_OFFSET", "CLIP_TRUNCATE")
"""Ends of registers that hold how results are rounded: they are compared by what they do."""


def _written(machine: Machine, operation: Convolution) -> dict[int, int]:
    return {each.address: each.value for each in program(machine, [operation]) if isinstance(each, Write)}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_register_that_the_rtls_program_sets_has_the_same_value(name: str) -> None:
    machine, operation = OPERATIONS[name]
    known, written = register_map(machine.registers), _written(machine, operation)
    with np.load(SHARED / "vectors" / f"{name}.npz") as file:
        registers = file["registers"].tolist()
    compared = [
        (address, value)
        for address, value in registers
        if not known.register_at(address).title.endswith(SWITCHES) and known.register_at(address).block != "GLB"
    ]
    assert len(compared) > 50
    for address, value in compared:
        assert written.get(address, known.register_at(address).reset) == value, known.text(address, value)


def test_formats_and_modes_are_those_of_the_rtls_programs() -> None:
    for name, (machine, operation) in OPERATIONS.items():
        known, written = register_map(machine.registers), _written(machine, operation)
        with np.load(SHARED / "vectors" / f"{name}.npz") as file:
            registers = dict(file["registers"].tolist())
        for title, fields in (
            ("CDMA.D_MISC_CFG", ("CONV_MODE",)), ("CSC.D_MISC_CFG", ("CONV_MODE",)),
            ("CACC.D_MISC_CFG", ("CONV_MODE",)), ("CMAC_A.D_MISC_CFG", ("CONV_MODE",)),
            ("CDMA.D_DATAIN_FORMAT", ("DATAIN_FORMAT", "PIXEL_FORMAT", "PIXEL_MAPPING")),
            ("CSC.D_DATAIN_FORMAT", ("DATAIN_FORMAT",)), ("SDP.D_FEATURE_MODE_CFG", ("WINOGRAD",)),
            ("CDMA.D_WEIGHT_FORMAT", ("WEIGHT_FORMAT",)), ("CSC.D_WEIGHT_FORMAT", ("WEIGHT_FORMAT",)),
        ):  # fmt: skip
            register = known[title]
            if register.address not in registers:
                continue
            found, wanted = (register.decode(each[register.address]) for each in (written, registers))
            for field in fields:
                assert getattr(found, field) == getattr(wanted, field), (name, title, field)


def test_the_compressed_weights_of_the_rtls_program_give_its_bytes() -> None:
    """The RTL's program truncates sums by 5 before SDP: one register is written as there."""
    machine, operation = OPERATIONS["full_direct_int8_sparse"]
    truncate = register_map("nv_full")["CACC.D_CLIP_CFG"]
    commands = [
        Write(each.address, 5) if isinstance(each, Write) and each.address == truncate.address else each
        for each in program(machine, [operation])
    ]
    with np.load(SHARED / "vectors" / "full_direct_int8_sparse.npz") as file:
        spans = [(int(at), file[f"memory_{number}"]) for number, at in enumerate(file["memory_addresses"])]
        after = run(machine, commands, DeviceMemory(spans))
        assert after.read(int(file["expected_address"]), file["expected"].size) == file["expected"].tobytes()


def test_an_image_is_set_up_as_the_firmware_does_it_for_nvidias_own_loadable() -> None:
    """The first convolution of chain_small_int8: 3x3 with padding on 16x16 pixels, 40 kernels."""
    text = (SHARED / "loadables" / "chain_small_int8.registers.txt").read_text()
    first = text[: text.index("operation index 2")]
    known = register_map("nv_small")
    pattern = r"^((?:CDMA|CSC|CMAC_A|CMAC_B)_D_\w+) +([0-9a-f]{8})$"
    firmware = {name.replace("_D_", ".D_"): int(value, 16) for name, value in re.findall(pattern, first, re.M)}
    operation = Convolution(
        Surface(firmware["CDMA.D_DAIN_ADDR_LOW_0"], 16, 16, 4, 64, 0, pixels="T_A8B8G8R8"),
        Kernels(firmware["CDMA.D_WEIGHT_ADDR_LOW"], 1440, 40, 3, 1, 12, 36, WeightForm("image")),
        SAME, Banks(9, 1, 1), SDP, Surface(RESULT, 16, 16, 40, 128, 2048),
    )  # fmt: skip
    written = _written(SMALL, operation)
    unused = ("CDMA.D_DAIN_ADDR_LOW_1", "CDMA.D_DAIN_ADDR_HIGH_1", "CDMA.D_LINE_UV_STRIDE", "CDMA.D_BATCH_STRIDE")
    assert len(firmware) > 40
    for title, value in firmware.items():
        if title not in unused:
            assert written[known[title].address] == value, title
