"""The scales of every integer operator against float arithmetic on the same int8 inputs; its accumulators' range.

Expected: onnxruntime's result of the float operator on what the integers stand for, in steps of the output. An
exact operator may be off by its one rounding; coefficients of 8 bits add their own error times what they meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.frontend import import_model
from npuc.ir import Array, Graph, Node
from npuc.onnx_files.export import to_onnx
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.pipeline import run_passes
from npuc.quantize.arithmetic.weights import node_bound
from npuc.quantize.improvement.search import TrialNetwork
from npuc.quantize.network.construction import Quantised
from npuc.quantize.scales.constraints import average_kernel
from npuc.reference import session
from npuc.regions.planning import passes_of
from npuc.samples.loading import Samples
from npuc.target import Options, target
from npuc.targets.easynpu.machine import parameters
from npuc.targets.easynpu.network import quantising

NODES: Mapping[str, str] = {
    "concat of different scales": "a = Conv(x, w) b = Mul(a, hundredth) c = Concat<axis=1>(a, b) y = Conv(c, v)",
    "squeeze-excite": """a = Conv(x, w) m = GlobalAveragePool(a) n = Conv(m, w) r = Relu(n) s = Conv(r, w)
        t = HardSigmoid<alpha=0.2, beta=0.5>(s) p = Mul(a, t) y = Conv(p, w)""",
    "resize, linear": 'a = Conv(x, w) r = Resize<mode="linear">(a, , scales) y = Conv(r, w)',
    "resize, nearest": 'a = Conv(x, w) r = Resize<mode="nearest">(a, , scales) y = Conv(r, w)',
    "softmax": "a = Conv(x, w) s = Softmax<axis=1>(a) y = Conv(s, w)",
    "residual": "a = Conv(x, w) r = Relu(a) b = Conv(r, w) c = Add(a, b) d = Relu(c) y = Conv(d, w)",
    "centred squares": "a = Conv(x, w) m = ReduceMean<axes=[2,3]>(a) c = Sub(a, m) t = Tanh(c) y = Mul(t, t)",
}
EXACT = (
    "MaxPool", "GlobalMaxPool", "Concat", "Transpose", "Reshape", "Slice", "DepthToSpace", "IntRelu", "Identity",
)  # fmt: skip


def _model(nodes: str, random: np.random.Generator) -> onnx.ModelProto:
    values = {
        "w": random.standard_normal((6, 6, 1, 1)) / 2,
        "v": random.standard_normal((6, 12, 1, 1)) / 3,
        "hundredth": np.full((1, 6, 1, 1), 0.01),
        "scales": np.array([1, 1, 2, 2]),
    }
    header = '<ir_version: 8, opset_import: ["": 13]> g (float[1,6,4,4] x) => (float y)'
    model = onnx.parser.parse_model(f"{header} {{ {nodes} }}")
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value.astype(np.float32), name)
        for name, value in values.items()
        if any(name in node.input for node in model.graph.node)
    )
    return onnx.shape_inference.infer_shapes(model)


def _annotated(model: onnx.ModelProto, samples: Array, random: np.random.Generator) -> onnx.ModelProto:
    """The model with every tensor rounded to steps of its own, which hold its values with some room."""
    inner = [name for node in model.graph.node for name in node.output]
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in inner)
    values = [session(probe).run(inner, {"x": each}) for each in samples]
    ranges = {name: np.stack(column) for name, column in zip(inner, zip(*values, strict=True), strict=True)}
    ranges["x"] = samples
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    renamed: dict[str, str] = {}

    def rounded(name: str) -> list[onnx.NodeProto]:
        low, high = min(float(ranges[name].min()), 0.0), max(float(ranges[name].max()), 0.0)
        scale = (high - low) * random.uniform(0.9, 1.3) / 255
        zero = np.clip(np.rint(-128 - low / scale), -128, 127)
        constants = {f"{name}_s": np.float32(scale), f"{name}_z": np.int8(zero)}
        result.graph.initializer.extend(onnx.numpy_helper.from_array(np.array(v), k) for k, v in constants.items())
        renamed[name] = f"{name}_r"
        make = onnx.helper.make_node
        return [
            make("QuantizeLinear", [name, *constants], [f"{name}_q"]),
            make("DequantizeLinear", [f"{name}_q", *constants], [f"{name}_r"]),
        ]

    result.graph.node.extend(rounded("x"))
    for node in model.graph.node:
        inputs = [renamed.get(name, name) for name in node.input]
        del node.input[:]
        node.input.extend(inputs)
        result.graph.node.extend([node, *rounded(node.output[0])])
    result.graph.output[0].name = "y_r"
    return result


def _network(name: str, seed: int, *, annotated: bool) -> tuple[TrialNetwork, Array]:
    random = np.random.default_rng(seed)
    samples = random.standard_normal((6, 1, 6, 4, 4)).astype(np.float32)
    model = _model(NODES[name], random)
    if annotated:
        model = _annotated(model, samples, random)
    options = Options(level="0")
    graph = run_passes(import_model(model), passes_of(target("easynpu"), options))
    found, _ = quantising.network(graph, Samples({"x": samples}), parameters.load(None), options)
    return found, samples[0]


def _one(graph: Graph, node: Node, inputs: Mapping[str, Array]) -> Array:
    """The float node's result by onnxruntime."""
    constants = {name: graph.constants[name] for name in node.inputs if name in graph.constants}
    types = {name: graph.tensors[name] for name in inputs}
    model = to_onnx(build("one", [node], types, node.outputs, constants))
    return session(model).run(None, {name: value.astype(np.float32) for name, value in inputs.items()})[0]


