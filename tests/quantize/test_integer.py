"""Integer layers: what they mean, which are chosen, and that last digits change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc import reference
from npuc.errors import ModelError
from npuc.ir import Array, Graph, Node, TensorType
from npuc.onnx_files.export import to_onnx
from npuc.ops import build
from npuc.ops.accumulators import accumulator_bound, requantise
from npuc.ops.interpreter import run
from npuc.program import Program
from npuc.quantize.arithmetic.steadiness import better, octave, round_to_bits, upward
from npuc.quantize.calibration.histograms import EMPTY, histograms
from npuc.quantize.network.build import quantise
from npuc.quantize.network.construction import Quantised
from npuc.quantize.scales.constraints import constraints_of, integer_nodes, tensors_of
from npuc.quantize.scales.zero_points import offset_results
from npuc.reference import session
from npuc.target import Options, Request, target
from tests.compiled import compilation
from tests.passes.networks import network, node
from tests.runtime import RUNTIME

SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(
    ("acc", "shift", "result"),
    # Source: reference, RTL rows 2, 3 and 7, saturated as by the first complete RTL
    [
        (103, 1, 52), (-87, 2, -22), (-24, 3, -3), (-3, 1, -1), (3, 1, 2), (-1, 1, 0), (1, 1, 1), (5, 2, 1),
        (-5, 2, -1), (7, 2, 2), (-7, 2, -2), (6, 2, 2), (-6, 2, -1), (300, 0, 127), (-300, 0, -128), (128, 0, 127),
        (20000, 2, 127), (2**31 - 1, 31, 1), (2**30 - 1, 31, 0), (-(2**30) - 1, 31, -1), (-(2**31), 31, -1),
    ],
)  # fmt: skip
def test_an_accumulator_is_rounded_half_up_and_saturated(acc: int, shift: int, result: int) -> None:
    assert requantise(np.array([acc]), shift).tolist() == [result]
    assert requantise(np.array([acc]), shift, relu=True).tolist() == [max(result, 0)]


def test_the_bound_of_an_accumulator_is_reached() -> None:
    w = np.array([[[[127, -128]]], [[[1, 0]]]], np.int8)
    assert accumulator_bound(w, np.array([5, -7], np.int32)).tolist() == [128 * 255 + 5, 128 + 7]


def _convolution(seed: int, size: int = 1) -> tuple[Graph, Array]:
    """A random IntConv and an input; with size 2 its accumulators leave 24 bits."""
    random = np.random.default_rng(seed)

    def pick(low: int, high: int) -> int:
        return int(random.integers(low, high + 1))

    group = pick(1, 3)
    Ci, Co = group * (pick(1, 5) if size == 1 else 160), group * pick(1, 5)
    kernel, strides, dilations = ((pick(1, 3), pick(1, 3)) for _ in range(3))
    if size == 2:
        kernel, dilations = (3, 3), (1, 1)
    pads = tuple(pick(0, 2) for _ in range(4))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    shape = tuple(max(r - pads[i] - pads[i + 2], 1) + pick(0, 4) for i, r in enumerate(reach))
    values = (-128, -127, 126, 127) if size == 2 else tuple(range(-128, 128))
    w = random.choice(values, (Co, Ci // group, *kernel)).astype(np.int8)
    x = random.choice(values, (1, Ci, *shape)).astype(np.int8)
    taps = w[0].size
    shift = random.integers(0, 32, Co) if pick(0, 3) == 0 else random.integers(6, 10, Co) + int(np.log2(taps)) // 2
    bias = random.integers(-(1 << 12), 1 << 12, Co) << (pick(0, 14) if size == 1 else 14)
    constants = {"w": w, "bias": bias.astype(np.int32), "shift": shift.astype(np.int8)}
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "group": group, "relu": pick(0, 1)}
    node = Node("IntConv", ("x", "w", "bias", "shift"), ("y",), attrs, "conv")
    return build("g", [node], {"x": TensorType(x.shape, "int8")}, ("y",), constants), x


def _looped(graph: Graph, x: Array) -> Array:
    """The convolution in plain loops over outputs and taps, 64-bit integers."""
    (node,) = graph.nodes
    w, bias, shift = (graph.constants[name].astype(np.int64) for name in node.inputs[1:])
    (sh, sw), (dh, dw), pads = node.integers("strides"), node.integers("dilations"), node.integers("pads")
    group, found = node.integer("group"), np.zeros(graph.shape("y"), np.int8)
    per_group, outputs = w.shape[1], len(w) // group
    padded = np.pad(x[0].astype(np.int64), ((0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    for co, oy, ox in product(*map(range, found.shape[1:])):
        first = co // outputs * per_group
        acc = int(bias[co])
        for ci, hk, wk in product(*map(range, w.shape[1:])):
            acc += int(w[co, ci, hk, wk]) * int(padded[first + ci, oy * sh + hk * dh, ox * sw + wk * dw])
        half = (1 << int(shift[co])) >> 1
        found[0, co, oy, ox] = min(max((acc + half) >> int(shift[co]), 0 if node.integer("relu") else -128), 127)
    return found


def _under_onnxruntime(graph: Graph, feeds: dict[str, Array]) -> Array:
    model = to_onnx(graph)
    assert {node.domain for node in model.graph.node} == {""}  # standard operators only
    return np.asarray(session(model).run(None, feeds)[0])


@settings(deadline=None, max_examples=60)
@given(SEEDS)
def test_a_convolution_means_what_the_loops_compute(seed: int) -> None:
    graph, x = _convolution(seed)
    expected = _looped(graph, x)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], expected)
    np.testing.assert_array_equal(_under_onnxruntime(graph, {"x": x}), expected)


@settings(deadline=None, max_examples=25)
@given(SEEDS)
def test_a_convolution_whose_sums_leave_24_bits_is_exact(seed: int) -> None:
    graph, x = _convolution(seed, size=2)
    assert accumulator_bound(graph.constants["w"], graph.constants["bias"]).max() > 1 << 24
    assert [node.op_type for node in to_onnx(graph).graph.node].count("Conv") > 1
    np.testing.assert_array_equal(_under_onnxruntime(graph, {"x": x}), run(graph, {"x": x})["y"])


@pytest.mark.skipif(RUNTIME < (1, 24), reason="this onnxruntime has no ConvInteger for int8")
def test_sums_of_one_channel_that_leave_24_bits_are_exact() -> None:
    random = np.random.default_rng(0)
    w = np.full((2, 2, 100, 100), 120, np.int8)
    w[1] = random.integers(-128, 128, (2, 100, 100))
    x = random.integers(-128, 128, (1, 2, 100, 101)).astype(np.int8)
    constants = {"w": w, "bias": np.array([7, -7], np.int32), "shift": np.array([20, 15], np.int8)}
    graph = build(
        "g",
        [Node("IntConv", ("x", "w", "bias", "shift"), ("y",), {}, "conv")],
        {"x": TensorType(x.shape, "int8")},
        ("y",),
        constants,
    )
    assert "ConvInteger" in {node.op_type for node in to_onnx(graph).graph.node}
    np.testing.assert_array_equal(_under_onnxruntime(graph, {"x": x}), run(graph, {"x": x})["y"])


def test_large_sums_that_cancel_keep_their_last_bits() -> None:
    """Sums beyond 2^25 that the bias cancels but for -100..100: 32-bit floats would lose these."""
    w = np.full((3, 240, 3, 3), 127, np.int8)
    left = np.array([-100, 1, 100])
    bias = (left - 127 * 127 * 2160).astype(np.int32)
    constants = {"w": w, "bias": bias, "shift": np.zeros(3, np.int8)}
    node = Node("IntConv", ("x", "w", "bias", "shift"), ("y",), {}, "conv")
    graph = build("g", [node], {"x": TensorType((1, 240, 3, 3), "int8")}, ("y",), constants)
    x = np.full((1, 240, 3, 3), 127, np.int8)
    assert run(graph, {"x": x})["y"].ravel().tolist() == left.tolist()
    assert _under_onnxruntime(graph, {"x": x}).ravel().tolist() == left.tolist()


ALL = np.stack(np.meshgrid(np.arange(-128, 128), np.arange(-128, 128))).reshape(2, 1, 1, 256, 256).astype(np.int8)


def _pair(op: str, **attrs: Any) -> Graph:
    type_ = TensorType((1, 1, 256, 256), "int8")
    return build("g", [Node(op, ("a", "b"), ("y",), attrs, "pair")], {"a": type_, "b": type_}, ("y",), {})


@pytest.mark.parametrize("shift", [0, 1, 3, 8, 15, 31])
@pytest.mark.parametrize(("op", "relu"), [("IntAdd", 0), ("IntAdd", 1), ("IntMul", 0)])
def test_sums_and_products_of_all_pairs_are_exact(op: str, relu: int, shift: int) -> None:
    graph = _pair(op, shift=shift, **({"relu": 1} if relu else {}))
    a, b = ALL.astype(np.int64)
    exact = ((a + b if op == "IntAdd" else a * b) + ((1 << shift) >> 1)) >> shift
    expected = np.clip(exact, 0 if relu else -128, 127)
    feeds = {"a": ALL[0], "b": ALL[1]}
    np.testing.assert_array_equal(run(graph, feeds)["y"], expected)
    np.testing.assert_array_equal(_under_onnxruntime(graph, feeds), expected)


def test_a_relu_of_every_int8_is_exact() -> None:
    x = np.arange(-128, 128, dtype=np.int8).reshape(1, 256)
    graph = build("g", [Node("IntRelu", ("x",), ("y",), {}, "r")], {"x": TensorType((1, 256), "int8")}, ("y",), {})
    expected = [[max(value, 0) for value in range(-128, 128)]]
    assert run(graph, {"x": x})["y"].tolist() == expected
    assert _under_onnxruntime(graph, {"x": x}).tolist() == expected


@settings(deadline=None, max_examples=30)
@given(SEEDS)
def test_a_table_is_the_line_of_its_segment_for_every_input(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 17))
    starts = np.sort(random.choice(np.arange(-127, 128), count, replace=False))
    starts[0] = -128
    a, b = random.integers(-128, 128, count), random.integers(-(1 << 15), 1 << 15, count)
    shift = int(random.integers(0, 16))
    constants = {"starts": starts.astype(np.int8), "a": a.astype(np.int8), "b": b.astype(np.int32)}
    node = Node("IntTable", ("x", "starts", "a", "b"), ("y",), {"shift": shift}, "table")
    graph = build("g", [node], {"x": TensorType((1, 256), "int8")}, ("y",), constants)
    expected = []
    for x in range(-128, 128):
        k = max(k for k in range(count) if starts[k] <= x)
        expected.append(min(max((int(a[k]) * x + int(b[k]) + ((1 << shift) >> 1)) >> shift, -128), 127))
    x = np.arange(-128, 128, dtype=np.int8).reshape(1, 256)
    assert run(graph, {"x": x})["y"].tolist() == [expected]
    assert _under_onnxruntime(graph, {"x": x}).tolist() == [expected]


@settings(deadline=None, max_examples=30)
@given(SEEDS)
def test_a_prelu_multiplies_by_the_factor_of_the_sign(seed: int) -> None:
    random = np.random.default_rng(seed)
    C = int(random.integers(1, 4))
    factors, shifts = random.integers(-128, 128, (2, C)), random.integers(0, 32, (2, C))
    names = ("p", "ps", "n", "ns")
    values = (factors[0], shifts[0], factors[1], shifts[1])
    constants = {name: value.astype(np.int8) for name, value in zip(names, values, strict=True)}
    shape = (1, C, 16, 16)
    graph = build(
        "g",
        [Node("IntPRelu", ("x", *names), ("y",), {}, "p")],
        {"x": TensorType(shape, "int8")},
        ("y",),
        constants,
    )
    x = np.tile(np.arange(-128, 128, dtype=np.int8).reshape(1, 1, 16, 16), (1, C, 1, 1))
    expected = np.zeros(shape, np.int64)
    for c, value in product(range(C), range(-128, 128)):
        side = int(value < 0)
        shift = int(shifts[side, c])
        result = (value * int(factors[side, c]) + ((1 << shift) >> 1)) >> shift
        expected[0, c].flat[value + 128] = min(max(result, -128), 127)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], expected)
    np.testing.assert_array_equal(_under_onnxruntime(graph, {"x": x}), expected)


@pytest.mark.parametrize(("op", "types", "constants"), [
    ("IntConv", [((1, 3, 4, 4), "float32")], {"w": np.zeros((2, 3, 1, 1), np.int8)}),
    ("IntConv", [((1, 3, 4, 4), "int8")], {"w": np.zeros((2, 4, 1, 1), np.int8)}),
    ("IntAdd", [((1, 3), "int8"), ((1, 4), "int8")], {}),
    ("IntAdd", [((1, 3), "int8"), ((1, 3), "float32")], {}), ("IntRelu", [((1, 3), "float32")], {}),
])  # fmt: skip
def test_wrong_types_are_refused(
    op: str, types: list[tuple[tuple[int, ...], str]], constants: dict[str, Array]
) -> None:
    if constants:
        constants = constants | {"bias": np.zeros(2, np.int32), "shift": np.zeros(2, np.int8)}
    inputs = {f"x{k}": TensorType(shape, dtype) for k, (shape, dtype) in enumerate(types)}
    with pytest.raises(ModelError):
        build("g", [Node(op, (*inputs, *constants), ("y",), {"shift": 0}, "n")], inputs, ("y",), constants)


MODELS = Path(__file__).resolve().parents[2] / "models"
TARGETS = {
    "easynpu": Options(),
    "nvdla-small": Options(),
    "nvdla-full": Options(precision="int16"),
    "nvdla-full in fp16": Options(precision="fp16"),
}


class Disturbed:
    """A session whose float results are off by up to three units in the last place."""

    def __init__(self, session: Any, seed: int) -> None:
        self.session, self.random = session, np.random.default_rng(seed)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """What the session gives, each float a little larger or smaller."""
        return [
            (each * (1 + 2e-7 * self.random.uniform(-1, 1, each.shape))).astype(np.float32)
            if each.dtype == np.float32
            else each
            for each in self.session.run(names, feeds)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


def compiled(name: str, samples: Path) -> Program:
    """Digits for a target."""
    model = MODELS / "digits.onnx"
    return compilation(Request(model, target(name.partition(" ")[0]), TARGETS[name], [samples])).program


@pytest.mark.parametrize("name", TARGETS)
def test_other_last_digits_in_every_float_give_the_same_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.load(MODELS / "digits_calibration.npz") as file:
        np.savez(tmp_path / "few.npz", x=file["x"][:24])
    expected = compiled(name, tmp_path / "few.npz")
    plain = reference.session
    opened: list[int] = []

    def disturbed(*arguments: Any, **more: Any) -> Any:
        opened.append(len(opened))
        return Disturbed(plain(*arguments, **more), len(opened))

    monkeypatch.setattr(reference, "session", disturbed)
    found = compiled(name, tmp_path / "few.npz")
    assert opened and found.files == expected.files
    assert found.manifest["report"]["cycles"] == expected.manifest["report"]["cycles"]


def test_a_histogram_does_not_depend_on_the_order_of_samples_or_their_last_digits() -> None:
    random = np.random.default_rng(0)
    parts = [random.uniform(0, top, 50).astype(np.float32) for top in (0.3, 7.0, 1.0, 2.0)]
    parts[2][0] = 1.0
    one, other = EMPTY, EMPTY
    for part in parts:
        one = one.with_values(part)
    for part in parts[::-1]:
        other = other.with_values(part)
    assert one.width == other.width and (one.counts == other.counts).all()
    below = np.nextafter(np.array([1.0, 2.0, 8.0], np.float32), np.float32(0))
    above = np.nextafter(np.array([1.0, 2.0, 8.0], np.float32), np.float32(9))
    exact, under, over = (EMPTY.with_values(each) for each in (np.array([1, 2, 8], np.float32), below, above))
    assert exact.width == under.width == over.width
    assert (exact.counts == under.counts).all() and (exact.counts == over.counts).all()
    assert exact.largest >= 8


@pytest.mark.parametrize("value", [1e-30, 0.99999999, 1.0, 1.0000001, 3.0, 1e30])
def test_ranges_reach_beyond_what_another_processor_finds(value: float) -> None:
    for found in (octave(value), upward(value, 12)):
        assert value * (1 + 1e-6) < found
    assert octave(value) <= 2.01 * value and upward(value, 12) <= value * (1 + 2**-10)
    assert octave(value) == octave(value * (1 + 1e-7)) and upward(value, 12) == upward(value * (1 + 1e-7), 12)


def test_equal_candidates_stay_and_better_ones_replace() -> None:
    assert not better(1.0, 1.0) and not better(1.0 - 1e-7, 1.0) and not better(0.0, 0.0)
    assert better(0.999, 1.0) and better(0.0, 1e-9)


def test_few_digits_are_left_of_what_is_rounded() -> None:
    found = round_to_bits(np.array([0.0, 1.0, 1.001, -3.3, 1e-20, 65504.0]), 6)
    assert found.tolist()[:3] == [0.0, 1.0, 1.0] and found[3] == -3.3125
    assert (np.abs(found - [0.0, 1.0, 1.001, -3.3, 1e-20, 65504.0]) <= np.abs(found) / 64).all()


RANDOM = np.random.default_rng(7)
SUM = network((1, 16, 8, 8), "y", node("Conv", "x w", "a"), node("Add", "a x", "y"), w=(16, 16, 1, 1))


def feed(graph: Graph, low: float = -1.0) -> dict[str, Array]:
    """Uniform values."""
    return {"x": RANDOM.uniform(low, 1, graph.shape("x")).astype(np.float32)}


def test_operands_of_a_sum_with_factors_have_scales_of_their_own() -> None:
    plain, free = (constraints_of(SUM, SUM.nodes, factors=factors) for factors in (False, True))
    assert (plain.equal, len(plain.ratios)) == ((("a", "x"),), 1)
    assert (free.equal, free.ratios) == ((), ())


def test_a_sum_that_cancels_is_no_finer_than_its_factors_allow() -> None:
    """x - 511/512 x needs finer steps than 1/127 of those of x, but a factor has 8 bits."""
    minus = -511 / 512 * np.eye(16, dtype=np.float32)[..., None, None]
    graph = network((1, 16, 8, 8), "y", node("Conv", "x w", "a"), node("Add", "a x", "y"), w=minus)
    x = feed(graph)
    found = histograms(graph, [x], tensors_of(graph.nodes))
    made = quantise(graph, graph.nodes, found, factors=True)
    assert made.scales["y/int8"] >= made.scales["x/int8"] / 127.5
    assert np.abs(run(made.graph, x)["y"]).max() <= 2 * made.scales["x/int8"]


@pytest.mark.parametrize(
    ("before", "offset"), [(node("Conv", "x w", "a", activation="Relu"), True), (node("Conv", "x w", "a"), False)]
)
def test_an_average_over_a_relu_gets_a_zero_point(before: Node, offset: bool) -> None:
    graph = network(
        (1, 4, 5, 5), "y", before, node("GlobalAveragePool", "a", "b"), node("Conv", "b w", "y"), w=(4, 4, 1, 1)
    )
    x = feed(graph)
    known = histograms(graph, [x], tensors_of(graph.nodes))
    found = offset_results(graph, graph.nodes, known)
    assert ("b" in found) is offset
    if offset:
        assert found["b"].zero == -128
        made = quantise(graph, graph.nodes, {k: v for k, v in known.items() if k not in found}, given=found)
        exact = run(graph, x)["y"]
        assert np.abs(run(made.graph, x)["y"] - exact).max() < 0.03 * np.abs(exact).max()


def quantised(graph: Graph) -> tuple[Quantised, dict[str, Array]]:
    feed = {"x": np.random.default_rng(0).standard_normal(graph.shape("x")).astype(np.float32)}
    feed["x"][:, 0] *= 5  # a channel of its own size
    nodes = integer_nodes(graph, lambda each: each.op in ("Conv", "Relu"))
    return quantise(graph, nodes, histograms(graph, [feed], tensors_of(nodes))), feed


def taps(*channels: int, extent: int = 4) -> Array:
    return np.eye(extent, dtype=np.float32)[list(channels)][..., None, None]


@pytest.mark.parametrize("channels", [(3, 1, 0, 2), (2, 1), (1, 1, 3)])
def test_selected_channels_are_those_of_the_input_in_every_bit(channels: tuple[int, ...]) -> None:
    graph = network((1, 4, 5, 5), "y", node("Relu", "x", "a"), node("Conv", "a w", "y"), w=taps(*channels))
    found, feed = quantised(graph)
    values = run(found.graph, feed, ["a/int8", "y/int8"])
    assert found.scales["a/int8"] == found.scales["y/int8"]
    assert np.array_equal(values["y/int8"], values["a/int8"][:, list(channels)])


def test_one_tap_of_a_larger_kernel_moves_the_image() -> None:
    w = np.zeros((4, 1, 3, 3), np.float32)
    w[:, :, 2, 1] = 1
    conv = node("Conv", "a w", "y", group=4, pads=(1, 1, 1, 1))
    found, feed = quantised(network((1, 4, 5, 5), "y", node("Relu", "x", "a"), conv, w=w))
    values = run(found.graph, feed, ["a/int8", "y/int8"])
    assert np.array_equal(values["y/int8"][:, :, :-1], values["a/int8"][:, :, 1:])


@pytest.mark.parametrize("w", [2 * taps(0, 1, 2, 3), taps(0, 1) + taps(2, 3), 0 * taps(0, 1)])
def test_sums_factors_and_zeros_leave_the_scales_free(w: Array) -> None:
    graph = network((1, 4, 5, 5), "y", node("Relu", "x", "a"), node("Conv", "a w", "y"), w=w)
    found, _ = quantised(graph)
    assert found.scales["a/int8"] != found.scales["y/int8"]
