"""Scales: constraints of operators, of all together, and exact factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations, product
from math import inf, log2

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

import npuc
from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.quantize.calibration.histograms import EMPTY, METHODS, Histogram
from npuc.quantize.scales import assignment
from npuc.quantize.scales.assignment import (
    FRACTIONS,
    Ratio,
    ScaleConstraints,
    choose_scales,
    components,
    in_powers_of_two,
    least_cost,
)
from npuc.quantize.scales.constraints import constraints_of, equal_scales, integer_nodes, tensors_of
from npuc.quantize.scales.exact_factors import with_exact_factors
from npuc.samples.loading import Samples
from npuc.target import Options
from npuc.targets.easynpu.machine import parameters as easynpu
from npuc.targets.easynpu.network import quantising as on_easynpu
from npuc.targets.nvdla.machine import parameters as nvdla
from npuc.targets.nvdla.network import quantising as on_nvdla
from tests import onnx_models
from tests.passes.networks import network, node


def _spread(seed: int, size: float) -> Histogram:
    values = np.random.default_rng(seed).standard_normal(500) * size
    return EMPTY.with_values(values.astype(np.float32))


@st.composite
def problems(draw: st.DrawFn, most: int = 8) -> tuple[dict[str, Histogram], ScaleConstraints]:
    """Tensors of any size with constraints as additions, pools and movements give them."""
    count = draw(st.integers(1, most))
    names = [f"t{k}" for k in range(count)]
    histograms = {
        name: EMPTY
        if draw(st.integers(0, 9)) == 0
        else _spread(draw(st.integers(0, 99)), 2.0 ** draw(st.floats(-8, 8)))
        for name in names
    }
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names))
    equal = tuple(draw(st.lists(pairs, max_size=4)))
    ratios = []
    for coarse, fine in draw(st.lists(pairs, max_size=4)):
        exponent = draw(st.sampled_from([0, 0, 8, 12]))  # additions; pools of 2x2 and 7x7
        ratios.append(Ratio(coarse, fine, -exponent, 31 - exponent))
    ceilings = draw(st.dictionaries(st.sampled_from(names), st.sampled_from([6 / 127, 1 / 127]), max_size=2))
    return histograms, ScaleConstraints(equal, tuple(ratios), ceilings)


@settings(deadline=None, max_examples=120)
@given(problems(), st.sampled_from(["mse", "minmax"]))
def test_ties_hold_exactly(problem: tuple[dict[str, Histogram], ScaleConstraints], method: str) -> None:
    histograms, constraints = problem
    scales = choose_scales(histograms, constraints, method)
    assert list(scales) == list(histograms)
    assert all(scale > 0 for scale in scales.values())
    for left, right in constraints.equal:
        assert scales[left] == scales[right]
    for ratio in constraints.ratios:
        exponent = log2(scales[ratio.coarse] / scales[ratio.fine])
        assert exponent == round(exponent)
        assert ratio.least <= exponent <= ratio.most
        # and as the 32-bit floats that are written to the program
        single = np.float32(scales[ratio.coarse]) / np.float32(scales[ratio.fine])
        assert np.frexp(single)[0] == 0.5


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [0.1, 3.0, 40.0])
def test_a_tensor_alone_does_not_exceed_its_ceiling(size: float, method: str) -> None:
    values = np.clip(np.random.default_rng(0).standard_normal(5000) * size, 0, 6).astype(np.float32)
    constraints = ScaleConstraints(ceilings={"y": 6 / 127}, unsaturated=frozenset("y"))
    scales = choose_scales({"y": EMPTY.with_values(values[:9]).with_values(values)}, constraints, method)
    assert scales["y"] <= 6 / 127 * (1 + 1e-9)


def test_a_clip_that_fills_its_range_gets_exactly_its_ceiling() -> None:
    """Values spread evenly over 0..6: 127 * scale = 6, so that saturation is the Clip."""
    values = np.linspace(0, 6, 1000).astype(np.float32)
    scales = choose_scales({"y": EMPTY.with_values(values)}, ScaleConstraints(ceilings={"y": 6 / 127}))
    assert scales["y"] == pytest.approx(6 / 127, rel=1e-12)


def test_free_tensors_get_scales_of_their_own() -> None:
    histograms = {"a": _spread(0, 1.0), "b": _spread(1, 3.0)}
    scales = choose_scales(histograms, ScaleConstraints())
    for name, histogram in histograms.items():
        candidates = np.array([2.0 ** (k / FRACTIONS) for k in range(-20 * FRACTIONS, 20 * FRACTIONS)])
        assert scales[name] == pytest.approx(candidates[np.argmin(histogram.error(candidates))], rel=1e-9)


def test_min_max_scales_saturate_nothing() -> None:
    histograms = {"a": _spread(0, 1.0), "b": _spread(1, 3.0), "c": _spread(2, 0.1)}
    constraints = ScaleConstraints((("a", "b"),), (Ratio("c", "a", 0, 31),))
    scales = choose_scales(histograms, constraints, "minmax")
    for name, histogram in histograms.items():
        assert scales[name] * 127 * (1 + 1e-5) >= histogram.largest


def test_a_tensor_of_zeros_does_not_disturb_the_others() -> None:
    alone = choose_scales({"a": _spread(0, 1.0)}, ScaleConstraints())
    tied = choose_scales({"a": _spread(0, 1.0), "z": EMPTY}, ScaleConstraints((("a", "z"),)))
    assert tied == {"a": alone["a"], "z": alone["a"]}


def _cost(histograms: dict[str, Histogram], scales: dict[str, float]) -> float:
    return sum(
        float(histogram.error(np.array([scales[name]]))[0]) / histogram.energy
        for name, histogram in histograms.items()
        if histogram.energy
    )


@settings(deadline=None, max_examples=40)
@given(problems(most=3))
def test_tiny_groups_get_the_best_scales_there_are(problem: tuple[dict[str, Histogram], ScaleConstraints]) -> None:
    """All bases of an octave, all exponents of every class: at most three classes of +-12 octaves."""
    histograms, constraints = problem
    constraints = ScaleConstraints(constraints.equal, constraints.ratios)
    names = list(histograms)
    best = np.inf
    errors = {
        name: (np.zeros((FRACTIONS, 29)) if not s.energy else np.stack(
            [s.error(2.0 ** (k / FRACTIONS + np.arange(-20, 9))) / s.energy for k in range(FRACTIONS)]))
        for name, s in histograms.items()
    }  # fmt: skip
    linked = {name for each in constraints.ratios for name in (each.coarse, each.fine)}
    linked |= {name for pair in constraints.equal for name in pair}
    groups = [[n] for n in names if n not in linked] + ([[n for n in names if n in linked]] if linked else [])
    if len(linked) == 3 and not _connected(linked, constraints):
        return
    best = 0.0
    for group in groups:
        found = np.inf
        for exponents in product(range(29), repeat=len(group)):
            at = dict(zip(group, exponents, strict=True))
            if all(at[a] == at[b] for a, b in constraints.equal if a in at) and all(
                r.least <= at[r.coarse] - at[r.fine] <= r.most for r in constraints.ratios if r.coarse in at
            ):
                found = min(found, float(sum(errors[n][:, at[n]] for n in group).min()))
        best += found
    assert _cost(histograms, choose_scales(histograms, constraints)) <= best * 1.0001 + 1e-12


def _connected(names: set[str], constraints: ScaleConstraints) -> bool:
    links = [*constraints.equal, *((r.coarse, r.fine) for r in constraints.ratios)]
    reached = {min(names)}
    for _ in names:
        reached |= {b for a, b in links if a in reached} | {a for a, b in links if b in reached}
    return reached == names


CONV = node("Conv", "x w", "a")


@pytest.mark.parametrize("mover", [
    node("Transpose", "a", "y", perm=(0, 2, 3, 1)),
    node("MaxPool", "a", "y", kernel_shape=(2, 2)),
    node("AveragePool", "a", "y", kernel_shape=(2, 2)),
], ids=lambda each: each.op)  # fmt: skip
def test_what_is_only_moved_or_averaged_into_an_output_does_not_saturate(mover: Node) -> None:
    graph = network((1, 4, 6, 6), "y", CONV, mover, w=(4, 4, 1, 1))
    assert constraints_of(graph, graph.nodes).unsaturated == {"a", "y"}
    read = network((1, 4, 6, 6), "z", CONV, mover, node("Sigmoid", "y", "z"), w=(4, 4, 1, 1))
    assert constraints_of(read, read.nodes).unsaturated == {"z"}


def test_what_the_hosts_function_of_an_output_reads_does_not_saturate() -> None:
    graph = network((1, 4, 6, 6), "y", CONV, node("Sigmoid", "a", "y"), w=(4, 4, 1, 1))
    assert constraints_of(graph, graph.nodes).unsaturated == {"y"}
    assert constraints_of(graph, graph.nodes[:1]).unsaturated == {"a", "y"}


def test_a_relu_has_the_scale_of_its_input_unless_that_is_rounded_to_steps_of_its_own() -> None:
    steps = {"scale": 0.5, "zero_point": 0, "dtype": "int8"}
    plain = network((1, 4, 6, 6), "y", CONV, node("Relu", "a", "y"), w=(4, 4, 1, 1))
    assert equal_scales(plain, plain.nodes) == (("a", "y"),)
    for chain in (
        (node("FakeQuantize", "a", "f", **steps), node("Relu", "f", "y")),
        (node("Relu", "a", "r"), node("FakeQuantize", "r", "y", **steps)),
    ):
        graph = network((1, 4, 6, 6), "y", CONV, *chain, w=(4, 4, 1, 1))
        assert equal_scales(graph, graph.nodes) == ()


@pytest.mark.parametrize("operands", ["g a", "a g"])
def test_the_smaller_operand_of_a_product_has_a_power_of_two(operands: str) -> None:
    gate = node("GlobalAveragePool", "a", "g"), node("Mul", operands, "y")
    graph = network((1, 4, 6, 6), "y", CONV, *gate, w=(4, 4, 1, 1))
    assert constraints_of(graph, graph.nodes).powers == ("g",)


Values = Mapping[str, Array]
Exponents = Mapping[str, int]
ON_ARRAY = ("Conv", "Add", "AveragePool", "MaxPool", "Relu")
RANGE = range(-9, 7)
"""Exponents of all assignments."""


def measured(values: Array, exponent: int) -> float:
    """The squared error of int8 steps of 2^exponent relative to the values' energy."""
    step = 2.0**exponent
    rounded = step * np.clip(np.rint(values / step), -127, 127)
    return float(np.square(rounded - values).sum() / np.square(values).sum())