def _slack(network: TrialNetwork, layer: Node, node: Node, x: Mapping[str, Array]) -> Array | float:
    """By how many steps the 8-bit coefficients of an integer layer may move its result, beside the rounding.

    x: the float inputs in steps, without their zero points.
    """
    quantised = network.quantised
    constants = [
        quantised.graph.constants[name].astype(np.float64)
        for name in layer.inputs
        if name in quantised.graph.constants
    ]
    ratios = [
        quantised.scales[name] / quantised.scales[layer.output]
        for name in layer.inputs
        if name in quantised.scales
    ]
    magnitudes = {name: np.abs(value) for name, value in x.items()}
    match layer.op:
        case "IntConv" if layer.integer("average"):
            kernel = average_kernel(network.graph, node)
            off = np.abs(constants[0][0] / 2 ** constants[2][0] - ratios[0] / np.prod(kernel)).max()
            return _one(network.graph, node, magnitudes) * float(off * np.prod(kernel))
        case "IntConv":
            w = network.graph.constants[node.inputs[1]] * ratios[0]
            off = np.abs(constants[0] / np.exp2(constants[2]).reshape(-1, 1, 1, 1) - w)
            assert np.median(off * np.exp2(constants[2]).reshape(-1, 1, 1, 1)) <= 0.5
            plain = replace(
                node, inputs=node.inputs[:2], attrs={k: v for k, v in node.attrs.items() if k != "activation"}
            )
            held = replace(
                network.graph, constants={**network.graph.constants, node.inputs[1]: off.astype(np.float32)}
            )
            return _one(held, plain, magnitudes) + (0.5 / np.exp2(constants[2])).reshape(-1, 1, 1)
        case "IntSum":
            factors, power = constants[0], 2.0 ** layer.integer("shift")
            assert np.abs(factors - np.array(ratios) * power).max() <= 0.5
            parts = zip(magnitudes.values(), np.abs(factors / power - ratios), strict=True)
            return sum((value * off for value, off in parts), np.zeros(1))
        case "IntMul":
            scales = [quantised.scales[name] for name in layer.inputs]
            exact = scales[0] * scales[1] / quantised.scales[layer.output]
            assert exact * 2.0 ** layer.integer("shift") == pytest.approx(1, rel=1e-5)
            return 0.0
        case "IntTable":
            return float(layer.integer("error_lsb"))
        case _:
            return 0.0


def _expect_node(network: TrialNetwork, values: Mapping[str, Array], layer: Node) -> None:
    quantised, graph = network.quantised, network.graph
    node = graph.producers[{form: name for name, form in quantised.forms.items()}[layer.output]]
    data = [name for name in node.inputs if name and name not in graph.constants]
    held = dict(zip(data, (name for name in layer.inputs if name in quantised.scales), strict=True))
    steps = {
        name: values[integers].astype(np.float64) - quantised.zeros.get(integers, 0)
        for name, integers in held.items()
    }
    scaled = {name: value * quantised.scales[held[name]] for name, value in steps.items()}
    expected = _one(graph, node, scaled) / quantised.scales[layer.output] + quantised.zeros.get(layer.output, 0)
    rounding = 0.0 if layer.op in EXACT else 0.5
    off = np.abs(values[layer.output] - np.clip(expected, -128, 127)) - _slack(network, layer, node, steps)
    assert off.max() <= rounding + 2e-3, (layer.op, layer.output)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10_000))
@pytest.mark.parametrize("annotated", [False, True])
@pytest.mark.parametrize("name", NODES)
def test_integers_stand_for_what_the_float_operator_gives(name: str, annotated: bool, seed: int) -> None:
    network, sample = _network(name, seed, annotated=annotated)
    quantised: Quantised = network.quantised
    layers = [
        node for node in quantised.graph.nodes if node.output in quantised.scales and node.op != "QuantizeLinear"
    ]
    wanted = [name for name in quantised.graph.tensors if name in quantised.scales]
    values = run(quantised.graph, {"x": sample}, wanted)
    assert len(layers) >= 2
    for layer in layers:
        _expect_node(network, values, layer)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10_000))
@pytest.mark.parametrize("annotated", [False, True])
@pytest.mark.parametrize("name", NODES)
def test_no_accumulator_can_leave_32_bits(name: str, annotated: bool, seed: int) -> None:
    network, _ = _network(name, seed, annotated=annotated)
    graph = network.quantised.graph
    bounds = [
        node_bound(graph, node) for node in graph.nodes if node.op.startswith("Int") and node.op != "IntRelu"
    ]
    assert bounds
    assert all(each is not None and each < 1 << 31 for each in bounds)
