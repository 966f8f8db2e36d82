"""What the README shows is what happens: commands, their output, and the accuracy table."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from npuc.cli import npuc as group
from npuc.ir import Array
from tests.cli.process import compiled, npuc

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MODEL, TEST = ROOT / "models" / "digits.onnx", ROOT / "models" / "digits_test.npz"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("readme") / "digits.npu"
    compiled(MODEL, output, "--calibration", ROOT / "models" / "digits_calibration.npz").done()
    return output


def shown(command: str) -> list[str]:
    """The lines that the README shows below a command, up to the ellipsis or the next command."""
    (text,) = re.findall(rf"^\$ npuc {command} .*\n((?:(?!\$ |\.\.\.| *\.\.\.$|```).*\n)+)", README, re.MULTILINE)
    return text.splitlines()


def test_compiling_prints_what_the_readme_shows(program: Path) -> None:
    report = compiled(MODEL, program, "--calibration", ROOT / "models" / "digits_calibration.npz").done()
    lines = report.replace(str(program), "digits.npu").splitlines()
    assert lines[: len(shown("compile"))] == shown("compile")


def test_the_dump_begins_as_the_readme_shows(program: Path) -> None:
    lines = npuc("dump", program).done().splitlines()
    assert lines[: len(shown("dump"))] == shown("dump")


def test_the_accuracy_table_is_measured(program: Path, tmp_path: Path) -> None:
    with np.load(TEST) as file:
        images, labels = file["x"].astype(np.float32), file["y"]
    session = ort.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    exact = np.concatenate([session.run(None, {"input": image[None]})[0] for image in images])
    npuc("run", program, "--data", TEST, "-o", tmp_path / "y.npz").done()
    with np.load(tmp_path / "y.npz") as file:
        simulated = file["n11_Gemm"]

    def share(outputs: Array) -> str:
        return f"{(outputs.argmax(axis=1) == labels).mean():.1%}".replace("%", " %")

    assert f"| accuracy | {share(exact)} | {share(simulated)} |" in README


def test_the_table_of_commands_has_them_all() -> None:
    table = README[README.index("## Commands") : README.index("## Documentation")]
    assert set(re.findall(r"`npuc (\w+)", table)) == set(group.commands)
