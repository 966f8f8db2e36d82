"""Data for the verification of a program: the integer network as ONNX, and the meaning of its tensors.

Targets write both beside the program; verification reads them from an artefact, which anyone may have changed.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any

from npuc.errors import ArtefactError, ModelError
from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.program import Program, canonical_json
from npuc.storage.mapped import Content, Files
from npuc.storage.records import damage_error, read
from npuc.target import FLOATING

if TYPE_CHECKING:
    import onnx

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


LIMITS = ("E110", "E111")
"""Errors of the memory and time limits."""


@frozen
class _Tensor:
    """A tensor."""

    float: str
    shape: tuple[int, ...]
    scale: float | None = None
    zero_point: int = 0
    factors: tuple[float, ...] = ()


@frozen
class _Scaled(_Tensor):
    """An integer tensor."""

    scale: float = field(kw_only=True)


@frozen
class DescribedLayer:
    """A layer, and the tensor that it computes."""

    op: str
    inputs: tuple[str, ...]
    tensor: str
    nodes: tuple[str, ...]


@frozen
class _Rewrite:
    """A rewrite of nodes by a pass."""

    nodes: tuple[str, ...]


@frozen
class _Floats:
    """graph.json of a floating-point program."""

    tensors: Mapping[str, _Tensor]
    layers: tuple[DescribedLayer, ...]
    rewrites: tuple[_Rewrite, ...] = ()


@frozen
class _Integers(_Floats):
    """graph.json of an integer program."""

    tensors: Mapping[str, _Scaled]


def read_graph(program: Program) -> Mapping[str, Any]:
    """graph.json of a program with its evidence, checked. Raises ArtefactError (E502) if npuc did not write it."""
    try:
        found = json.loads(program.evidence["graph.json"])
    except (ValueError, RecursionError):
        raise damage_error("it is not JSON", file="graph.json") from None
    floating = program.precision in FLOATING
    checked = read(_Floats if floating else _Integers, found, "graph", "graph.json")
    for layer in checked.layers:
        if not floating and layer.tensor not in checked.tensors:
            raise damage_error(f"it lacks the tensor '{layer.tensor}'", file="graph.json")
    for name, tensor in checked.tensors.items():
        if tensor.factors and len(tensor.factors) != (*tensor.shape, 0, 0)[1]:
            raise damage_error(f"'{name}' has {len(tensor.factors)} factors", file="graph.json")
    return found


def network(content: Content) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """reference.onnx and, for a program just compiled, the heavy constants that it refers to as external.

    Raises ArtefactError (E502) if npuc did not write it.
    """
    import onnx
    from google.protobuf.message import DecodeError

    from npuc.frontend.reading import check_names
    from npuc.onnx_files.external_data import light

    try:
        data, weights = light(content)
        found = onnx.ModelProto.FromString(data)
        check_names(found.graph)
    except (DecodeError, ModelError):
        raise damage_error("it is not an ONNX model", file="reference.onnx") from None
    if found.functions:
        raise damage_error("it has functions of its own", file="reference.onnx")
    return found, weights


@contextmanager
def foreign_evidence() -> Generator[None]:
    """A context that opens or runs reference.onnx: errors of onnxruntime become E502, exceeded limits E509."""
    try:
        yield
    except ModelError as error:
        (problem, *_) = error.problems
        if problem.code not in LIMITS:
            raise damage_error(problem.reason, file="reference.onnx") from None
        reason = f"reference.onnx: {problem.reason}"
        raise ArtefactError("E509", reason, limit=problem.limit, remedy=problem.remedy) from None
