"""Half-precision networks in float32: the targets compute in precisions of their own, chosen by --precision.

A weight in float16 or bfloat16 is only a compact way to store it. Every number of a model with such weights, its
inputs and outputs included, becomes float32; the stored weights stay as they are, behind a Cast. So does every
number of a model that computes in bfloat16, which neither numpy nor onnxruntime does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableSequence
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, helper

from npuc.onnx_files.subgraphs import nodes_in, subgraphs
from npuc.reference import STANDARD

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
"""Attributes that name the element type of a result."""


def is_half(model: onnx.ModelProto) -> bool:
    """Whether a model is to be `widen_model`: its weights are in half precision, or it computes in bfloat16.

    Its types must agree, and its operators be known.
    """
    known = {*STANDARD, *(each.domain for each in model.functions)}
    foreign = any(each.domain not in known for each in model.opset_import)
    half = any(each.data_type in HALF for each in model.graph.initializer) or _computes_in_bfloat16(model.graph)
    return half and not foreign and _types_agree(model)


def _computes_in_bfloat16(graph: onnx.GraphProto) -> bool:
    """Whether an input or output is bfloat16, or what a Cast makes bfloat16 is not only cast back."""
    ports = (*graph.input, *graph.output)
    if any(each.type.tensor_type.elem_type == TensorProto.BFLOAT16 for each in ports):
        return True
    to = helper.make_attribute("to", int(TensorProto.BFLOAT16))
    cast = {node.output[0] for node in graph.node if node.op_type == "Cast" and to in node.attribute}
    return any(not cast.isdisjoint(node.input) for node in graph.node if node.op_type != "Cast")


def _types_agree(model: onnx.ModelProto) -> bool:
    """Whether no float32 meets half precision without a Cast: widened, such a contradiction would vanish."""
    ports = (*model.graph.input, *model.graph.output)
    types = {each.type.tensor_type.elem_type for each in ports} | {
        each.data_type for each in model.graph.initializer
    }
    if TensorProto.FLOAT not in types:
        return True
    try:
        onnx.shape_inference.infer_shapes(_in_float16(model), check_type=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return False
    return True


def _in_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model with float16 in place of bfloat16, which many operators exclude: of interest for its types only."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    _retype(made, {TensorProto.BFLOAT16: TensorProto.FLOAT16})
    attributes = (each for node in _all_nodes(made) for each in node.attribute)
    weights = (each for graph in _all_graphs(made) for each in graph.initializer)
    for tensor in (*weights, *(each.t for each in attributes)):
        if tensor.data_type == TensorProto.BFLOAT16:
            tensor.data_type = TensorProto.FLOAT16
    return made


def _all_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes of the graph and of functions, including those inside others."""
    return [*nodes_in(model.graph.node), *nodes_in(node for each in model.functions for node in each.node)]


def _all_graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """The graph and those inside nodes, each before those inside its own nodes."""
    return [model.graph, *(graph for node in _all_nodes(model) for graph in subgraphs(node))]


def _retype(model: onnx.ModelProto, types: Mapping[int, int]) -> None:
    """Replaces, in place, element types of values, and those that attributes name."""
    for graph in _all_graphs(model):
        for value in (*graph.input, *graph.output, *graph.value_info):
            _retype_value(value.type, types)
    for attribute in (each for node in _all_nodes(model) for each in node.attribute):
        if attribute.name in TYPE_ATTRIBUTES and attribute.type == AttributeProto.INT:
            attribute.i = types.get(attribute.i, attribute.i)


def _retype_value(found: onnx.TypeProto, types: Mapping[int, int]) -> None:
    """Replaces the element type of a tensor, in sequences and optional values too."""
    kind = found.WhichOneof("value")
    if kind == "tensor_type":
        found.tensor_type.elem_type = types.get(found.tensor_type.elem_type, found.tensor_type.elem_type)
    if kind in ("sequence_type", "optional_type"):
        _retype_value(getattr(found, kind).elem_type, types)


def widen_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in float32 if its weights are in half precision; otherwise unchanged."""
    if not is_half(model):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    _retype(made, dict.fromkeys(HALF, TensorProto.FLOAT))
    for graph in reversed(_all_graphs(made)):
        _widen(graph)
    for function in made.functions:
        _replace(function.node, _widened_nodes(function.node))
    return made


def _widen(graph: onnx.GraphProto) -> None:
    """Puts a Cast behind every constant of a graph that is stored in half precision, in place."""
    weights = [each for each in graph.initializer if each.data_type in HALF]
    stored = {each.name for each in weights}
    ports = [each for each in graph.input if each.name not in stored]  # weights were inputs too before IR 4
    _replace(graph.input, ports)
    casts = [_cast(each.name) for each in weights]
    for each in weights:
        each.name = _stored_name(each.name)
    _replace(graph.node, [*casts, *_widened_nodes(graph.node)])


def _widened_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, with a Cast behind constants in half precision."""
    for node in nodes:
        results = list(node.output)
        if any(each.t.data_type in HALF for each in node.attribute):
            _replace(node.output, map(_stored_name, results))
            yield node
            yield from map(_cast, results)
        else:
            yield node


def _cast(name: str) -> onnx.NodeProto:
    return helper.make_node("Cast", [_stored_name(name)], [name], f"{name}/Cast", to=TensorProto.FLOAT)


def _stored_name(name: str) -> str:
    """The name of a constant as the file stores it."""
    return f"{name}/stored"


def _replace(field: MutableSequence[Any], values: Iterable[Any]) -> None:
    """Replaces the entries of a repeated field; the values may be among them."""
    kept = list(values)
    del field[:]
    field.extend(kept)
