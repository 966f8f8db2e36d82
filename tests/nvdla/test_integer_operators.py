"""NVDLA's integer operators: numpy's meaning against worked numbers, onnxruntime against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from npuc.ir import Array, Graph, Node, TensorType
from npuc.onnx_files.export import OnnxEmitter, to_onnx
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.reference import session
from npuc.targets.nvdla.arithmetic.fixed_point import addends, factor, factors, quantise_weights
from npuc.targets.nvdla.arithmetic.integer import SdpStage
from npuc.targets.nvdla.arithmetic.onnx_forms import emit_scaling
from npuc.targets.nvdla.arithmetic.operators import OPERATORS

SUM, MAX, MIN = 1, 2, 3


def _graph(node: Node, shape: tuple[int, ...], constants: dict[str, Array]) -> Graph:
    inputs = {name: TensorType(shape, "int8") for name in node.inputs if name and name not in constants}
    return build("g", [node], inputs, ("y",), constants, OPERATORS)


def _elementwise(values: list[int], constants: dict[str, Array] | None = None, **attrs: Any) -> list[int]:
    """One channel of values through SDP."""
    names = ("x", *((constants or {}).get("order", ("",) * 5)))
    held = {name: value for name, value in (constants or {}).items() if name != "order"}
    shape = (1, 1, 1, len(values))
    graph = _graph(Node("NvElementwise", names, ("y",), attrs, "n"), shape, held)
    return run(graph, {"x": np.array(values, np.int8).reshape(shape)})["y"].ravel().tolist()


def test_shifts_round_half_away_from_zero_and_saturate() -> None:
    assert _elementwise([-3, -1, 1, 3, 127], converter=(0, 1, 1)) == [-2, -1, 1, 2, 64]
    assert _elementwise([-100, 100], converter=(0, 2, 0)) == [-128, 127]
    assert _elementwise([0, 10], converter=(4, 3, 1)) == [-6, 9]


def test_the_adder_comes_before_the_multiplier_and_relu_last() -> None:
    held = {"order": ("b", "m"), "b": np.full((1, 1, 1), 5, np.int16), "m": np.full((1, 1, 1), 3, np.int16)}
    stage = SdpStage(SUM, 1, 1, 0, 2, 0).as_attr()
    assert _elementwise([1, -20], held, x1=stage) == [8, -8]  # (1 + 10) * 3 / 4 = 8.25, (-20 + 10) * 3 / 4 = -7.5
    relu = SdpStage(SUM, 1, 1, 0, 2, 1).as_attr()
    assert _elementwise([1, -20], held, x1=relu) == [8, 0]


def test_prelu_lets_positive_values_bypass_multiplier_and_shift() -> None:
    held = {"order": ("", "m"), "m": np.full((1, 1, 1), 3, np.int16)}
    assert _elementwise([10, -10], held, x1=SdpStage(0, 0, 1, 1, 3, 0).as_attr()) == [10, -4]


def test_a_table_gives_its_entry_for_every_int8() -> None:
    table = np.arange(255, -1, -1, dtype=np.int16) - 128
    held = {"order": ("", "", "", "", "t"), "t": table}
    assert _elementwise([-128, 0, 127], held) == [127, -1, -128]


def _agrees(graph: Graph, feeds: dict[str, Array]) -> None:
    model = session(to_onnx(graph, graph.outputs))
    np.testing.assert_array_equal(model.run(["y"], feeds)[0], run(graph, feeds)["y"])


STAGES = st.builds(
    SdpStage, st.integers(0, 3), st.integers(0, 12), st.integers(0, 1), st.integers(0, 1), st.integers(0, 20),
    st.integers(0, 1),
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(STAGES, STAGES, st.integers(0, 3), st.integers(1, 30000), st.integers(0, 25), st.integers(0, 1 << 20))
def test_onnxruntime_computes_a_convolution_as_numpy_does(
    x1: SdpStage, x2: SdpStage, kind: int, scale: int, shift: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    shapes = [(1, 1, 1), (6, 1, 1), (6, 4, 5), (6, 1, 1)]
    operands = {
        f"o{number}": random.integers(-32768, 32768, shapes[(number + kind) % 4]).astype(np.int16)
        for number in range(4)
    }
    constants = {"w": random.integers(-128, 128, (6, 4, 3, 3)).astype(np.int8), **operands}
    attrs = {"pads": (1, 1, 1, 1), "x1": x1.as_attr(), "x2": x2.as_attr(), "converter": (kind * 7, scale, shift)}
    graph = _graph(Node("NvConv", ("x", "w", *operands), ("y",), attrs, "n"), (1, 4, 4, 5), constants)
    _agrees(graph, {"x": random.integers(-128, 128, (1, 4, 4, 5)).astype(np.int8)})


@pytest.mark.parametrize("shift", [0, 1, 7, 16, 31])
@pytest.mark.parametrize("factor", [1, 3, -3, 21845, 32767, -32768])
@pytest.mark.parametrize("beyond", [1, 1 << 12])
def test_products_are_rounded_half_away_from_zero(factor: int, shift: int, beyond: int) -> None:
    """Halves, their neighbours and the largest integers, in onnxruntime; expected with Python's integers.

    beyond: a bound by which the product could exceed the short form's range.
    """
    top = 1 << 32
    halves = [odd << max(shift - 1, 0) for odd in (1, 3, 5, 1023, (1 << 17) - 1)]
    around = [each + step for each in (*halves, 0, top) for step in (-2, -1, 0, 1, 2) if each + step <= top]
    values = [sign * each for each in around for sign in (1, -1)]
    emit = OnnxEmitter(_graph(Node("NvElementwise", ("x",), ("y",), {}, "n"), (1, 1, 1, 1), {}), 17)
    emit.node("Identity", [emit_scaling(emit, "x", float(top * beyond), np.int64(factor), shift)], ["y"])
    assert ("Sign" in [each.op_type for each in emit.nodes]) == (top * beyond * abs(factor) >= 1 << 48)
    x, y = (helper.make_tensor_value_info(name, TensorProto.DOUBLE, [len(values)]) for name in "xy")
    held = [numpy_helper.from_array(value, name) for name, value in emit.constants.items()]
    graph = helper.make_graph(emit.nodes, "g", [x], [y], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (found,) = session(model).run(["y"], {"x": np.array(values, np.float64)})
    products = [each * factor for each in values]
    away = [(1 if each > 0 else -1) * ((abs(each) + ((1 << shift) >> 1)) >> shift) for each in products]
    assert found.tolist() == away


@pytest.mark.parametrize("alu", [SUM, MAX, MIN])
@pytest.mark.parametrize("multiply", [0, 1])
def test_onnxruntime_computes_two_maps_as_numpy_does(alu: int, multiply: int) -> None:
    random = np.random.default_rng(alu)
    stage = SdpStage(alu, 3, 0, 0, 0, 0) if not multiply else SdpStage(0, 0, 1, 0, 2, 0)
    names = ("x", "", "", "z", "") if not multiply else ("x", "", "", "", "z")
    attrs = {"x1": SdpStage(multiply=1, shift=1).as_attr(), "x2": stage.as_attr(), "converter": (0, 77, 9)}
    inputs = (*names[:2], "m", *names[3:])
    node = Node("NvElementwise", inputs, ("y",), attrs, "n")
    graph = _graph(node, (1, 5, 3, 4), {"m": np.full((1, 1, 1), 300, np.int16)})
    values = {name: random.integers(-128, 128, (1, 5, 3, 4)).astype(np.int8) for name in ("x", "z")}
    _agrees(graph, values)


@pytest.mark.parametrize("shift", [0, 1, 2, 9])
def test_a_product_of_two_maps_is_rounded_half_away_from_zero(shift: int) -> None:
    """All pairs of some integers; expected with Python's integers. Without a shift there is nothing to round."""
    values = [-128, -127, -3, -2, -1, 0, 1, 2, 3, 127]
    pairs = np.array([(a, b) for a in values for b in values], np.int8)
    attrs = {"x1": SdpStage(multiply=1, shift=shift).as_attr()}
    graph = _graph(Node("NvElementwise", ("x", "", "z"), ("y",), attrs, "n"), (1, 1, 1, len(pairs)), {})
    assert "Sign" not in _operators(graph)
    feeds = {name: pairs[:, at].reshape(1, 1, 1, -1) for at, name in enumerate("xz")}
    (found,) = session(to_onnx(graph, graph.outputs)).run(["y"], feeds)
    products, half = [a * b for a, b in pairs.tolist()], (1 << shift) >> 1
    away = [(1 if each > 0 else -1) * ((abs(each) + half) >> shift) for each in products]
    assert found.ravel().tolist() == [min(max(each, -128), 127) for each in away]


