"""`npuc sweep`: a model over a grid of machines, and the Pareto fronts of its points."""

from __future__ import annotations

import csv
import pickle
import re
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from unittest.mock import patch

import pytest

from npuc.errors import DoesNotFit, NpucError, Problem
from tests.cli.process import PROBLEM, Outcome, WriteModel, compiled, npuc

CONV = """g (float[1,16,8,8] x) => (float[1,16,8,8] y) {
    y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
}"""
GRID = ("--target", "easynpu", "--grid", "psum_entries=1,64", "--grid", "pe_rows=1,2")


@pytest.fixture
def model(write: WriteModel) -> Path:
    return write(CONV, w=(16, 16, 3, 3))


def sweep(model: Path, *options: object) -> Outcome:
    return npuc("sweep", model, *options, *(() if "--jobs" in options else ("--jobs", 1)))


def test_every_point_is_what_compile_reports_for_its_machine(model: Path, tmp_path: Path) -> None:
    report = sweep(model, *GRID, "--json").json
    assert report["grid"] == {"psum_entries": [1, 64], "pe_rows": [1, 2]}
    places = [(point["parameters"]["psum_entries"], point["parameters"]["pe_rows"]) for point in report["points"]]
    assert places == [(1, 1), (1, 2), (64, 1), (64, 2)]
    for point in report["points"]:
        machine = tmp_path / "m.toml"
        machine.write_text("".join(f"{name} = {value}\n" for name, value in point["parameters"].items()))
        made = compiled(model, tmp_path / "o", "--machine", machine, "--json").json
        assert (point["cycles"], point["memory"]) == (made["cycles"], made["memory"])


def test_no_point_off_the_front_is_better_and_every_other_is_beaten(model: Path) -> None:
    report = sweep(model, *GRID, "--cost", "pe_rows", "--cost", "traffic_bytes", "--json").json
    for cost in ("pe_rows", "traffic_bytes"):
        pairs = [(p["parameters"].get(cost, p.get(cost)), p["cycles"]) for p in report["points"]]
        for point, (paid, cycles) in zip(report["points"], pairs, strict=True):
            beaten = any(p <= paid and c <= cycles and (p, c) != (paid, cycles) for p, c in pairs)
            assert (cost in point["front"]) is not beaten
    # twice the PEs halve the cycles of this layer: both sizes are worth their price
    assert [point["front"] for point in report["points"]][2:] == [["pe_rows"], ["pe_rows", "traffic_bytes"]]


def test_processes_side_by_side_give_the_same_points_in_the_same_order(model: Path) -> None:
    assert sweep(model, *GRID, "--json", "--jobs", 2).out == sweep(model, *GRID, "--json").out


def test_a_machine_that_cannot_be_or_is_too_small_is_a_point_with_its_problems(model: Path) -> None:
    outcome = sweep(model, "--target", "easynpu", "--grid", "pe_rows=1,65", "--json")
    good, bad = outcome.json["points"]
    assert outcome.code == 0 and good["status"] == "ok" and good["front"] == ["peak_bytes", "traffic_bytes"]
    assert bad["status"] == "refused" and bad["front"] == [] and bad["cycles"] is None
    assert set(bad["errors"][0]) == PROBLEM and "pe_rows = 65" in bad["errors"][0]["reason"]
    text = sweep(model, "--target", "easynpu", "--grid", "pe_rows=1,65").done()
    assert text.splitlines()[-1].startswith("pe_rows=65: E305 ")
    none = sweep(model, "--target", "easynpu", "--grid", "weight_words=1,2", "--json")
    assert none.code == 1 and none.json["status"] == "error" and len(none.json["errors"]) == 2


def test_the_other_parameters_are_those_of_the_machine_file(model: Path, tmp_path: Path) -> None:
    machine = tmp_path / "mine.toml"
    machine.write_text("psum_entries = 1\n")
    options = ("--target", "easynpu", "--grid", "pe_rows=1", "--json")
    slow, fast = (sweep(model, *options, *extra).json for extra in (("--machine", machine), ()))
    assert slow["machine"] == "mine" and slow["points"][0]["cycles"] > fast["points"][0]["cycles"]


def test_csv_has_a_column_per_parameter(model: Path) -> None:
    rows = list(csv.DictReader(sweep(model, *GRID, "--format", "csv").done().splitlines()))
    points = sweep(model, *GRID, "--json").json["points"]
    assert [(int(row["psum_entries"]), int(row["pe_rows"])) for row in rows] == [(1, 1), (1, 2), (64, 1), (64, 2)]
    assert [int(row["cycles"]) for row in rows] == [point["cycles"] for point in points]
    assert [row["front"].split() for row in rows] == [point["front"] for point in points]


