"""Ranges: what values can be, how far they reach, and which sides they have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import npuc
from npuc.driver import compile_model
from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops import build
from npuc.ops.attributes import PADDING
from npuc.ops.integer import convolve
from npuc.program import load, save
from npuc.quantize.arithmetic.tables import domains, reached_domain
from npuc.quantize.arithmetic.weights import node_bound
from npuc.quantize.calibration.histograms import EMPTY, NOTHING, histograms, tensor_values, uniform
from npuc.quantize.scales import zero_points
from npuc.quantize.scales.constraints import tensors_of
from npuc.quantize.scales.model_scales import Steps
from npuc.quantize.scales.results import node_histograms
from npuc.quantize.scales.spans import LARGEST, expect_within_reach
from npuc.quantize.scales.zero_points import IN_BIASES, ZeroPoints, one_sided
from npuc.reference import session
from npuc.samples.loading import Samples
from npuc.target import Options, Request, target
from npuc.verification.metrics import Difference
from tests.compiled import checked
from tests.graphs.compiling import Case, samples_of, verified
from tests.onnx_models import parse
from tests.passes.networks import network, node


def _graph(node: Node, *inputs: str, **constants: Array) -> Graph:
    return build("g", [node], {name: TensorType((1, 2, 3, 3), "int8") for name in inputs}, node.outputs, constants)


@pytest.mark.parametrize("padding", [0, -128])
def test_a_convolution_reaches_its_bound_and_never_exceeds_it(padding: int) -> None:
    random = np.random.default_rng(0)
    w = random.integers(-128, 128, (3, 2, 3, 3)).astype(np.int8)
    bias, shift = np.array([5, -700, 90_000], np.int32), np.array([0, 1, 9], np.int8)
    attrs = {"pads": (1, 1, 1, 1), "padding": padding}
    node = Node("IntConv", ("x", "w", "b", "s"), ("y",), attrs, "y")
    limit = node_bound(_graph(node, "x", w=w, b=bias, s=shift), node)
    assert limit is not None
    reached = 0
    for channel in range(3):
        for sign in (-1, 1):
            worst = np.where(w[channel] * sign > 0, -128, 127).astype(np.int8)[None]
            acc = convolve(node, worst, w)[0, channel] + bias[channel]
            reached = max(reached, int(np.abs(acc).max()) + ((1 << int(shift[channel])) >> 1))
    assert reached <= limit
    if not padding:
        assert reached > 0.98 * limit  # 127 is not 128


@pytest.mark.parametrize(
    ("op", "shift", "expected"), [("IntAdd", 0, 256), ("IntAdd", 3, 260), ("IntMul", 7, 16_448)]
)
def test_sums_and_products(op: str, shift: int, expected: int) -> None:
    node = Node(op, ("x", "z"), ("y",), {"shift": shift}, "y")
    assert node_bound(_graph(node, "x", "z"), node) == expected


def test_a_table_is_bounded_at_the_ends_of_its_segments() -> None:
    starts, a, b = np.array([-128, 10], np.int8), np.array([-3, 2], np.int8), np.array([7, -1000], np.int32)
    node = Node("IntTable", ("x", "t", "a", "b"), ("y",), {"shift": 2, "error_lsb": 0}, "y")
    values = np.arange(-128, 128)
    exact = np.abs(np.where(values < 10, -3 * values + 7, 2 * values - 1000)).max() + 2
    assert node_bound(_graph(node, "x", t=starts, a=a, b=b), node) == exact


def test_a_sum_with_factors_reaches_its_bound() -> None:
    factors, bias = np.array([-90, 127], np.int8), np.array(-70_000, np.int32)
    node = Node("IntSum", ("x", "z", "w", "b"), ("y",), {"shift": 6, "relu": 0}, "y")
    worst = abs(-90 * 127 + 127 * -128 - 70_000) + 32
    limit = node_bound(_graph(node, "x", "z", w=factors, b=bias), node)
    assert limit is not None
    assert worst <= limit < 1.01 * worst  # 127 is not 128


def test_slopes_are_bounded_on_the_side_that_reaches_further() -> None:
    values = {"p": [64, 1], "ps": [6, 0], "n": [-128, 100], "ns": [0, 8]}
    constants = {name: np.array(value, np.int8) for name, value in values.items()}
    node = Node("IntPRelu", ("x", *constants), ("y",), {}, "y")
    assert node_bound(_graph(node, "x", **constants), node) == 128 * 128  # a slope of -128 without a shift


def test_a_movement_has_none() -> None:
    node = Node("MaxPool", ("x",), ("y",), {"kernel_shape": (2, 2)}, "y")
    assert node_bound(_graph(node, "x"), node) is None


def _sigmoid_of(bias: float, op: str = "Sigmoid") -> Any:
    random = np.random.default_rng(3)
    nodes = f"[logits] logits = Conv(x, w, b)\n [scores] y = {op}(logits)"
    w, b = random.standard_normal((4, 8, 1, 1)) * 0.3, np.full(4, bias)
    return parse(f"g (float[1,8,6,6] x) => (float[1,4,6,6] y) {{ {nodes} }}", w=w, b=b)


@pytest.mark.parametrize("op", ["Sigmoid", "Softplus"])
@pytest.mark.parametrize("bias", [-4.0, -9.0, -14.0])
@pytest.mark.parametrize("target", ["easynpu", "nvdla-small", "nvdla-full"])
def test_scores_that_are_all_small_keep_their_accuracy(target: str, bias: float, op: str) -> None:
    model = _sigmoid_of(bias, op)
    x = np.random.default_rng(5).standard_normal((16, 1, 8, 6, 6)).astype(np.float32)
    found = npuc.compile(model, target=target, calibration={"x": x}).run({"x": x})["y"]
    run = session(model.SerializeToString())
    difference = Difference()
    difference.add(np.stack([run.run(None, {"x": each})[0] for each in x]), found)
    assert (difference.sqnr_db or 0) > 25


@pytest.mark.parametrize(
    ("op", "largest", "low"),
    [
        ("Sigmoid", 1.0, -6.25),  # as wide as ever where some result is 1
        ("Sigmoid", np.exp(-10.0), -15.6),  # e^-15.6 is 1/256 of e^-10
        ("Softplus", np.exp(-10.0), -15.6),
        ("Tanh", 0.001, -3.5),  # a small result of it has a small input
        ("Elu", 0.001, -6.25),
    ],
)
def test_a_domain_begins_where_the_largest_result_drowns_the_others(op: str, largest: float, low: float) -> None:
    assert reached_domain(Node(op, ("x",), ("y",)), largest)[0] == pytest.approx(low, abs=0.25)


def _spread(values: Array) -> tuple[float, float]:
    shape = TensorType((1, 4))
    nodes = [Node("Neg", ("x",), ("a",)), Node("Sigmoid", ("a",), ("y",))]
    graph = build("g", nodes, {"x": shape}, ("y",), {})
    found = node_histograms(histograms, graph, Samples({"x": values}), ["x", "a", "y"], graph.nodes)
    assert found["x"].largest == pytest.approx(np.abs(values).max(), rel=1e-2)
    limited = histograms(graph, Samples({"x": values}).feeds(), ["a"], domains(graph, graph.nodes))
    return found["a"].largest, limited["a"].largest


def test_what_a_table_reads_is_limited_by_the_largest_result_of_all_samples() -> None:
    small = np.full((5, 1, 4), 10.0, np.float32)
    large = np.concatenate([small, np.full((1, 1, 4), -2, np.float32)])
    assert _spread(small) == pytest.approx((10.0, 6.25), rel=1e-2)
    assert _spread(large) == _spread(large[::-1]) == pytest.approx((6.25, 6.25), rel=1e-2)


BEFORE_MOVES = {
    "moved, then read by a table": ("t = Reshape(a, k)\n y = Sigmoid(t)", {"a", "t"}),
    "moved twice": ("s = Reshape(a, k)\n t = Transpose<perm = [1, 0]>(s)\n y = Sigmoid(t)", {"a", "s", "t"}),
    "concatenated": ("t = Concat<axis = 0>(a, a)\n y = Sigmoid(t)", {"a", "t"}),
    "halves for two tables": ("s, t = Split<axis = 0>(a)\n y = Sigmoid(s)\n z = Tanh(t)", {"a", "s", "t"}),
    "a half for no table": ("s, t = Split<axis = 0>(a)\n y = Sigmoid(s)\n z = MatMul(t, w)", {"s"}),
    "an output after the move": ("y = Reshape(a, k)\n z = Sigmoid(y)", set[str]()),
    "another reader": ("t = Reshape(a, k)\n y = Sigmoid(t)\n z = MatMul(a, w)", {"t"}),
    "a table before": ("b = Exp(a)\n t = Reshape(b, k)\n y = Sigmoid(t)", {"b", "t"}),
}


@pytest.mark.parametrize("case", BEFORE_MOVES)
def test_what_is_moved_to_tables_is_limited_as_what_they_read(case: str) -> None:
    body, limited = BEFORE_MOVES[case]
    outputs = "float[a,b] y" + (", float[c,d] z" if "z =" in body else "")
    model = parse(
        f"g (float[4,8] x) => ({outputs}) {{ a = MatMul(x, w)\n {body} }}",
        w=np.ones((8, 8), np.float32),
        k=np.array([4, 8]),
    )
    graph = import_model(model)
    assert set(domains(graph, graph.nodes)) == limited | ({"a"} if case == "a table before" else set())
    finite = {name for name, each in domains(graph, graph.nodes).items() if np.isfinite(each).all()}
    assert finite == limited


def test_a_mask_before_a_table_costs_no_accuracy() -> None:
    """A constant mask is added in another shape than the table's: 10 dB before, as -1e4 took the range."""
    random = np.random.default_rng(0)
    mask = np.where(random.random((1, 8, 6, 6)) < 0.5, 0, -1e4).astype(np.float32)
    weights = (random.standard_normal((8, 8, 1, 1)) / 2).astype(np.float32)
    model = parse(
        "g (float[1,8,6,6] x) => (float[1,8,6,6] y) "
        "{ a = Conv(x, w)\n s = Add(a, m)\n b = Sigmoid(s)\n y = Conv(b, w) }",
        w=weights,
        m=mask,
    )
    x = random.standard_normal((8, 1, 8, 6, 6)).astype(np.float32)
    found = npuc.compile(model, target="easynpu", calibration={"x": x}).run({"x": x})["y"]
    run = session(model.SerializeToString())
    difference = Difference()
    difference.add(np.stack([run.run(None, {"x": each})[0] for each in x]), found)
    assert (difference.sqnr_db or 0) > 30


