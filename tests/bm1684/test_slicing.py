"""Networks whose maps exceed local memory, computed in slices of rows: the same meaning, within the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from npuc.ir import Graph, Node, TensorType, type_of
from npuc.models import MODELS
from npuc.ops import OPS, interpreter
from npuc.target import Options, Request
from npuc.targets.bm1684.lowering import slicing
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.simulate.running import Runner
from npuc.targets.bm1684.target import BM1684
from tests import onnx_models
from tests.bm1684.kernels import need_compiler
from tests.compiled import compilation, optimised
from tests.passes.networks import feeds, network, node, operators

# local memory in bytes that holds some of the network's maps, but not all
SMALL = {
    "resnet8": 6144,
    "small_cnn": 10240,
    "unet_small": 9216,
    "mobilenet_v1_025": 9216,
    "residual_awkward": 4096,
}


def _optimised(name: str, folder: Path) -> tuple[Path, Graph]:
    path = folder / f"{name}.onnx"
    onnx.save(MODELS[name](), path)
    return path, optimised(Request(path, BM1684, Options(precision="fp32")))


@pytest.mark.parametrize("name", SMALL)
def test_slices_mean_the_same_and_are_smaller(name: str, tmp_path: Path) -> None:
    graph = _optimised(name, tmp_path)[1]
    sliced = slicing.fit(graph, Machine(local_bytes=SMALL[name]))
    sliced.check()
    assert len(sliced.nodes) > len(graph.nodes)
    assert sliced.nodes[-1].output == graph.nodes[-1].output
    feeds = {
        each: np.random.default_rng(1).standard_normal(graph.shape(each)).astype(np.float32)
        for each in graph.inputs
    }
    expected, found = interpreter.run(graph, feeds), interpreter.run(sliced, feeds)
    for output in graph.outputs:
        assert np.abs(found[output] - expected[output]).max() <= 1e-5 * np.abs(expected[output]).max()


@pytest.mark.parametrize(
    ("name", "local_bytes"), [("small_cnn", 12288), ("small_cnn", 16384), ("unet_small", 8192)]
)
def test_a_smaller_machine_runs_the_network_in_slices(name: str, local_bytes: int, tmp_path: Path) -> None:
    need_compiler()
    path, graph = _optimised(name, tmp_path)
    machine = tmp_path / "small.toml"
    machine.write_text(f"local_bytes = {local_bytes}\n", encoding="ascii")
    program = BM1684.lower(graph, {}, Options(machine=str(machine), precision="fp32"))
    assert len(program.manifest["report"]["layers"]) > len(graph.nodes)
    feeds = {
        each: np.random.default_rng(2).standard_normal((1, *graph.shape(each))).astype(np.float32)
        for each in graph.inputs
    }
    found = Runner(program, "own")(feeds)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = session.run(list(graph.outputs), {each: value[0] for each, value in feeds.items()})
    for output, value in zip(graph.outputs, expected, strict=True):
        assert np.abs(found[output][0] - value).max() <= 1e-4 * np.abs(value).max()


def test_a_graph_that_fits_stays_as_it_is(tmp_path: Path) -> None:
    graph = _optimised("resnet8", tmp_path)[1]
    assert slicing.fit(graph, Machine()) is graph


def _convolution(height: int, stride: int, pads: tuple[int, int, int, int]) -> Graph:
    weights = np.random.default_rng(0).standard_normal((4, 2, 3, 3)).astype(np.float32)
    out = (height + pads[0] + pads[2] - 3) // stride + 1
    node = Node("Conv", ("x", "w"), ("y",), {"strides": (stride, 1), "pads": pads, "dilations": (1, 1)}, "conv")
    tensors = {"x": TensorType((1, 2, height, 40)), "w": type_of(weights), "y": TensorType((1, 4, out, 40))}
    return Graph("g", (node,), ("x",), ("y",), {"w": weights}, tensors, OPS)


# by hand: output row y of a 3-row window reads rows stride * y - pad .. stride * y - pad + 2 of the image
def test_slices_of_a_convolution_read_its_halo_and_pad_only_at_the_edges() -> None:
    sliced = slicing.fit(_convolution(16, 1, (1, 1, 1, 1)), Machine(local_bytes=3072))
    cuts = [(node.integers("starts")[0], node.integers("ends")[0]) for node in sliced.nodes if node.op == "Slice"]
    pads = [node.integers("pads") for node in sliced.nodes if node.op == "Conv"]
    assert cuts[0] == (0, sliced.shape(sliced.nodes[1].output)[2] + 1)
    assert all(
        behind - first == rows + 2
        for (first, behind), rows in zip(cuts[1:-1], _heights(sliced)[1:-1], strict=True)
    )
    assert pads[0] == (1, 1, 0, 1)
    assert pads[-1] == (0, 1, 1, 1)
    assert all(each == (0, 1, 0, 1) for each in pads[1:-1])


def _heights(graph: Graph) -> list[int]:
    return [graph.shape(node.output)[2] for node in graph.nodes if node.op == "Conv"]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("pads", [(0, 1, 0, 1), (2, 1, 1, 1)])
def test_strides_and_uneven_padding_keep_their_meaning(stride: int, pads: tuple[int, int, int, int]) -> None:
    graph = _convolution(31, stride, pads)
    sliced = slicing.fit(graph, Machine(local_bytes=4096))
    assert len(sliced.nodes) > 3
    feeds = {"x": np.random.default_rng(3).standard_normal((1, 2, 31, 40)).astype(np.float32)}
    assert (interpreter.run(sliced, feeds)["y"] == interpreter.run(graph, feeds)["y"]).all()


def test_what_no_slice_makes_fit_stays_whole() -> None:
    graph = _convolution(31, 1, (1, 1, 1, 1))
    assert slicing.fit(graph, Machine(local_bytes=1024)) is graph


def test_layers_with_heavy_weights_are_in_as_few_slices_as_fit() -> None:
    """Together they would take four, each of which loads all 294,912 weights."""
    layers = [node("Conv", inputs, y, pads=(1, 1, 1, 1)) for inputs, y in (("x w", "a"), ("a v", "y"))]
    graph = network((1, 64, 16, 16), "y", *layers, w=(256, 64, 3, 3), v=(64, 256, 3, 3))
    found = slicing.fit(graph, Machine(local_bytes=4096))
    assert operators(found) == [*(("Slice", "Conv") * 3), "Concat"] * 2


@pytest.mark.parametrize(("c", "sliced"), [
    ((20,), True), ((1, 20), True), ((8, 1, 1), True), ((24, 20), False), ((1, 8, 24, 1), False),
])  # fmt: skip
def test_a_constant_of_a_slice_is_the_same_for_all_rows(c: tuple[int, ...], sliced: bool) -> None:
    graph = network((1, 8, 24, 20), "y", node("Add", "x c", "y"), c=c)
    assert ("Slice" in operators(slicing.fit(graph, Machine(local_bytes=4096)))) == sliced


TRANSPOSED = {
    "doubling": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "overlapping": {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "uneven": {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 2, 0], "output_padding": [1, 0]},
    "dense": {"kernel_shape": [5, 3], "strides": [1, 1], "pads": [2, 1, 0, 1]},
}
RESIZED = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "linear": {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    "asymmetric": {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
}


@pytest.mark.parametrize(("scale", "mode", "kind", "parts"), [
    (0.5, "linear", "half_pixel", 1), (1.5, "linear", "half_pixel", 1), (2.04, "linear", "half_pixel", 1),
    (2.0, "linear", "half_pixel", 3), (3.0, "linear", "half_pixel", 1), (2.0, "cubic", "half_pixel", 1),
    (2.0, "linear", "align_corners", 1),
])  # fmt: skip
def test_a_resize_is_sliced_by_powers_of_two(scale: float, mode: str, kind: str, parts: int) -> None:
    attrs = {"sizes": (1, 8, int(24 * scale), 20), "scales": (1.0, 1.0, scale, 1.0), "mode": mode}
    attrs["coordinate_transformation_mode"] = kind
    graph = network((1, 8, 24, 20), "y", node("Relu", "x", "r"), node("Resize", "r", "y", **attrs))
    found = slicing.fit(graph, Machine(local_bytes=8192))
    assert operators(found).count("Resize") == parts
    (values,) = feeds(graph).values()
    assert (interpreter.run(found, {"x": values})["y"] == interpreter.run(graph, {"x": values})["y"]).all()


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("name", [*TRANSPOSED, *RESIZED])
def test_decoders_are_computed_in_slices(name: str, images: int, tmp_path: Path) -> None:
    need_compiler()
    if name in TRANSPOSED:
        up = onnx_models.node("ConvTranspose", "r t", "u", **TRANSPOSED[name])
        constants = {"t": (8, 8, *TRANSPOSED[name]["kernel_shape"]), "w": (8, 8, 3, 3)}
    else:
        up = onnx_models.node("Resize", "r - s", "u", **RESIZED[name])
        constants = {"s": np.float32([1, 1, 2, 2]), "w": (8, 8, 3, 3)}
    path, machine = tmp_path / "model.onnx", tmp_path / "small.toml"
    layers = onnx_models.node("Relu", "x", "r"), up, onnx_models.node("Conv", "u w", "y", pads=[1, 1, 1, 1])
    onnx.save(onnx_models.network(layers, (images, 8, 24, 20), constants), path)
    machine.write_text("local_bytes = 8192\n")
    graph = optimised(Request(path, BM1684, Options(precision="fp32")))
    sliced = slicing.fit(graph, Machine(local_bytes=8192))
    sliced.check()
    assert sum(each.op == up.op_type for each in sliced.nodes) > 1
    program = compilation(Request(path, BM1684, Options(machine=str(machine), precision="fp32"))).program
    x = np.random.default_rng(1).standard_normal((images, 8, 24, 20)).astype(np.float32) + 0.5
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = BM1684.runner(program)({"x": x[np.newaxis]})["y"][0]
    np.testing.assert_allclose(found, session.run(None, {"x": x})[0], rtol=0, atol=2e-5)
