"""Every model of the shared folder, and the well-known architectures that onnx ships, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc.frontend import load
from npuc.ir import Array, Graph
from npuc.onnx_files.export import to_onnx
from npuc.ops.interpreter import run

Reference = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]

TRAINED = """
    mnist_cnn mtcnn_pnet pplcnet_doc_ori ppocr_cls tiny_ad_ae_fp32 tiny_kws_dscnn_fp32 tiny_kws_int8qdq
    tiny_resnet8_fp32 tiny_resnet8_int8qdq tiny_sww_int8 tiny_vww_int8qdq tiny_vww_mbv1_fp32
"""
ARCHITECTURES = ["densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet"]


def batch_of_one(path: Path) -> dict[str, tuple[int, ...]]:
    graph = onnx.load(path).graph
    return {each.name: tuple(d.dim_value or 1 for d in each.type.tensor_type.shape.dim) for each in graph.input}


def noise(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    draws = {name: rng.uniform(-1, 1, graph.shape(name)) for name in graph.inputs}
    kinds = {name: graph.tensors[name].dtype for name in graph.inputs}
    return {name: (x if kinds[name] == "float32" else 127 * x).astype(kinds[name]) for name, x in draws.items()}


@pytest.mark.parametrize("fold_weights", [True, False])
@pytest.mark.parametrize("name", TRAINED.split())
def test_trained_model_equals_onnxruntime(
    name: str, fold_weights: bool, shared: Path, onnxruntime_values: Reference
) -> None:
    path = shared / "models" / f"{name}.onnx"
    graph = load(path, batch_of_one(path), fold_weights=fold_weights)
    feeds = noise(graph)
    found = run(graph, feeds)
    for output, wanted in onnxruntime_values(onnx.load(path), feeds).items():
        np.testing.assert_allclose(found[output], wanted, rtol=1e-4, atol=2e-5)
    for output, wanted in onnxruntime_values(to_onnx(graph), feeds).items():
        np.testing.assert_allclose(found[output], wanted, rtol=1e-4, atol=2e-5)


def test_quantised_weights_survive_where_they_are_asked_for(shared: Path) -> None:
    path = shared / "models" / "tiny_resnet8_int8qdq.onnx"
    graph = load(path, batch_of_one(path), fold_weights=False)
    layers = [node for node in graph.nodes if node.op in ("Conv", "Gemm")]
    assert len(layers) == 10
    for layer in layers:
        dequantize = graph.producers[layer.inputs[1]]
        assert graph.constants[dequantize.inputs[0]].dtype == np.int8
        assert layer.op != "Gemm" or graph.shape(layer.inputs[1])[0] == 10


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_well_known_architecture_loads_with_the_declared_output_shape(name: str) -> None:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    path = folder / f"light_{name}.onnx"
    if not path.is_file():
        pytest.skip("this onnx package does not ship the architecture")
    graph, declared = load(path), onnx.load(path).graph.output[0]
    shape = tuple(each.dim_value for each in declared.type.tensor_type.shape.dim)
    assert graph.shape(declared.name) == shape