def model_of(power: int) -> onnx.ModelProto:
    """Two layers, with values of about 10 to this power between them."""
    random = np.random.default_rng(0)
    model = parse("g (float[1,8,6,6] x) => (float[1,8,6,6] y) { a = Conv(x, w)\n b = Relu(a)\n y = Conv(b, v) }")
    for name, gain in {"w": 10.0**power, "v": 10.0**-power}.items():
        values = (random.standard_normal((8, 8, 1, 1)) * gain).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


@pytest.mark.parametrize("power", [-37, -32, -28, -20, -14, 0, 16, 17, 37])
@pytest.mark.parametrize("name", ["easynpu", "nvdla-small", "bm1684"])
def test_values_of_any_size_are_accurate(name: str, power: int, tmp_path: Path) -> None:
    """12 dB are asked for. Before, ranges beyond 1e14 and below 1e-15 gave 0 to 2 dB, and E502 beyond 1e18."""
    onnx.save(model_of(power), tmp_path / "m.onnx")
    program, _ = compile_model(Request(tmp_path / "m.onnx", target(name), Options(level="0")))
    save(program, tmp_path / "out.npu")
    program = load(tmp_path / "out.npu")
    assert checked(program, tmp_path)["status"] == "ok"
    hosted = not program.manifest["report"]["instructions"]
    assert hosted == (not -31 < power < 17)