def _operators(graph: Graph) -> set[str]:
    return {node.op_type for node in to_onnx(graph, graph.outputs).graph.node}


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
@settings(deadline=None, max_examples=30)
@given(
    st.booleans(),
    STAGES,
    STAGES,
    st.integers(-9, 9),
    st.integers(1, 30000),
    st.integers(0, 25),
    st.integers(0, 99),
)
def test_onnxruntime_computes_a_pass_of_single_operands_as_numpy_does(
    dtype: type[np.integer],
    tabulated: bool,
    x1: SdpStage,
    x2: SdpStage,
    offset: int,
    scale: int,
    shift: int,
    seed: int,
) -> None:
    """All values of 8 bits, which are looked up, and some of 16 bits, which are not."""
    random = np.random.default_rng(seed)
    constants = {f"o{number}": random.integers(-32768, 32768, (1, 1, 1)).astype(np.int16) for number in range(4)}
    if tabulated and dtype is np.int8:
        constants["t"] = random.integers(-128, 128, 256).astype(np.int16)
    attrs = {"x1": x1.as_attr(), "x2": x2.as_attr(), "converter": (offset, scale, shift)}
    node, shape = Node("NvElementwise", ("x", *constants), ("y",), attrs, "n"), (1, 2, 8, 16)
    graph = build("g", [node], {"x": TensorType(shape, np.dtype(dtype).name)}, ("y",), constants, OPERATORS)
    every = np.arange(256) - 128 if dtype is np.int8 else random.integers(-32768, 32768, 256)
    assert ("GatherElements" in _operators(graph)) == (dtype is np.int8)
    _agrees(graph, {"x": every.astype(dtype).reshape(shape)})


