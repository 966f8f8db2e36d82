"""`npuc targets`, `operators` and `check`; `--version` and `--help`."""

from __future__ import annotations

from pathlib import Path

import pytest

import npuc as package
from npuc.registry import names
from tests.cli.process import PROBLEM, Digits, WriteModel, compiled, npuc


def test_targets_come_with_their_machines() -> None:
    report = npuc("targets", "--json").json
    assert [each["name"] for each in report["targets"]] == list(names())
    assert all(each["summary"] and "default" in each["machines"] for each in report["targets"])
    assert "easynpu" in npuc("targets").done()


def test_operators_come_with_their_constraints() -> None:
    report = npuc("operators", "--target", "easynpu", "--json").json
    rows = {row["op"]: row for row in report["operators"]}
    assert report["target"] == "easynpu" and {"Conv", "MaxPool", "Add", "Softmax"} <= rows.keys()
    assert rows["Softmax"]["runs_as"] == "host step" and "group" in rows["Conv"]["constraints"]
    text = npuc("operators", "--target", "easynpu").done()
    assert len(text.splitlines()) == len(rows) + 1


@pytest.mark.parametrize("target", names())
def test_the_keys_of_the_operators_table_are_identifiers(target: str) -> None:
    rows = npuc("operators", "--target", target, "--json").json["operators"]
    assert rows and all(row.keys() == {"op", "runs_as", "constraints"} for row in rows)


def test_a_model_that_runs_passes_the_check(digits: Digits) -> None:
    said = npuc("check", digits.model, "--target", "easynpu").done()
    assert said.endswith("easynpu runs all of it: 11 of 12 nodes on the NPU, 100.0 % of the MACs; 1 left out\n")
    found = npuc("check", digits.model, "--target", "easynpu", "--json").json
    assert len(found.pop("account")) == 12
    assert found == {"status": "ok", "target": "easynpu", "errors": [], "groups": []}


UNSUPPORTED = """g (float[1,4,16,16] x) => (float[1,4,16,16] y, float[1,4,16,16] z) {
    p = AveragePool <kernel_shape = [9, 9], pads = [4, 4, 4, 4]> (x)
    y = Relu(p)
    q = AveragePool <kernel_shape = [11, 11], pads = [5, 5, 5, 5]> (x)
    z = Relu(q)
}"""
"""Averages that leave the padding out, with too many divisors: the array divides by the whole window."""
LEFT_TO_THE_HOST = {"AveragePool_0": "E202", "Relu_1": "E203", "AveragePool_2": "E202", "Relu_3": "E203"}
"""What --strict says: the averages are refused, and the activations behind them are not worth a transfer."""


@pytest.mark.parametrize("flag", [("--json",), ("--format", "json"), ("--format=json",)])
def test_a_check_reports_every_problem_at_once(write: WriteModel, flag: tuple[str, ...]) -> None:
    path = write(UNSUPPORTED)
    report = npuc("check", path, "--target", "easynpu", "--strict", *flag)
    assert report.code == 1 and report.json["status"] == "error"
    errors = {error["node"]: error for error in report.json["errors"]}
    assert {node: error["code"] for node, error in errors.items()} == LEFT_TO_THE_HOST
    assert all(error.keys() == PROBLEM for error in errors.values())
    assert all(errors[node]["limit"] for node in ("AveragePool_0", "AveragePool_2"))
    text = npuc("check", path, "--target", "easynpu", "--strict")
    assert (text.code, text.out) == (1, "") and "warning" not in text.err
    assert text.err.count("error[E202]") == text.err.count("error[E203]") == 2


def test_a_check_groups_what_the_host_runs_by_its_cause(write: WriteModel) -> None:
    """A node that the target refuses has the refusal as its cause, though the planner does not offer it alone."""
    path = write(UNSUPPORTED)
    report = npuc("check", path, "--target", "easynpu", "--json")
    assert report.code == 0 and report.json["status"] == "ok" and report.json["errors"] == []
    groups = report.json["groups"]
    assert [(each["code"], each["nodes"], each["count"], each["place"]) for each in groups] == [
        ("E202", ["AveragePool_0"], 1, "host"),
        ("W201", ["Relu_1", "Relu_3"], 2, "host"),
        ("E202", ["AveragePool_2"], 1, "host"),
    ]
    text = npuc("check", path, "--target", "easynpu").done()
    assert "0 of 4 nodes" in text or "NOTHING runs on the NPU" in text
    assert "padding of [5, 5]" in text and "count_include_pad = 1" in text


def test_compiling_tells_the_same_causes_as_a_check(write: WriteModel, tmp_path: Path) -> None:
    path = write(UNSUPPORTED)
    found = npuc("check", path, "--target", "easynpu", "--json").json["groups"]
    report = compiled(path, tmp_path / "o", "--json").json
    assert {part["place"] for part in report["partitions"]} == {"host"}
    told = {(each["op"], each["code"]) for each in report["groups"]}
    assert told == {(each["op"], each["code"]) for each in found} == {("AveragePool", "E202"), ("Relu", "W201")}


def test_a_check_finds_what_compiling_would(write: WriteModel, tmp_path: Path) -> None:
    text = """g (float[1,272,8,8] x) => (float[1,16,8,8] y) {
        y = Conv <kernel_shape = [1, 1]> (x, w)
    }"""
    path = write(text, w=(16, 272, 1, 1))
    npuc("check", path, "--target", "easynpu").done()
    compiled(path, tmp_path / "o", "--isa", "documented", "--strict").refused("E204")
    documented = ("check", path, "--target", "easynpu", "--isa", "documented")
    strict = npuc(*documented, "--strict")
    assert strict.code == 1 and "error[E204]" in strict.err and "--isa extended" in strict.err
    groups = npuc(*documented, "--json").json["groups"]
    assert "E204" in {each["code"] for each in groups} and {each["place"] for each in groups} == {"host"}


def test_a_strict_check_refuses_host_steps(write: WriteModel) -> None:
    path = write("g (float[1,4] x) => (float[1,4] y) { a = Relu(x)\n y = Softmax(a) }")
    npuc("check", path, "--target", "easynpu").done()
    npuc("check", path, "--target", "easynpu", "--strict").refused("E203")


def test_the_version_is_the_package_s() -> None:
    assert npuc("--version").done() == f"npuc, version {package.__version__}\n"


def test_targets_say_their_precisions_the_usual_one_first() -> None:
    found = {each["name"]: each["precisions"] for each in npuc("targets", "--json").json["targets"]}
    assert found["nvdla-full"] == ["int8", "int16", "fp16"] and found["nvdla-small"] == ["int8"]


def test_a_precision_that_the_target_lacks_is_a_usage_error_of_check(digits: Digits) -> None:
    text = npuc("check", digits.model, "--target", "nvdla-small", "--precision", "fp16").usage()
    assert "nvdla-small has no --precision 'fp16'. It has: 'int8'" in text
    assert "runs all of it" in npuc("check", digits.model, "--target", "nvdla-full", "--precision", "fp16").done()


def test_operators_say_what_runs_in_one_precision_only() -> None:
    rows = {row["op"]: row for row in npuc("operators", "--target", "nvdla-full", "--json").json["operators"]}
    assert rows["Exp"]["constraints"].endswith("In int8; else on the host.")
    assert "else on the host" not in rows["Sigmoid"]["constraints"]