@pytest.mark.parametrize("exponent", [-99, -70, -60, -50, 0])
@pytest.mark.parametrize("name", ["easynpu", "nvdla-small", "nvdla-full", "bm1684"])
def test_tiny_inputs_keep_their_resolution(name: str, exponent: int) -> None:
    """The quality of int8 does not depend on the size of the values. Before, it was 0 dB from 2^-56 down."""
    model = parse("g (float[1,4,8,8] x) => (float[1,4,1,1] y) { a = Relu(x)\n y = GlobalAveragePool(a) }")
    x = (np.random.default_rng(1).standard_normal((8, 4, 8, 8)) * 2.0**exponent).astype(np.float32)
    program = npuc.compile(model, name, calibration=x, precision="int8", strict=True)
    wanted = np.maximum(x.astype(np.float64), 0).mean(axis=(2, 3), keepdims=True)
    error = program.run(x)["y"].reshape(wanted.shape) - wanted
    assert np.square(error).sum() < 1e-4 * np.square(wanted).sum()


def test_values_too_small_for_a_scale_are_refused_by_name() -> None:
    model = parse("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Relu(x) }")
    x = np.full((1, 4, 8, 8), 2.0**-110, np.float32)
    with pytest.raises(NpucError, match="too small for a scale") as error:
        npuc.compile(model, "easynpu", calibration=x, strict=True)
    assert {each.code for each in error.value.problems} == {"E205"}
    hosted = npuc.compile(model, "easynpu", calibration=x)
    np.testing.assert_array_equal(hosted.run(x)["y"], x)


