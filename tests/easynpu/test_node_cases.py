"""The ONNX package's own operator tests: run within three steps, or refused by name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import onnx
import pytest

from npuc.errors import CODES

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "node_cases.py"
_spec = importlib.util.spec_from_file_location("node_cases", SCRIPT)
assert _spec is not None and _spec.loader is not None
node_cases = importlib.util.module_from_spec(_spec)
sys.modules["node_cases"] = node_cases
_spec.loader.exec_module(node_cases)


@pytest.mark.filterwarnings("ignore")
def test_every_case_runs_within_three_steps_or_is_refused_by_name() -> None:
    written = node_cases.PAGE.read_text(encoding="utf-8")
    if f"onnx {onnx.__version__}:" not in written:
        pytest.skip(f"the page was written with another onnx than {onnx.__version__}")
    results = [node_cases.attempt(*case) for case in node_cases.cases()]
    assert all(each.steps <= node_cases.MOST_STEPS for each in results if each.steps is not None)
    assert all(each.reason.split()[0] in CODES for each in results if each.outcome == "refused")
    assert sum(each.outcome == "array" for each in results) >= 120
