"""Data for the verification of a program: the integer network as ONNX, and the meaning of its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuc.ir import Graph, Node
from npuc.program import canonical_json
from npuc.storage.pieces import Files

if TYPE_CHECKING:
    from npuc.quantize.network.construction import Quantised


def evidence(quantised: Quantised) -> Files:
    """reference.onnx with every int8 tensor as an output, and graph.json, which maps these to float tensors."""
    from npuc.onnx_files.export import onnx_content

    graph = quantised.graph
    layers = [node for node in graph.nodes if node.output in quantised.scales]
    tensors = [name for node in layers for name in node.outputs]
    model = onnx_content(graph, [*graph.outputs, *(name for name in tensors if name not in graph.outputs)])
    described = {
        "tensors": {
            name: {
                "float": quantised.floats[name],
                "unlimited": name in quantised.unlimited,
                "scale": quantised.scales[name],
                "zero_point": quantised.zeros.get(name, 0),
                "factors": quantised.factors[name].tolist() if name in quantised.factors else [],
                "shape": list(graph.shape(name)),
            }
            for name in tensors
        },
        "layers": [_layer(node) for node in layers if node.op != "QuantizeLinear"],
    }
    return Files({"reference.onnx": model, "graph.json": canonical_json(described)})


def float_evidence(graph: Graph, lowered: Graph) -> Files:
    """For a floating-point program: reference.onnx is the optimised network, graph.json has its lowered layers."""
    from npuc.onnx_files.export import onnx_content

    described = {
        "tensors": {name: {"float": name, "shape": list(graph.shape(name))} for name in graph.producers},
        "layers": [_layer(node) for node in lowered.nodes],
    }
    return Files({"reference.onnx": onnx_content(graph), "graph.json": canonical_json(described)})


def signature(graph: Graph) -> dict[str, Any]:
    """The manifest's `inputs` and `outputs`: name, shape and type in the ONNX model's own terms."""

    def ports(names: tuple[str, ...]) -> list[dict[str, Any]]:
        types = ((name, graph.tensors[name]) for name in names)
        return [{"name": name, "shape": list(each.shape), "dtype": each.dtype} for name, each in types]

    return {"inputs": ports(graph.inputs), "outputs": ports(graph.outputs)}


def _layer(node: Node) -> dict[str, Any]:
    """A layer in graph.json."""
    return {
        "name": node.name,
        "op": node.op,
        "inputs": list(node.inputs),
        "tensor": node.output,
        "nodes": list(node.sources),
    }
