"""The pages with examples: every command and every snippet is executed, and what they show is what is printed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from npuc.target import Target
from tests.cli.process import npuc

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ("digits.onnx", "digits_calibration.npz", "digits_test.npz")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the models of a checkout, which is the current one."""
    (tmp_path / "models").mkdir()
    for name in DIGITS:
        shutil.copy(ROOT / "models" / name, tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_quick_start_runs_and_prints_what_it_shows(checkout: Path) -> None:
    install, *commands = blocks("quickstart.md", "sh")
    assert "pip install ." in install  # what .ci/run does in a fresh environment
    printed = ""
    for line in "".join(commands).splitlines():
        name, *arguments = shlex.split(line)
        assert name == "npuc"
        printed += npuc(*arguments).done()
    for shown in blocks("quickstart.md", "text"):
        assert shown in printed
    assert {"digits.npu", "digits.html", "outputs.npz", "images"} <= {path.name for path in checkout.iterdir()}
    assert (checkout / "images" / "map.json").is_file()
    shutil.copy(ROOT / ".gitignore", checkout)
    subprocess.run(["git", "init", "-q"], check=True)
    status = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True)
    assert status.stdout.split() == ["??", ".gitignore", "??", "models/"]


def test_every_command_that_looks_inside_digits_runs(checkout: Path) -> None:
    samples = ("--calibration", "models/digits_calibration.npz")
    for output in ("digits.npu", "other.npu"):
        npuc("compile", "models/digits.onnx", "--target", "easynpu", *samples, "-o", output).done()
    (checkout / "mine.toml").write_text('name = "mine"\npe_rows = 2\n', encoding="utf-8")
    commands = re.findall(r"`npuc ([^`]+)`", (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8"))
    ours = [shlex.split(command) for command in commands if "digits" in command]
    assert len(ours) > 10
    for command in ours:
        npuc(*command, *(("-o", "mine.npu") if command[0] == "compile" else ())).done()
    assert (checkout / "firmware" / "Makefile").is_file() and (checkout / "changes.html").is_file()


def test_the_page_of_photos_runs_after_its_example(checkout: Path) -> None:
    example = [sys.executable, ROOT / "examples" / "photos.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    asked = subprocess.run(example, env=environment, check=True, capture_output=True, text=True).stdout
    assert blocks("quickstart.md", "console")[0].split("photos.py\n")[1] in asked
    (described,) = blocks("photos.md", "toml")
    assert described.splitlines()[0] == (checkout / "digits.toml").read_text("utf-8").splitlines()[0]
    (checkout / "digits.toml").write_text(described, "utf-8")
    printed = ""
    for line in "".join(blocks("photos.md", "sh")).splitlines():
        _, *arguments = shlex.split(line)
        printed += npuc(*arguments, *(["--force"] if arguments[0] == "compile" else [])).done()
    assert "%  7" in printed.split("photos/7/002.png")[1].splitlines()[1] and "60 samples, 10 classes" in printed


def test_the_examples_of_the_python_api_hold(checkout: Path) -> None:
    names: dict[str, object] = {}
    for number, block in enumerate(blocks("api.md", "python")):
        exec(compile(block, f"api.md, example {number}", "exec"), names)
    assert (checkout / "digits.npu" / "manifest.json").is_file()


def test_the_page_of_the_python_api_names_everything_that_npuc_offers() -> None:
    import npuc as package

    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    offered = set(dir(package)) - vars(package).keys()  # imported on access
    assert "compile" in offered
    assert [name for name in offered if f"npuc.{name}" not in text and f"## {name}" not in text] == []


def test_every_public_name_can_be_imported() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    rows = text[text.index("## Public names") :]
    found = re.findall(r"`(npuc(?:\.\w+)*)\.(\w+)`", rows)
    assert len(found) > 20 and [each for each in found if not hasattr(import_module(each[0]), each[1])] == []
    for name in ("target.Options", "errors.NpucError", "program.sealed", "program.canonical_json"):
        assert f"`npuc.{name}`" in rows
    for name in ("model.run", "trace.read"):
        assert f"`npuc.targets.nvdla.{name}`" in rows


@pytest.mark.parametrize("page", ["add-a-pass.md", "add-an-operator.md"])
def test_the_examples_of_a_guide_hold(page: str) -> None:
    names = dict[str, object]()
    for number, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{page}, example {number}", "exec"), names)


def test_the_entry_point_that_the_guide_shows_is_that_of_the_example() -> None:
    (shown,) = blocks("add-a-target.md", "toml")
    assert shown in (ROOT / "tests" / "example_target" / "pyproject.toml").read_text(encoding="utf-8")


def test_the_guide_names_every_method_of_a_target() -> None:
    text = (ROOT / "docs" / "add-a-target.md").read_text(encoding="utf-8")
    methods = {name for name in vars(Target) if not name.startswith("_") and callable(getattr(Target, name))}
    assert {name for name in methods if f"`{name}`" not in text} == set()


PLACEHOLDER = "targets/T"
"""Any target's folder."""


@pytest.mark.parametrize(
    "page", ["add-a-pass.md", "add-an-operator.md", "add-a-target.md", "architecture.md", "decisions.md"]
)
def test_the_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:npuc|passes|targets|tests|docs)/[\w/.]*)`", text)
    targets = [each.name for each in (ROOT / "targets").iterdir() if (each / "target.py").is_file()]
    written = [name.replace(PLACEHOLDER, f"targets/{target}") for name in named for target in targets]
    assert named
    assert [name for name in written if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()] == []


def test_the_constants_that_a_page_places_in_a_file_are_there() -> None:
    """`NAME` of `path/file.py`."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for name, file in re.findall(r"`([A-Z_]+)`\s+(?:of|in)\s+`([\w/]+\.py)`", text):
            assert re.search(rf"^{name}\b", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), (page, name)
