"""Usage errors: exit code 2, the name that was probably meant, and one JSON object where that was asked for."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import click
import pytest

from npuc.cli import npuc as commands
from tests.cli.process import PROBLEM, Digits, compiled, npuc


@pytest.mark.parametrize(("arguments", "meant"), [
    (("compil", "x.onnx"), "compile"), (("verfy",), "verify"),
    (("compile", "x.onnx", "--targt", "easynpu"), "--target"),
    (("compile", "x.onnx", "--target", "easynp"), "easynpu"),
    (("compile", "x.onnx", "--target", "easynpu", "--isa", "document"), "documented"),
    (("compile", "x.onnx", "--target", "easynpu", "--dump-after", "fold_constant"), "fold_constants"),
    (("operators", "--target", "EasyNPU"), "easynpu"),
    (("export", "x.npu", "--format", "readmem", "-o", "y"), "readmemh"),
])  # fmt: skip
def test_an_unknown_name_comes_with_the_one_that_was_meant(arguments: tuple[str, ...], meant: str) -> None:
    message = npuc(*arguments).usage()
    assert f"'{meant}'" in message and "Did you mean" in message


def test_an_unknown_machine_comes_with_the_one_that_was_meant(digits: Digits, tmp_path: Path) -> None:
    message = compiled(digits.model, tmp_path / "o", "--machine", "defualt").refused("E305")
    assert "Did you mean 'default'?" in message and "default, author, document, large" in message


@pytest.mark.parametrize(("arguments", "missing"), [
    (("compile",), "MODEL"), (("compile", "x.onnx"), "--target"), (("run", "x.npu"), "--data"),
    (("verify", "x.onnx"), "ARTEFACT"), (("dump",), "PATH"), (("assemble", "x"), "--output"),
    (("export", "x.npu", "-o", "y"), "--format"), (("operators",), "--target"), (("check",), "MODEL"),
    (("compile", "x.onnx", "--target"), "--target"), (("targets", "surplus"), "surplus"),
])  # fmt: skip
def test_what_is_missing_is_named_also_as_json(arguments: tuple[str, ...], missing: str) -> None:
    assert missing in npuc(*arguments).usage()
    outcome = npuc(arguments[0], "--json", *arguments[1:])
    assert outcome.code == 2 and outcome.json["status"] == "error"
    (error,) = outcome.json["errors"]
    assert error.keys() == PROBLEM
    assert error["code"] == "usage" and missing in error["reason"]
    assert error["remedy"] in (f"npuc {arguments[0]} --help", "npuc --help")


def test_json_is_no_option_of_npuc_itself_but_gives_json_all_the_same() -> None:
    outcome = npuc("--json", "compile")
    assert outcome.code == 2 and outcome.json["errors"][0]["remedy"] == "npuc --help"


def test_without_a_command_the_help_goes_to_stderr() -> None:
    assert "Commands:" in npuc().usage()


def test_a_number_that_is_none_is_a_usage_error(digits: Digits) -> None:
    for option in ("--min-sqnr", "--min-cosine", "--samples"):
        assert option in npuc("verify", digits.model, digits.program, option, "many").usage()


@pytest.mark.parametrize("level", ["3", "9", "s"])
def test_an_unknown_level_is_a_usage_error(level: str) -> None:
    assert "-O" in npuc("compile", "x.onnx", "--target", "easynpu", f"-O{level}").usage()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--target", "easynpu", "--strict"), "--strict and --precision mixed exclude each other"),
        (("--target", "bm1684"), "the host takes no layers over from bm1684"),
    ],
)
def test_where_the_host_may_take_nothing_over_mixed_is_refused(arguments: tuple[str, ...], reason: str) -> None:
    assert reason in npuc("compile", "model.onnx", "--precision", "mixed", *arguments).usage()


def test_an_empty_path_is_not_the_current_folder(digits: Digits, tmp_path: Path) -> None:
    assert "empty" in npuc("compile", "", "--target", "easynpu").usage()
    assert (
        "empty"
        in npuc("compile", digits.model, "--target", "easynpu", "-o", tmp_path / "o", "--calibration", "").usage()
    )


def test_an_output_is_not_written_over_an_input(digits: Digits, tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(digits.model.read_bytes())
    same = tmp_path / "." / "net.onnx"
    for arguments in ((model, "-o", same), ("-o", same, model)):
        message = npuc("quantize", *arguments, "--target", "easynpu").usage()
        assert "would be both read and written" in message
    assert model.read_bytes() == digits.model.read_bytes()


@pytest.mark.parametrize("arguments", [("report",), ("export", "--format", "bin"), ("trace",)])
@pytest.mark.parametrize("name", ["manifest.json", "new/page", "../a.npu/weight.bin"])
def test_nothing_is_written_into_an_artefact_that_is_read(
    arguments: tuple[str, ...], name: str, digits: Digits, tmp_path: Path
) -> None:
    artefact = tmp_path / "a.npu"
    copytree(digits.program, artefact)
    before = {each: each.read_bytes() for each in artefact.iterdir()}
    command, *options = arguments
    for order in ((artefact, "-o", artefact / name), ("-o", artefact / name, artefact)):
        assert "would be written into" in npuc(command, *options, *order).usage()
    assert {each: each.read_bytes() for each in artefact.iterdir()} == before


@pytest.mark.parametrize("arguments", ["targets", "dump {program}", "dump {program} --format csv"])
def test_a_closed_standard_output_is_no_defect(arguments: str, digits: Digits) -> None:
    asked = arguments.format(program=shlex.quote(str(digits.program)))
    command = f"{shlex.quote(sys.executable)} -m npuc {asked} >&-"
    outcome = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (outcome.returncode, outcome.stderr) == (0, "")


@pytest.mark.parametrize(("arguments", "instead"), [
    (("compile", "--max-partitions", "2"), "--deny"), (("compile", "--scales", "free"), "machine files"),
    (("check", "--weights", "direct"), "npuc.compile"), (("sweep", "--objective", "traffic"), "npuc.compile"),
    (("run", "--time-limit", "1"), "NPUC_TIME_LIMIT"), (("verify", "--custom-ops", "a.so"), "NPUC_CUSTOM_OPS"),
    (("report", "--okk-libs", "a"), "NPUC_OKK_LIBS"), (("verify", "--sort"), "--bisect"),
    (("dump", "--grep", "a"), "| grep"), (("accuracy", "--qdq", "q.onnx"), "integer network"),
])  # fmt: skip
def test_a_removed_option_is_refused_with_what_to_use_instead(arguments: tuple[str, ...], instead: str) -> None:
    message = " ".join(npuc(*arguments).usage().split())
    assert f"{arguments[1]} was removed; " in message and instead in message


def test_the_command_line_stays_small() -> None:
    """Options that a user sees; of compile those that not every command has."""
    options = {
        name: {each.opts[0] for each in command.params if isinstance(each, click.Option) and not each.hidden}
        for name, command in commands.commands.items()
    }
    assert len(options["compile"] - {"-v", "-q", "--json"}) <= 24
    assert len(set().union(*options.values())) <= 55