def test_a_parameter_keeps_its_column_where_the_machine_cannot_be(model: Path) -> None:
    options = ("--target", "nvdla-small", "--grid", "clock_mhz=500,99999999", "--format", "csv")
    rows = list(csv.DictReader(sweep(model, *options).done().splitlines()))
    assert [(row["clock_mhz"], row["status"]) for row in rows] == [("500", "ok"), ("99999999", "refused")]


def test_the_page_draws_every_point_and_refers_to_nothing_outside_itself(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "s.html"
    sweep(
        model, "--target", "easynpu", "--grid", "psum_entries=1,8,64", "--grid", "pe_rows=1,65", "-o", page
    ).done()
    text = page.read_text(encoding="utf-8")
    first, second = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert first.count("<circle") == second.count("<circle") == 3
    assert 'class="dot series1"' in first and "<polyline" in first
    assert text.count("<tr") == 7 and text.count("<li>pe_rows=65") == 0 and text.count("pe_rows=65: E305") == 3
    assert not re.search(r'(src|href)="(?!#)', text) and "@import" not in text and "url(" not in text
    written = page.read_bytes()
    sweep(
        model, "--target", "easynpu", "--grid", "psum_entries=1,8,64", "--grid", "pe_rows=1,65", "-o", page
    ).done()
    assert page.read_bytes() == written


def test_other_targets_have_parameters_of_their_own(model: Path) -> None:
    options = ("--grid", "clock_mhz=500,1000", "--json")
    slow, fast = sweep(model, "--target", "nvdla-small", *options).json["points"]
    assert slow["clock_mhz"] == 500 and fast["clock_mhz"] == 1000 and slow["milliseconds"] > fast["milliseconds"]


@pytest.mark.parametrize(("options", "hint"), [
    (("--grid", "psum_entires=1"), "Did you mean 'psum_entries'?"),
    (("--grid", "name=a,b"), "no parameter 'name'"), (("--grid", "psum_entries"), "NAME=VALUE"),
    (("--grid", "psum_entries="), "NAME=VALUE"), (("--grid", "psum_entries=many"), "a number, not 'many'"),
    (("--grid", "psum_entries=-1"), "a number, not '-1'"), (("--grid", "psum_write_first=1"), "true or false"),
    (("--grid", "pe_rows=1", "--grid", "pe_rows=2"), "twice"),
    (("--grid", "pe_rows=1", "--cost", "pe_row"), "Did you mean 'pe_rows'?"),
    (("--grid", "pe_rows=1", "--jobs", "0"), "--jobs"),
    (("--grid", "pe_rows=1", "--scheduler", "cluster"), "tcp://HOST:PORT"), ((), "--grid"),
])  # fmt: skip
def test_a_wrong_grid_is_a_usage_error(model: Path, options: tuple[str, ...], hint: str) -> None:
    assert hint in npuc("sweep", model, "--target", "easynpu", *options).usage()


def test_a_bad_model_is_no_point(tmp_path: Path) -> None:
    for jobs in (1, 2):
        npuc("sweep", tmp_path / "none.onnx", *GRID, "--jobs", jobs).refused("E101")


def test_errors_keep_their_problems_from_one_process_to_another() -> None:
    problems = [Problem("E301", "a", node="n"), Problem("E202", "b", limit="2")]
    error = pickle.loads(pickle.dumps(NpucError.of(problems)))
    assert isinstance(error, DoesNotFit) and list(error.problems) == problems


def test_a_process_that_is_killed_is_said(model: Path) -> None:
    with patch("concurrent.futures.ProcessPoolExecutor.submit", side_effect=BrokenProcessPool):
        assert "--jobs" in sweep(model, *GRID, "--jobs", 2).refused("E507")


def test_a_cluster_without_dask_or_without_answer_is_refused(model: Path) -> None:
    with patch.dict(sys.modules, {"distributed": None}):
        assert "npuc[dask]" in sweep(model, *GRID, "--scheduler", "tcp://127.0.0.1:1").refused("E507")


def test_a_dask_cluster_gives_the_same_points(model: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="npuc[dask] is not installed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=":0"
    ) as cluster:
        there = sweep(model, *GRID, "--json", "--scheduler", cluster.scheduler_address).out
    assert there == sweep(model, *GRID, "--json").out