def reaching(values: Array, exponent: int) -> float:
    """The same where no value may saturate."""
    return measured(values, exponent) if np.abs(values).max() <= 127 * 2.0**exponent else inf


def holds(chosen: Exponents, constraints: ScaleConstraints) -> bool:
    equal = all(chosen[a] == chosen[b] for a, b in constraints.equal if {a, b} <= chosen.keys())
    return equal and all(
        each.least <= chosen[each.coarse] - chosen[each.fine] <= each.most
        for each in constraints.ratios
        if {each.coarse, each.fine} <= chosen.keys()
    )


def costs_of(tensors: Values, method: str) -> dict[str, list[float]]:
    error = measured if method == "mse" else reaching
    return {name: [error(each, exponent) for exponent in RANGE] for name, each in tensors.items()}


def cheapest(tensors: Values, constraints: ScaleConstraints, method: str) -> float:
    """The least cost of all assignments in which tensors with equal scales are one."""
    class_of, table = components(tensors, constraints.equal), costs_of(tensors, method)
    leaders = list(dict.fromkeys(class_of.values()))
    cost = [np.sum([table[name] for name in tensors if class_of[name] == leader], axis=0) for leader in leaders]
    place = {name: leaders.index(leader) for name, leader in class_of.items()}
    return least_sum(
        cost, [(place[each.coarse], place[each.fine], each.least, each.most) for each in constraints.ratios]
    )


