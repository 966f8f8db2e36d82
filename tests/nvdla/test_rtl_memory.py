"""The functional model leaves the memory that NVDLA's own RTL left, in every byte."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.targets.nvdla import model, trace
from tests.given import GIVEN

FOLDER = GIVEN / "nvdla"
PROGRAMS = [
    f"{group}/{each.parent.parent.name}/{each.parent.name}"
    for group in ("rtl", "pixels", "pixels/refuse", "pixels/wrong")
    for each in sorted((FOLDER / group).glob("nv_*/*/rtl.npz"))
]
IMAGES = ("int8_img1_3x17_w33", "int8_img1_3x25_w45", "int8_img3x7_w39", "int8_img3x9_w41", "int8_img7x7s2_w34",
          "int8_random7000014")  # fmt: skip
"""Programs of images that the RTL computes otherwise than their networks say."""


@pytest.mark.skipif(not PROGRAMS, reason="the programs that ran on the RTL are not here")
@pytest.mark.parametrize("name", [each for each in PROGRAMS if "_w258" not in each] or ["none"])  # test_limits
def test_the_model_leaves_the_memory_of_the_rtl(name: str) -> None:
    program = trace.read(FOLDER / name, name.split("/")[-2])
    if "pixels/refuse" in name or "pixels/wrong" in name or name.endswith(IMAGES):
        with pytest.raises(ArtefactError, match=r"CDMA|CSC"):
            model.run(program.machine, program.commands, program.memory())
        return
    memory = model.run(program.machine, program.commands, program.memory())
    with np.load(FOLDER / name / "rtl.npz") as archive:
        for address, left in archive.items():
            found = np.frombuffer(memory.read(int(address, 16), len(left)), np.uint8)
            np.testing.assert_array_equal(found, left, err_msg=f"{name} at {address}")
