"""The table search: at most 1 LSB from the function rounded, for every input, function and scale."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.ir import Array
from npuc.quantize.arithmetic.tables import SegmentTable
from npuc.targets.easynpu.layers.tables import best_table

INPUTS = range(-128, 128)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


# name: the function, in plain Python, and the largest |y| worth representing (the scale of y is that / 127)
FUNCTIONS: dict[str, tuple[Callable[[float], float], float]] = {
    "sigmoid": (sigmoid, 1.0),
    "hard_sigmoid": (lambda x: min(max(0.2 * x + 0.5, 0.0), 1.0), 1.0),
    "hard_sigmoid_sixth": (lambda x: min(max(x / 6 + 0.5, 0.0), 1.0), 1.0),
    "tanh": (math.tanh, 1.0),
    "erf": (math.erf, 1.0),
    "hard_swish": (lambda x: x * min(max(x / 6 + 0.5, 0.0), 1.0), math.inf),
    "swish": (lambda x: x * sigmoid(x), math.inf),
    "gelu": (lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))), math.inf),
    "mish": (lambda x: x * math.tanh(softplus(x)), math.inf),
    "softplus": (softplus, math.inf),
    "elu": (lambda x: x if x > 0 else math.expm1(x), math.inf),
    "leaky_relu": (lambda x: x if x > 0 else 0.01 * x, math.inf),
    "leaky_relu_steep": (lambda x: x if x > 0 else 0.3 * x, math.inf),
    "exp": (math.exp, math.exp(3)),
    "clip": (lambda x: min(max(x, -1.0), 1.0), 1.0),
    "clip_above_zero": (lambda x: min(max(x, 0.25), 2.5), 2.5),
    "abs": (abs, math.inf),
}
X_SCALES = (1 / 64, 0.02, 1 / 32, 0.0371, 1 / 16, 0.083, 1 / 8, 0.17, 1 / 4)


def values(name: str, x_scale: float, part: float = 1.0) -> Array:
    """f(x) in units of a y scale that covers this part of the function's range over int8 x."""
    function, limit = FUNCTIONS[name]
    exact = [function(x * x_scale) for x in INPUTS]
    largest = min(max(map(abs, exact)), limit) * part
    return np.array(exact) / (largest / 127)


def rounded(value: float) -> int:
    return min(max(math.floor(value + 0.5), -128), 127)


def result(table: SegmentTable, x: int) -> int:
    """The formula, on Python integers."""
    segment = [start <= x for start in table.starts.tolist()].count(True) - 1
    acc = int(table.a[segment]) * x + int(table.b[segment])
    half = 1 << (table.shift - 1) if table.shift else 0
    return min(max((acc + half) >> table.shift, -128), 127)


def distances(table: SegmentTable, exact: Array) -> list[int]:
    """|result - rounded value| per input; 0 where the value lies on a tie and both roundings are right."""
    found = [abs(result(table, x) - rounded(value)) for x, value in zip(INPUTS, exact, strict=True)]
    constraints = [abs(value - math.floor(value) - 0.5) < 1e-3 for value in exact]
    return [0 if tie and each == 1 else each for each, tie in zip(found, constraints, strict=True)]


def fits_the_block(table: SegmentTable) -> bool:
    starts = table.starts.astype(int)
    return (
        1 <= len(starts) == len(table.a) == len(table.b) <= 16
        and starts[0] == -128
        and bool((np.diff(starts) > 0).all())
        and (table.starts.dtype, table.a.dtype, table.b.dtype) == (np.int8, np.int8, np.int32)
        and 0 <= table.shift <= 31
    )


@pytest.mark.parametrize("part", [1.0, 0.4], ids=["whole_range", "saturating"])
@pytest.mark.parametrize("x_scale", X_SCALES, ids="{:.3f}".format)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_result_is_more_than_one_lsb_off(name: str, x_scale: float, part: float) -> None:
    exact = values(name, x_scale, part)
    table = best_table(exact)
    assert fits_the_block(table)
    assert max(abs(result(table, x) - rounded(value)) for x, value in zip(INPUTS, exact, strict=True)) <= 1
    assert max(distances(table, exact)) <= table.error <= 1


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("tanh", "erf")])
def test_all_but_the_steepest_functions_are_exact(name: str) -> None:
    """But for ties: 16 free breakpoints give a function's every result unless it bends too much."""
    assert all(best_table(values(name, x_scale)).error == 0 for x_scale in (1 / 64, 1 / 16, 1 / 4))


def test_a_table_takes_less_than_twenty_milliseconds() -> None:
    wanted = [values(name, x_scale) for name in FUNCTIONS for x_scale in X_SCALES]
    begin = time.process_time()
    for exact in wanted:
        best_table(exact)
    assert (time.process_time() - begin) / len(wanted) < 0.02


def test_where_every_table_has_errors_one_with_the_fewest_is_chosen() -> None:
    """The one with the fewest segments, twelve, has eight."""
    exact = values("mish", 1 / 32, 0.4)
    assert sum(distances(best_table(exact), exact)) == 6


@st.composite
def piecewise_linear(draw: st.DrawFn) -> tuple[Array, int]:
    """Results of a random table, and its number of segments."""
    count = draw(st.integers(1, 16))
    first = draw(st.lists(st.integers(-127, 127), min_size=count - 1, max_size=count - 1, unique=True))
    shift = draw(st.integers(0, 10))
    line = st.tuples(st.integers(-128, 127), st.integers(-(1 << 17), 1 << 17))
    lines = draw(st.lists(line, min_size=count, max_size=count))
    a, b = np.array(lines).T
    starts = np.array([-128, *sorted(first)])
    table = SegmentTable(starts.astype(np.int8), a.astype(np.int8), b.astype(np.int32), shift, 0)
    return np.array([result(table, x) for x in INPUTS], np.float64), count


@given(piecewise_linear())
@settings(max_examples=60, deadline=None)
def test_what_a_table_can_compute_is_found_with_as_few_segments(known: tuple[Array, int]) -> None:
    exact, segments = known
    table = best_table(exact)
    assert fits_the_block(table)
    assert table.error == 0
    assert [result(table, x) for x in INPUTS] == exact.astype(int).tolist()
    assert len(table.starts) <= segments


@given(st.lists(st.floats(-300, 300), min_size=256, max_size=256))
@settings(max_examples=10, deadline=None)
def test_the_error_of_a_hopeless_function_is_stated(exact: list[float]) -> None:
    table = best_table(np.array(exact))
    assert fits_the_block(table)
    assert max(distances(table, np.array(exact))) <= table.error


def test_where_a_function_has_no_value_any_result_will_do() -> None:
    exact = np.array([math.sqrt(x) * 8 if x >= 0 else math.nan for x in INPUTS])
    table = best_table(exact)
    assert table.error <= 1
    assert max(abs(result(table, x) - rounded(exact[x + 128])) for x in range(128)) <= 1


@pytest.mark.parametrize("value", [0.0, 17.2, 1e9, math.inf, -math.inf])
def test_a_constant_takes_one_segment(value: float) -> None:
    table = best_table(np.full(256, value))
    assert len(table.starts) == 1
    assert {result(table, x) for x in INPUTS} == {min(max(round(min(max(value, -128), 127)), -128), 127)}


def test_the_identity_takes_one_segment() -> None:
    table = best_table(np.array(INPUTS, np.float64))
    assert len(table.starts) == 1
    assert [result(table, x) for x in INPUTS] == list(INPUTS)
