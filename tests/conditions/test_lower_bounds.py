"""Lower bounds of tensors: by hand, and none above what onnxruntime computes."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

from npuc.conditions.values import LowerBounds
from npuc.frontend import import_model
from npuc.ir import Node
from tests.onnx_models import parse

CONSTANTS = {
    "half": np.float32(0.5), "two": np.float32(2), "three": np.float32(3), "four": np.float32(4),
    "minus": np.float32(-2), "near": np.float32(-0.5), "tiny": np.float32(1e-30), "huge": np.float32(-3e38),
    "nan": np.array([1, np.nan, 1, 1], np.float32), "axes": np.array([1]),
}  # fmt: skip
WINDOW = "kernel_shape = [2, 2]"
INF, TINY = float("inf"), float(np.finfo(np.float32).tiny)
CASES = [
    ("y = Identity(x)", -INF), ("y = Relu(x)", 0), ("y = Sigmoid(x)", 0), ("y = Max(x, half)", 0.5),
    ("y = Clip(x, half, four)", 0.5), ("a = Max(x, four)\n y = Clip(a, minus, half)", 0.5),
    ("a = Max(x, half)\n b = Cast<to = 6>(a)\n y = Cast<to = 1>(b)", 0),
    ("a = Max(x, two)\n b = Cast<to = 6>(a)\n y = Cast<to = 1>(b)", 2),
    ("a = Max(x, minus)\n b = Cast<to = 6>(a)\n y = Cast<to = 1>(b)", -INF),
    ("y = Clip(x, minus, four)", -2), ("a = Max(x, half)\n y = Abs(a)", 0.5),
    ("y = Mul(x, x)", 0), ("a = Max(x, half)\n y = Mul(a, a)", 0.25), ("a = Max(x, tiny)\n y = Mul(a, a)", 0),
    ("a = Max(x, half)\n y = Mul(a, four)", 2), ("a = Max(x, half)\n y = Mul(a, minus)", -INF),
    ("y = Mul(x, four)", -INF), ("y = Add(x, four)", -INF), ("a = Relu(x)\n y = Add(four, a)", 4),
    ("a = Max(x, huge)\n y = Add(a, huge)", -INF), ("a = Relu(x)\n y = Add(a, nan)", -INF),
    ("y = Pow(x, two)", 0), ("y = Pow(x, three)", -INF), ("a = Relu(x)\n y = Pow(a, three)", 0),
    ("a = Max(x, half)\n y = Pow(a, three)", TINY), ("a = Clip(x, half, four)\n y = Sqrt(a)", np.sqrt(0.5)),
    ("a = Relu(x)\n b = Max(x, half)\n y = Concat<axis = 1>(a, b)", 0),
    ("a = Relu(x)\n b = Max(x, half)\n y = Min(a, b)", 0),
    ("a = Max(x, half)\n y = Div(four, a)", 4 / 3.4028235e38),
    ("y = Div(four, x)", -INF), ("a = Clip(x, near, four)\n y = Div(half, a)", -INF),
    ("a = Relu(x)\n b = Max(x, half)\n y = Div(a, b)", 0), ("a = Relu(x)\n y = Mul(a, half)", 0),
    ("a = Clip(x, near, four)\n y = Mul(a, half)", -INF), ("a = Max(x, half)\n y = ReduceSum(a, axes)", 0.5),
    ("a = Max(x, minus)\n y = ReduceSum(a, axes)", -INF),
    ("a = Max(x, minus)\n y = ReduceMean<axes = [1]>(a)", -2),
    (f"a = Max(x, half)\n y = AveragePool<{WINDOW}, pads = [1, 1, 1, 1], count_include_pad = 1>(a)", 0.125),
    ("a = Max(x, minus)\n y = AveragePool<kernel_shape = [2, 2]>(a)", -2),
]  # fmt: skip


@pytest.mark.parametrize(("body", "bound"), CASES, ids=[body.replace("\n", ";") for body, _ in CASES])
def test_a_bound_is_what_operators_and_constants_say(body: str, bound: float) -> None:
    model = parse(f"g (float[1,2,4,4] x) => (float y) {{ {body} }}", 13)
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items() if name in used
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    graph = import_model(model)
    found = LowerBounds(graph.producers, graph.constants).of("y")
    assert found == pytest.approx(bound, rel=1e-6, abs=1e-44)
    x = np.random.default_rng(0).normal(-1, 3, (1, 2, 4, 4)).astype(np.float32)
    computed = np.asarray(onnxruntime.InferenceSession(model.SerializeToString()).run(["y"], {"x": x})[0])
    assert found == -INF or computed.min() >= found - 1e-6 * abs(found)


def test_what_is_no_number_has_no_bound() -> None:
    assert LowerBounds({}, {"words": np.array(["a", "b"])}).of("words") == -INF


def test_a_long_chain_has_a_bound() -> None:
    nodes = [
        Node("Relu", ("x",), ("t0",)),
        *(Node("Identity", (f"t{at}",), (f"t{at + 1}",)) for at in range(5000)),
    ]
    bounds = LowerBounds({node.outputs[0]: node for node in nodes}, {})
    assert bounds.of("t5000") == 0
