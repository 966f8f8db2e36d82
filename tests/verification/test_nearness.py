"""When outputs are hardly more than noise, and when a quantised model's are strange: by numbers."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.ir import Array, Graph
from npuc.verification.criterion import Nearness
from tests.passes.networks import network, node

STEP = 0.1
FLOAT = network((1, 4), "y", node("Relu", "x", "y"))
QUANTISED = network(
    (1, 4), "y", node("FakeQuantize", "x", "a", scale=STEP, zero_point=0, dtype="int8"), node("Relu", "a", "y")
)
SIGNAL = np.array([[1, 2, 2, 4]], np.float32)


@pytest.mark.parametrize(
    ("wanted", "error", "lost"),
    [(SIGNAL, 2.5, True), (SIGNAL, 1.0, False), (SIGNAL, 0.0, False), (0 * SIGNAL, 1.0, False)],
    ids=["0 dB", "8 dB", "exact", "no signal"],
)  # fmt: skip
def test_an_output_is_lost_below_3_db_of_a_signal(wanted: Array, error: float, *, lost: bool) -> None:
    assert bool(Nearness(FLOAT, "int8").lost_outputs({"y": wanted}, {"y": wanted + np.float32(error)})) is lost


def test_integers_are_not_compared() -> None:
    integers = np.array([[1, 2, 3, 4]])
    assert not Nearness(FLOAT, "int8").lost_outputs({"y": integers}, {"y": -integers})


@pytest.mark.parametrize(("graph", "wanted", "error", "far"), [
    (QUANTISED, SIGNAL, 2.5, "y"), (QUANTISED, 0.1 * SIGNAL, 1.9 * STEP, None), (QUANTISED, SIGNAL, 1.0, None),
    (FLOAT, SIGNAL, 2.5, None),
], ids=["far", "within two steps", "8 dB", "no model with scales"])  # fmt: skip
def test_only_an_error_that_rounding_does_not_explain_is_far(
    graph: Graph, wanted: Array, error: float, far: str | None
) -> None:
    found = Nearness(graph, "int8").far({"x": wanted}, {"y": wanted}, {"y": wanted + np.float32(error)})
    assert found == far
