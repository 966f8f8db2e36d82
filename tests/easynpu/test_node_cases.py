"""ONNX's own operator test cases: the selection, a part of them, and the page that has them all."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "node_cases.py"
_spec = importlib.util.spec_from_file_location("node_cases", SCRIPT)
assert _spec is not None and _spec.loader is not None
node_cases: Any = importlib.util.module_from_spec(_spec)
sys.modules["node_cases"] = node_cases
_spec.loader.exec_module(node_cases)

pytestmark = [
    pytest.mark.xdist_group("onnx's node cases"),  # onnx makes them once a process
    pytest.mark.skipif(
        onnx.__version__ != node_cases.ONNX_VERSION,
        reason=f"the cases are those of onnx {node_cases.ONNX_VERSION}, not {onnx.__version__}",
    ),
]


@pytest.fixture(scope="module")
def selected() -> list[Any]:
    return list(node_cases.cases(node_cases.CNN_OPERATORS))


def test_the_selection_is_193_float_cases_and_68_with_integer_inputs(selected: list[Any]) -> None:
    assert sum(not case.side for case in selected) == 193
    assert sum(case.side for case in selected) == 68


def test_every_third_case_runs_within_three_steps_or_is_refused(selected: list[Any]) -> None:
    outcomes = {case.name: node_cases.outcome(case) for case in selected[::3]}
    assert [name for name, each in outcomes.items() if not each.good] == []
    written = node_cases.PAGE.read_text(encoding="utf-8")
    for name, each in outcomes.items():
        (result,) = re.findall(rf"^\| {name} \| \w+ \| ([^|]*) \|", written, re.MULTILINE)
        assert result.startswith(each.refusal if each.kind == "refused" else f"{each.kind}, "), name


def test_the_page_counts_at_least_120_cases_that_run() -> None:
    written = node_cases.PAGE.read_text(encoding="utf-8")
    run, total = map(int, re.findall(r"further inputs constant: (\d+) of (\d+) run", written)[0])
    assert total == 193 + 68 and run >= 120
    assert all(float(steps) <= 3 for steps in re.findall(r"(?:array|host), ([\d.]+)", written))
