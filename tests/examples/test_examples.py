"""The examples run as they stand, from the root of a checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_an_example_runs_and_says_what_it_found(name: str, tmp_path: Path) -> None:
    if name == "firmware.py" and (shutil.which("make") is None or shutil.which("cc") is None):
        pytest.skip("the example of firmware needs make and a C compiler")
    (tmp_path / "models").symlink_to(ROOT / "models")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, ROOT / "examples" / name]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_index_names_every_example() -> None:
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    names = {path.name for path in (ROOT / "examples").iterdir()} - {"README.md", "__pycache__"}
    assert all(f"({name})" in text for name in names)


def test_the_walkthrough_runs_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "examples" / "walkthrough.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)):
        exec(compile(block, f"walkthrough.md, step {number}", "exec"), names)
    assert names["report"]["bit_exact"] is True  # type: ignore[index]