def test_without_the_host_they_are_refused_by_name(tmp_path: Path) -> None:
    onnx.save(model_of(20), tmp_path / "m.onnx")
    with pytest.raises(NpucError, match="would saturate") as error:
        compile_model(Request(tmp_path / "m.onnx", target("easynpu"), Options(strict=True)))
    assert {each.code for each in error.value.problems} == {"E205"}


@pytest.mark.parametrize(("largest", "within"), [
    (LARGEST * 0.999, True), (LARGEST * 1.001, False), (NOTHING * 1.001, True), (NOTHING * 0.999, False),
    (0, True),
])  # fmt: skip
@pytest.mark.parametrize("place", ["x", "y"])
def test_the_largest_and_the_smallest_scale_are_the_borders(largest: float, within: bool, place: str) -> None:
    node = Node("Relu", ("x",), ("y",), {}, "n")
    found = {name: uniform(largest if name == place else 1.0) for name in ("x", "y")}
    if within:
        expect_within_reach([node], found)
        return
    with pytest.raises(NpucError) as error:
        expect_within_reach([node], found)
    assert [(each.node, each.tensor) for each in error.value.problems] == [("n", place)]


ONE = np.ones((1, 1, 1, 1), np.float32)


def found(graph: Graph, x: Array, zero_points: ZeroPoints = IN_BIASES) -> Mapping[str, Steps]:
    """The steps for tensors of a graph all of whose nodes are integer, on one sample."""
    data = Samples({"x": x[None]})
    known = node_histograms(histograms, graph, data, tensors_of(graph.nodes), graph.nodes)
    return one_sided(graph, graph.nodes, list(data.feeds()), known, zero_points)


def line(*nodes: Node, extent: int = 4096, output: str = "y", **constants: Array) -> Graph:
    """Nodes between convolutions of one channel with the weight 1."""
    return network((1, 1, 1, extent), output, node("Conv", "x i", "a"), *nodes, i=ONE, **constants)


def ramp(low: float, high: float, extent: int = 4096) -> Array:
    """Values evenly spread over a range."""
    return np.linspace(low, high, extent, dtype=np.float32).reshape(1, 1, 1, -1)


HARDSWISH = (node("HardSwish", "a", "h"), node("Conv", "h i", "y"))


def test_a_hard_swish_needs_nothing_below_3_and_gives_nothing_below_three_eighths() -> None:
    steps = found(line(*HARDSWISH), ramp(-20, 9))
    read, written = steps["a"], steps["h"]
    assert -3.3 < (-128 - read.zero) * read.scale <= -2.9
    assert 8.5 < (127 - read.zero) * read.scale < 9.6
    assert -0.5 < (-128 - written.zero) * written.scale <= -0.3
    assert 8.5 < (127 - written.zero) * written.scale < 9.6
    assert written.scale < 9 / 127 * 0.6  # steps are little more than half as large


def test_what_was_seen_on_these_samples_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, feeds = line(*HARDSWISH), [{"x": ramp(-20, 9)}]
    known = node_histograms(histograms, graph, Samples({"x": feeds[0]["x"][None]}), ["a", "h"], graph.nodes)
    wider = {
        **known,
        "h": EMPTY.with_values(np.array([2.0**20], np.float32)),
    }  # limits of "a" do not depend on "h"
    asked: list[list[str]] = []

    def noted(
        graph: Graph, feeds: Iterable[Mapping[str, Array]], names: Sequence[str]
    ) -> Iterator[dict[str, Array]]:
        asked.append([*names])
        yield from tensor_values(graph, feeds, names)

    monkeypatch.setattr(zero_points, "tensor_values", noted)
    alone = one_sided(graph, graph.nodes, feeds, known, IN_BIASES)
    seen: zero_points.Sides = {}
    for histograms_of in (known, known, wider):
        again = one_sided(graph, graph.nodes, feeds, histograms_of, IN_BIASES, seen)
        assert again["a"] == alone["a"]
    assert asked == [["a", "h"], ["a", "h"]]
    other = line(node("Sigmoid", "a", "h"), node("Conv", "h i", "y"))  # another range of "a" matters
    one_sided(other, other.nodes, feeds, known, IN_BIASES, seen)
    assert asked[2:] == [["a"]]