def least_sum(costs: Sequence[Sequence[float]], bounds: Sequence[tuple[int, int, int, int]]) -> float:
    """The least sum of one cost of each row, over all choices whose numbers differ within the bounds."""
    numbers = np.indices([len(row) for row in costs])
    total = sum(np.asarray(row)[at] for row, at in zip(costs, numbers, strict=True))
    for coarse, fine, low, high in bounds:
        gap = numbers[coarse] - numbers[fine]
        total = np.where((gap >= low) & (gap <= high), total, inf)
    return float(np.min(total))


def greedy(tensors: Values, constraints: ScaleConstraints, method: str, order: tuple[str, ...]) -> float:
    """The cost of each tensor's best exponent that those before it in the order leave; infinite without any."""
    table, chosen, total = costs_of(tensors, method), dict[str, int](), 0.0
    for name in order:
        allowed = [k for k, each in enumerate(RANGE) if holds({**chosen, name: each}, constraints)]
        if not allowed:
            return inf
        best = min(allowed, key=table[name].__getitem__)
        chosen[name], total = RANGE[best], total + table[name][best]
    return total


def solved(tensors: Values, constraints: ScaleConstraints, method: str) -> dict[str, int]:
    histograms = {name: EMPTY.with_values(each.astype(np.float32)) for name, each in tensors.items()}
    scales = choose_scales(histograms, in_powers_of_two(constraints, tensors), method)
    return {name: round(log2(scale)) for name, scale in scales.items()}


