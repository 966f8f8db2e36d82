"""The quantised network as a QDQ model: onnxruntime's results beside those of the integer network."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from npuc.ir import Graph, TensorType
from npuc.onnx_files.export import to_onnx
from npuc.ops import build
from npuc.quantize.improvement.levels import LEVELS
from npuc.quantize.improvement.search import Network, Recipe, best_network
from npuc.quantize.network.build import quantiser
from npuc.quantize.qdq import qdq_graph, qdq_model
from npuc.quantize.scales.constraints import integer_nodes
from npuc.reference import session
from npuc.samples.loading import Samples
from npuc.targets.easynpu.layers.tables import best_table
from tests.passes.networks import network, node
from tests.quantize.test_improvement import PADS, residual, samples, weights

OPS = ("Conv", "Relu", "Add", "AveragePool", "HardSwish", "GlobalAveragePool", "Sigmoid", "Mul")
RECIPE = Recipe(lambda graph: integer_nodes(graph, lambda each: each.op in OPS), quantiser(best_table))


def gated() -> Graph:
    """A squeeze-excite block: pool, two layers, a gate."""
    return network(
        (1, 4, 8, 8), "y",
        node("Conv", "x w", "a", pads=PADS), node("HardSwish", "a", "h"), node("GlobalAveragePool", "h", "p"),
        node("Conv", "p v", "q", activation="Relu"), node("Conv", "q t", "r"), node("Sigmoid", "r", "g"),
        node("Mul", "h g", "m"), node("Conv", "m t", "y"),
        w=weights(8, 4, 3, 3), v=weights(8, 8, 1, 1), t=weights(8, 8, 1, 1),
    )  # fmt: skip


@pytest.mark.parametrize("level", ["0", "1"])
@pytest.mark.parametrize("build", [residual, gated])
def test_every_tensor_is_at_most_a_step_a_layer_from_the_integers(build: Any, level: str) -> None:
    graph = build()
    data = samples(graph)
    found, _ = best_network(graph, RECIPE, data, LEVELS[level])
    qdq, integer = qdq_graph(found), found.quantised.graph
    scale = found.quantised.scales["y/int8"]
    first, second = session(to_onnx(qdq, ["y/exact"])), session(to_onnx(integer, ["y/int8"]))
    steps = []
    for feed in data.feeds():
        exact = np.clip(np.rint(first.run(None, feed)[0] / scale), -128, 127)
        steps.append(np.abs(exact - second.run(None, feed)[0]))
    # rounding to even or up, averages' taps and tables: a step here and there, more of them layer by layer
    assert np.mean(np.stack(steps) == 0) > 0.8
    assert np.max(steps) <= 5


def test_the_model_has_int8_weights_with_a_scale_per_channel_and_int32_biases() -> None:
    graph = residual()
    found, _ = best_network(graph, RECIPE, samples(graph), LEVELS["1"])
    model = onnx.load_model_from_string(qdq_model(found))
    onnx.checker.check_model(model, full_check=True)
    assert qdq_model(found) == qdq_model(found)
    held = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    w, scale = held["e/w/integers"], held["e/w/scale"]
    assert (w.dtype, w.shape, scale.shape) == (np.int8, (8, 1, 3, 3), (8,))
    assert held["e/b/integers"].dtype == np.int32
    x = found.quantised.scales["s/int8"]
    # the ONNX convention: a bias has the scale of the input times that of the weights
    assert np.allclose(held["e/b/scale"], scale * x, rtol=1e-6)


def test_weights_are_near_the_float_ones() -> None:
    graph = residual()
    found: Network
    found, _ = best_network(graph, RECIPE, samples(graph), LEVELS["0"])
    model = onnx.load_model_from_string(qdq_model(found))
    held = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    back = held["a/w/integers"] * held["a/w/scale"].reshape(-1, 1, 1, 1)
    exact = graph.constants["w"]
    largest = np.abs(exact).max(axis=(1, 2, 3), keepdims=True)
    assert (np.abs(back - exact) / largest).max() < 1 / 63  # half a step of 63 or more to the largest weight


def test_inputs_are_rounded_in_their_order() -> None:
    """Their order was that of a set, another in every process: the same network gave other bytes."""
    names = "fcaedb"
    convolutions = [node("Conv", f"{name} w", f"{name}c") for name in names]
    joined = node("Concat", " ".join(f"{name}c" for name in names), "y", axis=1)
    inputs = {name: TensorType((1, 4, 6, 6)) for name in names}
    whole = build("test", [*convolutions, joined], inputs, ["y"], {"w": weights(4, 4, 1, 1)})
    data = Samples({name: np.ones((2, 1, 4, 6, 6), np.float32) for name in names})
    found, _ = best_network(whole, RECIPE, data, LEVELS["0"])
    written = [each.inputs[0] for each in qdq_graph(found).nodes if each.op == "QuantizeLinear"]
    assert [name for name in written if name in names] == list(whole.inputs)


def test_names_that_the_model_has_already_are_not_written_again() -> None:
    graph = network(
        (1, 4, 6, 6), "x/exact",
        node("Conv", "x w", "x/rounded", pads=PADS), node("HardSwish", "x/rounded", "x/steps"),
        node("Conv", "x/steps v", "x/scale"), node("Relu", "x/scale", "x/exact"),
        w=weights(8, 4, 3, 3), v=weights(8, 8, 1, 1),
    )  # fmt: skip
    found, _ = best_network(graph, RECIPE, samples(graph), LEVELS["0"])
    onnx.checker.check_model(onnx.load_model_from_string(qdq_model(found)), full_check=True)
