"""Artefacts are the same on every processor: numpy's instructions are switched off in child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FEATURES = (
    "import numpy as np; core = getattr(np, '_core', None) or np.core\n"
    "found = core._multiarray_umath.__cpu_features__, core._multiarray_umath.__cpu_dispatch__\n"
    "print(*(name for name in found[1] if found[0].get(name)))"
)
CODE = """
import hashlib, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import numpy as np
import npuc
from npuc.models import MODELS

folder, given = Path(sys.argv[1]), Path("models/digits_calibration.npz")
for name in sys.argv[2:]:
    target, precision, level = name.split()
    for model in ("digits", "residual_awkward") if level == "1" else ("digits",):
        path = folder / f"{model}.onnx"
        made = MODELS[model]().SerializeToString() if model in MODELS else Path("models/digits.onnx").read_bytes()
        path.write_bytes(made)
        data = given if model == "digits" else "synthetic"
        found = npuc.compile(path, target, precision=precision, level=level, proof="off", calibration=data)
        files = {**found.program.files, **found.program.evidence}
        print(name, model, *(hashlib.sha256(bytes(files[key])).hexdigest()[:16] for key in sorted(files)))
"""
KINDS = (
    "nvdla-full fp16 1", "nvdla-full int16 0", "nvdla-small int8 1", "easynpu int8 1",
    "bm1684 int8 1", "bm1684 fp32 0",
)  # fmt: skip


def artefacts(folder: Path, **variables: str) -> str:
    """Digests of all files of the programs, made by a process with these variables."""
    folder.mkdir()
    command = [sys.executable, "-c", CODE, str(folder), *KINDS]
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> str:
    return artefacts(tmp_path_factory.mktemp("usual") / "made")


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, -1], ids=["none", "all but the newest"])
def test_an_artefact_does_not_depend_on_the_processors_instructions(usual: str, kept: int, tmp_path: Path) -> None:
    features = subprocess.run([sys.executable, "-c", FEATURES], capture_output=True, text=True, check=True)
    off = features.stdout.split()[kept:]
    if not off:
        pytest.skip("this processor has no instructions to switch off")
    assert artefacts(tmp_path / "made", NPY_DISABLE_CPU_FEATURES=" ".join(off)) == usual