def reaches(largest: float, seed: int = 0) -> Array:
    """Values that reach 127 steps of so much, to the last bit of a histogram's bin."""
    values = np.random.default_rng(seed).uniform(-1, 1, 2000)
    return values / np.abs(values).max() * 127 * largest * 0.999


def demanded(graph: Graph) -> tuple[tuple[str, ...], ScaleConstraints]:
    nodes = integer_nodes(graph, lambda each: each.op in ON_ARRAY)
    return tensors_of(nodes), constraints_of(graph, nodes)


def ladder() -> Graph:
    """x -> s = x + a -> t = s + b -> u = t + c, every operand but x from a convolution of its own."""
    convs = [node("Conv", f"x {name}w", name) for name in "abc"]
    sums = [node("Add", "x a", "s"), node("Add", "s b", "t"), node("Add", "t c", "u")]
    return network((1, 4, 4, 4), "u", *convs, *sums, aw=(4, 4, 1, 1), bw=(4, 4, 1, 1), cw=(4, 4, 1, 1))


def test_a_sum_that_cancels_keeps_the_steps_of_the_sum_before_it() -> None:
    """By hand: sums shift right only, so x = a <= s = b <= t = c <= u; s reaches 8 steps of 127, t only 1."""
    tensors, constraints = demanded(ladder())
    largest = {"x": 1, "a": 8, "s": 8, "b": 8, "t": 1, "c": 2, "u": 2}
    values = {name: reaches(largest[name]) for name in tensors}
    expected = {"x": 3, "a": 3, "s": 3, "b": 3, "t": 3, "c": 3, "u": 3}
    assert solved(values, constraints, "minmax") == expected
    first = ("t", "c", "s", "b", "x", "a", "u")
    assert (
        greedy(values, constraints, "minmax", first) == inf
    )  # t at its own 2^0 leaves s nothing that holds its values


def test_coarse_sums_of_fine_operands_take_the_coarsest_steps_that_hold_the_operands() -> None:
    tensors, constraints = demanded(ladder())
    largest = {"x": 1, "a": 2, "s": 2, "b": 0.5, "t": 4, "c": 16, "u": 32}
    assert solved({name: reaches(largest[name]) for name in tensors}, constraints, "minmax") == {
        "x": 1, "a": 1, "s": 1, "b": 1, "t": 4, "c": 4, "u": 5,
    }  # fmt: skip


