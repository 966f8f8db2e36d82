"""What a terminal shows: help with examples at a width of 80, how much is said, progress without colour."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
from pathlib import Path
from unittest.mock import patch

import click
import onnx
import pytest

from npuc.cli import npuc as commands
from npuc.text.terminal import CLEAR, progress
from tests.cli.process import Digits, compiled, npuc

ROOT = Path(__file__).resolve().parents[2]


def shown(name: str) -> str:
    with patch.dict(os.environ, {"COLUMNS": "80"}):
        return npuc(*([name] if name else []), "--help").done()


def examples(name: str) -> list[list[str]]:
    """The words of every example command, which may go on after a backslash."""
    lines = shown(name).partition("Examples:\n")[2].partition("\n\n")[0]
    joined = lines.replace("\\\n", " ")
    return [shlex.split(line.partition(">")[0]) for line in joined.splitlines()]


@pytest.mark.parametrize("name", ["", *sorted(commands.commands)])
def test_help_fits_80_columns_and_has_examples(name: str) -> None:
    text = shown(name)
    assert npuc(*([name] if name else []), "-h").done().split() == text.split()
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert examples(name) and all(words[0] == "npuc" for words in examples(name))


@pytest.mark.parametrize("name", sorted(commands.commands))
def test_the_examples_are_commands_that_npuc_understands(name: str) -> None:
    assert any(words[1] == name for words in examples(name))
    for words in examples(name):
        command = commands.commands[words[1]]
        with patch.dict(os.environ), click.Context(commands) as parent:
            command.make_context(words[1], words[2:], parent=parent)


def test_the_list_of_commands_has_no_sentence_cut_off() -> None:
    assert "..." not in shown("").partition("Commands:")[2]


def test_quiet_prints_errors_and_excludes_verbose(digits: Digits, tmp_path: Path) -> None:
    compiled(tmp_path / "none.onnx", tmp_path / "p", "-q").refused("E101")
    compiled(digits.model, tmp_path / "o", "-q", "-v").usage()


@pytest.mark.parametrize("name", sorted(commands.commands.keys() - {"completion"}))
def test_every_command_that_reports_takes_quiet_verbose_and_json(name: str) -> None:
    options = {opt: each for each in commands.commands[name].params for opt in each.opts}
    assert {"-q", "--quiet", "-v", "--verbose", "--json"} <= options.keys()
    assert options.get("-o") is options.get("--output")
    assert {str(getattr(options[each], "help", "")) for each in ("-q", "-v")} == {
        "Print errors only (and --json).",
        "Print more: details, and on stderr each stage with its seconds.",
    }


REPORTING = """
targets
operators --target easynpu
check {model} --target easynpu
compile {model} --target easynpu --calibration {few} -o {out}
quantize {model} --target easynpu --calibration {few} -o {out}
verify {model} {program}
accuracy {model} {program} --data {few}
run {program} --data {few}
dump {program}
explain {program} 3
report {program} -o {out}
trace {program} -o {out}
export {program} --format bin -o {out}
rtl {program} --data {few} -o {out}
assemble {listing} --images {program} -o {out}
diff {program} {program} -o {out}
compare {model} --target easynpu
sweep {model} --target easynpu --grid pe_rows=1 -o {out}
""".strip().splitlines()


@pytest.mark.parametrize("command", REPORTING, ids=lambda each: each.split()[0])
def test_quiet_leaves_the_exit_code_the_files_and_json_that_follows_its_schema(
    command: str, digits: Digits, tmp_path: Path
) -> None:
    (tmp_path / "listing").write_text(npuc("dump", digits.program).done())
    known = {"model": digits.model, "program": digits.program, "few": digits.few, "listing": tmp_path / "listing"}
    quiet, asking, loud = (command.format(**known, out=tmp_path / each).split() for each in "abc")
    found, report = npuc(*quiet, "-q"), npuc(*asking, "-q", "--json")
    assert (found.done(), found.err, report.err) == ("", "", "") and report.json["status"] == "ok"
    assert (tmp_path / "a").exists() == (tmp_path / "b").exists() == ("{out}" in command)
    assert "{out}" not in command or report.json["output"] == str(tmp_path / "b")
    assert npuc(*loud).done() != ""


def test_every_command_that_reports_has_a_schema_and_is_asked() -> None:
    names = {each.split()[0] for each in REPORTING}
    assert names == commands.commands.keys() - {"completion"}
    assert names <= json.loads((ROOT / "docs" / "output-schema.json").read_text("utf-8"))["$defs"].keys()


def test_verbose_names_each_stage_with_its_seconds(digits: Digits, tmp_path: Path) -> None:
    said = npuc("report", digits.program, "-o", tmp_path / "r.html", "-v").err
    assert re.findall(r"^reporting: (\w+), \d+\.\d s$", said, re.MULTILINE) == ["simulating", "drawing"]


def test_twice_verbose_also_prints_the_graph_after_every_pass_that_changed_it(
    digits: Digits, tmp_path: Path
) -> None:
    once, twice = (compiled(digits.model, tmp_path / "o", flag) for flag in ("-v", "-vv"))
    assert once.done() == twice.done() and "pass " in once.err
    assert "\nafter " not in f"\n{once.err}"
    assert len(twice.err.splitlines()) > len(once.err.splitlines())
    changed = [line.split()[1] for line in once.err.splitlines() if line.startswith("pass ")]
    printed = [line.removeprefix("after ")[:-1] for line in twice.err.splitlines() if line.startswith("after ")]
    assert printed and set(printed) == set(changed)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def long_names(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the digits, whose nodes have names as of TensorFlow's exporter, and two programs."""
    folder = tmp_path_factory.mktemp("long")
    model = onnx.load(digits.model)
    for node in model.graph.node:
        node.name = (
            f"model/activation/Relu;model/batch_normalization/FusedBatchNormV3;model/conv/Biases/{node.name}"
        )
    onnx.save(model, folder / "m.onnx")
    for name, machine in (("a", "default"), ("b", "large")):
        compiled(folder / "m.onnx", folder / name, "--machine", machine, "--calibration", digits.few).done()
    return folder


@pytest.mark.parametrize("command", [
    "verify {0}/m.onnx {0}/a --data {1} --bisect -o {2}/b",
    "compile {0}/m.onnx --target nvdla-small --calibration {1} -o {2}/o -v",
    "check {0}/m.onnx --target easynpu -v", "explain {0}/a 3", "diff {0}/a {0}/b -v", "diff {0}/a {0}/b",
    "dump {0}/a", "targets", "operators --target nvdla-full",
])  # fmt: skip
def test_nothing_is_wider_than_a_terminal(command: str, long_names: Path, digits: Digits, tmp_path: Path) -> None:
    arguments = command.format(long_names, digits.few, tmp_path).split()
    size = patch.dict(os.environ, {"COLUMNS": "80", "NO_COLOR": "1"})
    with size, patch.object(io, "StringIO", Terminal):
        found = npuc(*arguments)
    said = found.err.replace(CLEAR, "\n") + found.done()
    assert [line for line in said.splitlines() if len(line) > 80] == [] and len(said.splitlines()) > 1


def test_progress_has_no_colours() -> None:
    terminal = Terminal()
    colourful = patch.dict(os.environ, {"TERM": "xterm-256color"})
    with colourful, patch.object(sys, "stderr", terminal), progress("working") as bar:
        bar.begin("hard", 2)
        bar.advance(1)
    assert "working" in terminal.getvalue()
    assert "\x1b[38;5" not in terminal.getvalue() and "\x1b[3" not in terminal.getvalue()