def test_logits_saturate_nowhere_however_rare_the_largest_are() -> None:
    """4,095 values from -6 to -5 and one of 3: the mean square alone would cut it off."""
    x = ramp(-6, -5)
    x[..., -1] = 3
    steps = found(line(node("Sigmoid", "a", "s"), node("Conv", "s i", "y")), x)["a"]
    assert (-128 - steps.zero) * steps.scale <= -6
    assert (127 - steps.zero) * steps.scale >= 3
    assert steps.scale < 6 / 127  # what it would be with the zero point 0, or less


def test_values_even_around_0_keep_0() -> None:
    steps = found(line(node("Tanh", "a", "t"), node("Conv", "t i", "y")), ramp(-3, 3))
    assert steps == {}


@pytest.mark.parametrize(
    "nodes",
    [
        (node("HardSwish", "a", "h"), node("Mul", "h a", "y")),
        (node("HardSwish", "a", "h"), node("MaxPool", "h", "m", kernel_shape=(1, 2), strides=(1, 2)),
         node("Conv", "m i", "y")),
    ],
)  # fmt: skip
def test_what_products_and_maxima_read_keeps_0(nodes: tuple[Node, ...]) -> None:
    assert "h" not in found(line(*nodes), ramp(-20, 9))


def test_outputs_and_targets_without_such_tables_keep_0() -> None:
    assert set(found(line(*HARDSWISH, output="y h"), ramp(-20, 9))) == {"a"}
    assert found(line(*HARDSWISH), ramp(-20, 9), ZeroPoints(IN_BIASES.reads)) == {}


def test_a_result_is_no_finer_than_its_weights_allow() -> None:
    """A weight of 100 on values up to 16: a step of the input is 1600 / 127, and at most 64 steps of the result.

    The Sigmoid alone would take steps of 6.35 / 254, as it needs -0.1 to 6.25.
    """
    graph = network(
        (1, 1, 1, 64), "y", node("Conv", "x j", "a"), node("Sigmoid", "a", "s"), node("Conv", "s i", "y"),
        i=ONE, j=100 * ONE,
    )  # fmt: skip
    x = np.zeros((1, 1, 1, 64), np.float32)
    x[..., 0], x[..., 1] = 16, -0.001
    steps = found(graph, x)
    assert "a" not in steps or steps["a"].scale >= 1600 / 127 / 64


@pytest.mark.parametrize("machine", [None, "large"])
def test_a_network_of_tables_and_padding_is_exact_at_the_highest_level(
    machine: str | None, tmp_path: Path
) -> None:
    """Zero points go through tables, and through convolutions whose windows reach into padding."""
    random = np.random.default_rng(3)
    w = {name: (random.standard_normal(shape) * 0.4).astype(np.float32) for name, shape in (
        ("u", (6, 3, 3, 3)), ("v", (6, 1, 3, 3)), ("t", (4, 6, 1, 1)))}  # fmt: skip
    pads = {"pads": (1, 1, 1, 1)}
    graph = network(
        (1, 3, 9, 7), "y",
        node("Conv", "x u", "a", **pads), node("HardSwish", "a", "h"), node("Conv", "h v", "d", group=6, **pads),
        node("Sigmoid", "d", "s"), node("Conv", "s t", "y"), **w,
    )  # fmt: skip
    case, feeds = Case("easynpu", "int8", machine=machine, level="2"), samples_of(graph, 24)
    made, steps = target("easynpu").quantise(graph, Samples(feeds), case.options)  # type: ignore[attr-defined]
    assert any(step.kept and "offsets" in step.name for step in steps)
    assert {"a/int8", "h/int8"} <= made.quantised.zeros.keys()
    assert PADDING(made.quantised.graph.producers["d/int8"]) == made.quantised.zeros["h/int8"]
    assert verified(graph, case, tmp_path, 24)["bit_exact"]