def branches() -> Graph:
    """A pool of x beside a convolution, joined, reshaped, and added to another convolution's result."""
    return network(
        (1, 4, 4, 4), "y",
        node("Conv", "x aw", "a"), node("MaxPool", "a", "p", kernel_shape=(1, 1), strides=(1, 1)),
        node("Conv", "x bw", "b"), node("Concat", "p b", "c", axis=1),
        node("Reshape", "c", "r", shape=(1, 8, 4, 4)), node("Conv", "x dw", "d"), node("Add", "r d", "y"),
        aw=(4, 4, 1, 1), bw=(4, 4, 1, 1), dw=(8, 4, 1, 1),
    )  # fmt: skip


def test_a_scale_is_shared_through_pool_concat_reshape_and_sum() -> None:
    """By hand: a = p = c = b = r = d; the largest of them is b's, four octaves above a's, and y lies above."""
    tensors, constraints = demanded(branches())
    largest = {"x": 1, "a": 0.25, "p": 0.25, "b": 4, "c": 4, "r": 4, "d": 1, "y": 2}
    names = [name for name in tensors if name in largest]
    found = solved({name: reaches(largest[name]) for name in names}, constraints, "minmax")
    assert found == {"x": 0, **dict.fromkeys("apbcrd", 2), "y": 2}


@pytest.mark.parametrize(("pooled", "exponent"), [(2.0**-3, -3), (2.0**-20, -8)])
def test_an_average_may_be_finer_than_its_input_as_far_as_its_taps_go(pooled: float, exponent: int) -> None:
    """By hand: four taps of at most 127 sum to 2^8, not 2^9, and no shift goes to the left."""
    graph = network((1, 4, 4, 4), "y", node("Conv", "x w", "a"), node(
        "AveragePool", "a", "y", kernel_shape=(2, 2), strides=(2, 2)), w=(4, 4, 1, 1))  # fmt: skip
    _, constraints = demanded(graph)
    values = {"x": reaches(1), "a": reaches(1), "y": reaches(pooled)}
    assert solved(values, constraints, "minmax")["y"] == exponent


@st.composite
def tied(draw: st.DrawFn) -> tuple[list[int], ScaleConstraints]:
    """Octaves of up to five tensors with sums, pools and movements between them."""
    octaves = draw(st.lists(st.integers(-2, 8), min_size=2, max_size=5))
    names = st.sampled_from([f"t{k}" for k in range(len(octaves))])
    pairs = st.tuples(names, names).filter(lambda pair: pair[0] != pair[1])
    ratios = tuple(Ratio(a, b, -least, 31 - least) for (a, b), least in draw(st.lists(
        st.tuples(pairs, st.sampled_from([0, 0, 2, 4])), min_size=1, max_size=5)))  # fmt: skip
    return octaves, ScaleConstraints(tuple(draw(st.lists(pairs, max_size=1))), ratios)


@settings(deadline=None, max_examples=20)
@given(tied())
def test_no_assignment_and_no_greedy_order_is_better(problem: tuple[list[int], ScaleConstraints]) -> None:
    """The solver expects errors of a histogram, and they are measured on the values: 10 % between the two."""
    octaves, constraints = problem
    values = {
        f"t{k}": np.random.default_rng(k).standard_normal(2000) * 2.0**each for k, each in enumerate(octaves)
    }
    found = solved(values, constraints, "mse")
    assert holds(found, constraints)
    total = sum(measured(each, found[name]) for name, each in values.items())
    assert total <= 1.1 * cheapest(values, constraints, "mse")
    assert total <= 1.1 * min(greedy(values, constraints, "mse", order) for order in permutations(values))


COSTS = st.lists(st.integers(0, 50), min_size=6, max_size=6)


