"""The functional model leaves the memory that NVDLA's own RTL left, in every byte."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.targets.nvdla import model, trace
from tests.given import GIVEN

FOLDER = GIVEN / "nvdla" / "rtl"
PROGRAMS = [each.parent.relative_to(FOLDER).as_posix() for each in sorted(FOLDER.glob("*/*/rtl.npz"))]


@pytest.mark.skipif(not PROGRAMS, reason="the programs that ran on the RTL are not here")
@pytest.mark.parametrize("name", [each for each in PROGRAMS if "_w258" not in each] or ["none"])  # test_limits
def test_the_model_leaves_the_memory_of_the_rtl(name: str) -> None:
    program = trace.read(FOLDER / name, name.partition("/")[0])
    memory = model.run(program.machine, program.commands, program.memory())
    with np.load(FOLDER / name / "rtl.npz") as archive:
        for address, left in archive.items():
            found = np.frombuffer(memory.read(int(address, 16), len(left)), np.uint8)
            np.testing.assert_array_equal(found, left, err_msg=f"{name} at {address}")
