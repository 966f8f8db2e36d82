"""`npuc targets`, `operators` and `check`; `--version` and `--help`."""

from __future__ import annotations

import pytest

import npuc as package
from npuc.cli.options import TARGET_NAMES
from npuc.target import names
from tests.cli.process import PROBLEM, Digits, WriteModel, npuc


def test_the_command_line_knows_every_target() -> None:
    assert tuple(names()) == TARGET_NAMES


def test_targets_come_with_their_machines() -> None:
    report = npuc("targets", "--json").json
    assert [each["name"] for each in report["targets"]] == list(names())
    assert all(each["summary"] and "default" in each["machines"] for each in report["targets"])
    assert "easynpu" in npuc("targets").done()


def test_operators_come_with_their_constraints() -> None:
    report = npuc("operators", "--target", "easynpu", "--json").json
    rows = {row["op"]: row for row in report["operators"]}
    assert report["target"] == "easynpu" and {"Conv", "MaxPool", "Add", "Softmax"} <= rows.keys()
    assert rows["Softmax"]["runs as"] == "host step" and "group" in rows["Conv"]["constraints"]
    text = npuc("operators", "--target", "easynpu").done()
    assert len(text.splitlines()) == len(rows) + 1


def test_a_model_that_runs_passes_the_check(digits: Digits) -> None:
    assert npuc("check", digits.model, "--target", "easynpu").done().endswith("easynpu runs all of it\n")
    assert npuc("check", digits.model, "--target", "easynpu", "--json").json == {
        "status": "ok",
        "target": "easynpu",
        "errors": [],
    }


UNSUPPORTED = """g (float[1,4,16,16] x) => (float[1,4,16,16] y, float[1,4,16,16] z) {
    p = AveragePool <kernel_shape = [9, 9], pads = [4, 4, 4, 4]> (x)
    y = Relu(p)
    q = AveragePool <kernel_shape = [11, 11], pads = [5, 5, 5, 5]> (x)
    z = Relu(q)
}"""
"""Averages that leave the padding out, with too many divisors: the array divides by the whole window."""


@pytest.mark.parametrize("flag", [("--json",), ("--format", "json"), ("--format=json",)])
def test_a_check_reports_every_problem_at_once(write: WriteModel, flag: tuple[str, ...]) -> None:
    path = write(UNSUPPORTED)
    report = npuc("check", path, "--target", "easynpu", *flag)
    assert report.code == 1 and report.json["status"] == "error"
    assert [error["node"] for error in report.json["errors"]] == ["AveragePool_0", "AveragePool_2"]
    assert all(error.keys() == PROBLEM and error["limit"] for error in report.json["errors"])
    text = npuc("check", path, "--target", "easynpu")
    assert text.code == 1 and text.err.count("error[E202]") == 2


def test_a_check_finds_what_compiling_would(write: WriteModel) -> None:
    text = """g (float[1,16,8,8] x) => (float[1,16,8,8] y) {
        a = Relu(x)
        b = Conv <kernel_shape = [1, 1]> (a, w)
        c = Conv <kernel_shape = [1, 1]> (b, w)
        d = Conv <kernel_shape = [1, 1]> (c, w)
        e = Add(d, b)
        y = Add(e, a)
    }"""
    path = write(text, w=(16, 16, 1, 1))
    npuc("check", path, "--target", "easynpu").done()
    npuc("check", path, "--target", "easynpu", "--isa", "documented").refused("E204")


def test_a_strict_check_refuses_host_steps(write: WriteModel) -> None:
    path = write("g (float[1,4] x) => (float[1,4] y) { a = Relu(x)\n y = Softmax(a) }")
    npuc("check", path, "--target", "easynpu").done()
    npuc("check", path, "--target", "easynpu", "--strict").refused("E203")


def test_the_version_is_the_package_s() -> None:
    assert npuc("--version").done() == f"npuc, version {package.__version__}\n"


@pytest.mark.parametrize(
    "command",
    [(), ("compile",), ("run",), ("verify",), ("dump",), ("assemble",), ("export",), ("check",), ("targets",)],
)
def test_help_fits_a_terminal(command: tuple[str, ...]) -> None:
    text = npuc(*command, "--help").done()
    assert text.startswith("Usage: npuc") and max(map(len, text.splitlines())) <= 110
    assert text == npuc(*command, "-h").out


def test_targets_say_their_precisions_the_usual_one_first() -> None:
    found = {each["name"]: each["precisions"] for each in npuc("targets", "--json").json["targets"]}
    assert found["nvdla-full"] == ["int8", "int16", "fp16"] and found["nvdla-small"] == ["int8"]


def test_a_precision_that_the_target_lacks_is_a_usage_error_of_check(digits: Digits) -> None:
    text = npuc("check", digits.model, "--target", "nvdla-small", "--precision", "fp16").usage()
    assert "nvdla-small computes in int8; --precision fp16 is not for it" in text
    assert "runs all of it" in npuc("check", digits.model, "--target", "nvdla-full", "--precision", "fp16").done()


def test_operators_say_what_runs_in_one_precision_only() -> None:
    rows = {row["op"]: row for row in npuc("operators", "--target", "nvdla-full", "--json").json["operators"]}
    assert rows["Exp"]["constraints"].endswith("In int8; else on the host.")
    assert "else on the host" not in rows["Sigmoid"]["constraints"]