@settings(deadline=None, max_examples=150)
@given(st.lists(COSTS, min_size=1, max_size=5), st.data())
def test_elimination_finds_the_least_sum_of_any_costs(costs: list[list[int]], data: st.DataObject) -> None:
    named = {f"n{k}": np.array(each, np.float64) for k, each in enumerate(costs)}
    pairs = st.tuples(st.sampled_from([*named]), st.sampled_from([*named]))
    limits = st.tuples(pairs, st.integers(-3, 0), st.integers(0, 3))
    bounds = [(a, b, low, high) for (a, b), low, high in data.draw(st.lists(limits, max_size=8))]
    found = least_cost(named, bounds)
    assert _within(found, bounds)
    assert sum(named[name][number] for name, number in found.items()) == least_sum(costs, _placed(bounds))


def _placed(bounds: Sequence[tuple[str, str, int, int]]) -> list[tuple[int, int, int, int]]:
    """The bounds with positions in place of names n0, n1, ..."""
    return [(int(coarse[1:]), int(fine[1:]), low, high) for coarse, fine, low, high in bounds]


def _within(at: Mapping[str, int], bounds: Sequence[tuple[str, str, int, int]]) -> bool:
    return all(low <= at[a] - at[b] <= high for a, b, low, high in bounds)


TWO_READERS = {"x": np.array([9.0, 3, 0]), "y": np.array([9.0, 0, 2]), "z": np.array([9.0, 0, 2])}
NOT_FINER = [("y", "x", 0, 2), ("z", "x", 0, 2)]


def test_two_sums_of_one_operand_move_it_together_though_neither_would_alone() -> None:
    """By hand: at 2 each the sum is 4; y or z alone to 1 takes x along, 3 + 0 + 2 = 5; both together 3."""
    assert least_cost(TWO_READERS, NOT_FINER) == {"x": 1, "y": 1, "z": 1}


def test_names_that_are_all_tied_to_each_other_are_chosen_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of at most 3^5 entries: one number to each side, for convex costs as good as all numbers at once."""
    monkeypatch.setattr(assignment, "LARGEST_TABLE", 3**5)
    random = np.random.default_rng(0)
    for _ in range(20):
        cost = {f"n{k}": (np.arange(8.0) - random.integers(0, 8)) ** 2 * random.integers(1, 9) for k in range(5)}
        bounds = [(a, b, -int(random.integers(0, 3)), 3) for a in cost for b in cost if a < b]
        found = least_cost(cost, bounds)
        least = least_sum([row.tolist() for row in cost.values()], _placed(bounds))
        assert sum(cost[name][k] for name, k in found.items()) == least


@pytest.mark.parametrize(
    ("target", "precision", "least"),
    [("easynpu", "int8", 28), ("nvdla-small", "int8", 28), ("nvdla-full", "int16", 70)],
)
def test_a_limit_gives_way_where_its_tensor_shares_a_scale_with_a_larger_one(
    target: str, precision: str, least: float
) -> None:
    """A concatenation of what ends at 6 and what reaches 80: with 6 / 127 as their scale 1.5 dB were left."""
    random = np.random.default_rng(0)
    w, v, u = (random.standard_normal(shape).astype(np.float32) for shape in (*[(8, 8, 1, 1)] * 2, (8, 16, 1, 1)))
    graph = network(
        (1, 8, 6, 6), "y",
        node("Conv", "x w", "a", activation="Clip", min=0.0, max=6.0), node("Conv", "x v", "b"),
        node("Concat", "a b", "c", axis=1), node("Conv", "c u", "y"), w=w, v=10 * v, u=u,
    )  # fmt: skip
    data = Samples({"x": random.standard_normal((8, *graph.shape("x"))).astype(np.float32)})
    options = Options(level="0", precision=precision)
    if target == "easynpu":
        found, _ = on_easynpu.network(graph, data, easynpu.load(), options)
    else:
        found, _ = on_nvdla.network(graph, data, nvdla.load(target), options)
    exact, integer = (
        np.stack([run(each, feed, ["y"])["y"] for feed in data.feeds()]) for each in (graph, found.quantised.graph)
    )
    assert 10 * np.log10(np.square(exact).sum() / np.square(integer - exact).sum()) > least


TYPE = TensorType((1, 2, 3, 3), "float32")
SUMS = (("a", "b", "s"), ("s", "c", "y"))


def _scales(given: dict[str, float], **constraints: object) -> dict[str, float]:
    """The scales of (a + b) + c, where a has another reader."""
    nodes = [Node("Add", ("a", "b"), ("s",)), Node("Add", ("s", "c"), ("y",)), Node("Relu", ("a",), ("z",))]
    graph = build("sums", nodes, dict.fromkeys("abc", TYPE), ("y", "z"), {})
    return with_exact_factors(graph, given, ScaleConstraints(sums=SUMS, **constraints), {})  # pyright: ignore[reportArgumentType]


def test_the_scale_of_a_small_operand_becomes_coarser_to_the_next_whole_factor() -> None:
    """By hand: 1.76 / 64 of the result's step becomes 2 / 64; 40.5 / 64 becomes 41 / 64, after y is known."""
    found = _scales({"a": 1.0, "b": 1.76 / 64, "s": 1.0, "c": 40.5 / 64, "y": 1.0})
    assert found == pytest.approx({"a": 1.0, "b": 2 / 64, "s": 1.0, "c": 41 / 64, "y": 1.0})


