"""Register programs that ran on NVDLA's RTL: the model gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc.targets.nvdla import model
from npuc.targets.nvdla.machine.parameters import FULL, SMALL
from npuc.targets.nvdla.machine.registers import Write
from npuc.targets.nvdla.model import DeviceMemory
from tests.given import GIVEN

FOLDER = GIVEN / "nvdla" / "vectors"
MACHINES = {"full": FULL, "small": SMALL}


@pytest.mark.parametrize("vector", sorted(FOLDER.glob("*.npz")) or [FOLDER], ids=lambda path: path.stem)
def test_a_program_gives_what_the_rtl_gave(vector: Path) -> None:
    if not vector.is_file():
        pytest.skip("no folder `shared` with vectors of the RTL beside the project")
    with np.load(vector) as data:
        regions = [(int(at), data[f"memory_{each}"]) for each, at in enumerate(data["memory_addresses"])]
        commands = [Write(int(address), int(value)) for address, value in data["registers"]]
        after = model.run(MACHINES[vector.stem.split("_")[0]], commands, DeviceMemory(regions))
        found = after.read(int(data["expected_address"]), len(data["expected"]))
        np.testing.assert_array_equal(np.frombuffer(found, np.uint8), data["expected"])