def test_a_pass_of_operands_per_channel_is_not_looked_up() -> None:
    operand = np.array([[[3]], [[-5]]], np.int16)
    node = Node("NvElementwise", ("x", "", "m"), ("y",), {"x1": SdpStage(multiply=1, shift=2).as_attr()}, "n")
    graph = _graph(node, (1, 2, 1, 2), {"m": operand})
    assert "GatherElements" not in _operators(graph)
    found = session(to_onnx(graph, graph.outputs)).run(["y"], {"x": np.array([[[[1, 2]], [[6, -2]]]], np.int8)})
    assert found[0].ravel().tolist() == [1, 2, -8, 3]  # 3 / 4, 6 / 4, -30 / 4 and 10 / 4, rounded half away


@pytest.mark.parametrize("reciprocals", [(65536, 7282), (21846, 21846), (65536, 65536)])
def test_onnxruntime_averages_as_numpy_does(reciprocals: tuple[int, int]) -> None:
    random = np.random.default_rng(3)
    attrs = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2), "reciprocals": reciprocals}
    graph = _graph(Node("NvAveragePool", ("x",), ("y",), attrs, "n"), (1, 5, 7, 8), {})
    _agrees(graph, {"x": random.integers(-128, 128, (1, 5, 7, 8)).astype(np.int8)})


def test_pdp_rounds_twice() -> None:
    """By hand: the sum 100 times 21846 >> 16 is 33 (33.3), times 21846 >> 16 is 11."""
    attrs = {"kernel_shape": (3, 3), "reciprocals": (21846, 21846)}
    graph = _graph(Node("NvAveragePool", ("x",), ("y",), attrs, "n"), (1, 1, 3, 3), {})
    x = np.array([100, 0, 0, 0, 0, 0, 0, 0, 0], np.int8).reshape(1, 1, 3, 3)
    assert run(graph, {"x": x})["y"].ravel().tolist() == [11]


# The numbers of SDP


@settings(deadline=None)
@given(st.floats(1e-6, 32767.0))
def test_a_factor_is_as_near_as_16_bits_allow(ratio: float) -> None:
    multiplier, shift = factor(ratio)
    assert 0 < multiplier <= 32767 and 0 <= shift <= 31
    assert abs(multiplier / 2**shift - ratio) <= max(ratio / 32767, 2.0**-32)


def test_factors_and_addends_share_a_shift_that_holds_the_largest() -> None:
    multipliers, shift = factors(np.array([0.5, -2.0]))
    assert multipliers.tolist() == [4096, -16384] and shift == 13
    values, left = addends(np.array([100000.0, -3.0]))
    assert values.tolist() == [25000, -1] and left == 2


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 20), st.floats(1e-4, 10), st.floats(1e-4, 10), st.floats(0, 1000))
def test_integer_weights_give_the_float_convolution_whatever_the_scales(
    seed: int, x_scale: float, unit: float, bias_size: float
) -> None:
    random = np.random.default_rng(seed)
    w = random.standard_normal((5, 3, 2, 2)) * np.array([1, 0.1, 0.01, 1e-4, 0])[:, None, None, None]
    bias = random.standard_normal(5) * bias_size * unit
    found = quantise_weights(w.astype(np.float32), bias.astype(np.float32), x_scale, unit)
    assert np.abs(found.bias.astype(int)).max() < 32767 + 1 and found.multiplier.min() >= 1
    x = random.integers(-128, 128, (3, 2, 2))
    sums = (found.w.astype(int) * x).sum(axis=(1, 2, 3)) + (found.bias.astype(int) << found.bias_shift)
    results = sums * found.multiplier.astype(int) / 2.0**found.shift
    exact = ((w * x).sum(axis=(1, 2, 3)) * x_scale + bias) / unit
    step = found.multiplier / 2.0**found.shift  # a weight's rounding error is at most half a step
    room = 0.51 * step * np.abs(x).sum() + 0.51 * step * 2.0**found.bias_shift
    assert (np.abs(results - exact) <= room + 1e-6 * np.abs(exact)).all()