def test_factors_of_full_length_stay() -> None:
    given = {"a": 100.4 / 128, "b": 65.5 / 128, "s": 1.0, "c": 1.0, "y": 1.0}
    assert _scales(given) == given


def test_operands_with_other_readers_become_little_coarser() -> None:
    """By hand: 3.5 to 4 would be 14 % for the other reader, too; 40.5 to 41 is 1.2 %."""
    assert _scales({"a": 3.5 / 64, "b": 1.0, "s": 1.0, "c": 1.0, "y": 1.0})["a"] == 3.5 / 64
    assert _scales({"a": 40.5 / 64, "b": 1.0, "s": 1.0, "c": 1.0, "y": 1.0})["a"] == pytest.approx(41 / 64)


@pytest.mark.parametrize(
    "constraints", [{"equal": (("b", "x"),)}, {"powers": ("b",)}, {"ceilings": {"b": 1.0}}, {"unsaturated": {"b"}}]
)
def test_scales_that_something_else_determines_stay(constraints: dict[str, object]) -> None:
    given = {"a": 1.0, "b": 1.76 / 64, "s": 1.0, "c": 1.0, "y": 1.0}
    assert _scales(given, **constraints) == given


POOL = helper.make_node("AveragePool", ["x"], ["m"], kernel_shape=[2, 2], strides=[2, 2])


def _doubled() -> list[onnx.NodeProto]:
    return [POOL, helper.make_node("Add", ["m", "m"], ["y"])]


def _with_its_positive_part() -> list[onnx.NodeProto]:
    return [POOL, helper.make_node("Relu", ["m"], ["r"]), helper.make_node("Add", ["m", "r"], ["y"])]


@pytest.mark.parametrize("nodes", [_doubled(), _with_its_positive_part()])
def test_level_1_is_not_worse_than_level_0_for_a_sum_of_a_tensor_with_itself(nodes: list[onnx.NodeProto]) -> None:
    made = onnx_models.network(nodes, (1, 4, 8, 8))
    x = np.random.default_rng(2).normal(0.3, 1, (60, 4, 8, 8)).astype(np.float32)
    reference = ReferenceEvaluator(made)
    exact = np.concatenate([np.asarray(reference.run(["y"], {"x": each[None]}))[0] for each in x[40:]])
    noise = [_noise(made, x, exact, level) for level in "01"]
    assert noise[1] < noise[0] * 10**0.05  # half a decibel


def _noise(made: onnx.ModelProto, x: NDArray[np.float32], exact: NDArray[np.float32], level: str) -> float:
    program = npuc.compile(made, "easynpu", calibration={"x": x[:40]}, level=level)
    found = np.concatenate([next(iter(program.run({"x": each[None]}).values())) for each in x[40:]])
    return float(np.square(found.astype(np.float64) - exact).sum())
