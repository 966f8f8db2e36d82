"""What the README shows is what happens: commands, their output, and the accuracy table."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from npuc.cli import npuc as group
from tests.cli.process import compiled, npuc

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MODEL = ROOT / "models" / "digits.onnx"
_spec = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "figures.py")
assert _spec is not None and _spec.loader is not None
figures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(figures)


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


def test_the_tables_of_the_pages_are_those_of_the_file() -> None:
    known = json.loads(figures.FILE.read_text(encoding="utf-8"))["tables"]
    assert known.keys() == figures.TABLES.keys()
    for name, rows in known.items():
        page = (ROOT / figures.TABLES[name][0]).read_text(encoding="utf-8")
        assert figures.written(name, rows) in page, f"run python docs/figures.py {name}"
    small = known["cycles"][0].index("nvdla-small")
    cycles = next(row[small] for row in known["cycles"] if row[0].startswith("ResNet-8"))
    assert README.count(cycles) == 2  # also beside NVIDIA's compiler


def test_the_figures_of_the_shipped_models_are_measured() -> None:
    known = json.loads(figures.FILE.read_text(encoding="utf-8"))["tables"]
    assert [[*row] for row in figures.tables.cycles(["digits"])] == known["cycles"][:3]
    assert [[*row] for row in figures.tables.builders()] == known["builders"]
    header, row = figures.tables.families(["keyword_spotting"])
    (listed,) = [each for each in known["families"] if each[0] == row[0]]
    exact = [at for at, name in enumerate(header) if name != "bm1684"]  # fp32: its last digits are the processor's
    assert [row[at] for at in exact] == [listed[at] for at in exact]


def test_the_figures_of_the_pages_are_measured() -> None:
    known = json.loads(figures.FILE.read_text(encoding="utf-8"))["pages"]
    assert known.keys() == figures.PAGES.keys()
    for page, rows in known.items():
        lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
        for name, row in rows.items():
            numbers = [f"{each:,}" for each in row.values()]
            assert any(all(each in line for each in numbers) for line in lines), (page, name, numbers)
    assert figures.stated("bm1684.md", "small_cnn") == known["bm1684.md"]["small_cnn"]
    if (ROOT.parent / "shared").is_dir():
        assert figures.stated("nvdla.md", "full, auto") == known["nvdla.md"]["full, auto"]


def test_the_links_hold_on_an_index() -> None:
    """As the build rewrites them: each leads to the tag in the repository that the project names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    text = README
    for each in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    source = project["project"]["urls"]["Source"]
    links = re.findall(r"\]\(([^)]+)\)", text)
    led = re.findall(rf"{source}/(?:blob|raw)/v\$HFPR_VERSION/([^)#]+)", text)
    assert "docs/report.png" in led and all((ROOT / path).is_file() for path in led)
    assert all(link.startswith(("https://", "#")) for link in links)


def test_the_table_of_commands_has_them_all() -> None:
    table = README[README.index("## Commands") : README.index("## Documentation")]
    assert set(re.findall(r"`npuc (\w+)", table)) == set(group.commands)
