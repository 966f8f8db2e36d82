"""Operators that npuc has no rule for: the tensors they read, and the types of their results by ONNX's rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, TypeProto, helper, numpy_helper, shape_inference

from npuc.errors import NpucError
from npuc.ir import Array, TensorType
from npuc.onnx_files.external_data import without_weights
from npuc.onnx_files.subgraphs import subgraphs
from npuc.reference import session, with_outputs
from npuc.system.confinement import isolate


def all_inputs(node: onnx.NodeProto) -> Iterator[str]:
    """The tensors that a node reads, including those that its subgraphs capture, without absent inputs."""
    yield from filter(None, node.input)
    for graph in subgraphs(node):
        inside = {each.name for each in (*graph.initializer, *graph.input)}
        inside.update(each.values.name for each in graph.sparse_initializer)
        inside.update(name for each in graph.node for name in each.output)
        read = (name for each in graph.node for name in all_inputs(each))
        yield from (name for name in read if name not in inside)
        yield from (each.name for each in graph.output if each.name and each.name not in inside)


def rename_inputs(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """The node with renamed inputs, also in its subgraphs; names that a subgraph defines itself are kept."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    _rename(copy, names)
    return copy


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    node.input[:] = [names.get(each, each) for each in node.input]
    for graph in subgraphs(node):
        own = {each.name for each in (*graph.initializer, *graph.input)}
        own.update(name for each in graph.node for name in each.output)
        outer = {old: new for old, new in names.items() if old not in own}
        for each in graph.node:
            _rename(each, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)


def node_fault(
    node: onnx.NodeProto,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Array],
    opsets: list[onnx.OperatorSetIdProto],
) -> str | None:
    """What ONNX's shape inference or onnxruntime refuses in a node; None if both accept it.

    types: of what it reads; constants: the values of some of it.
    """
    read = list(dict.fromkeys(all_inputs(node)))
    values = {name: constants[name] for name in read if name in constants}
    inputs = [helper.make_value_info(name, proto_of(types[name])) for name in read if name not in values]
    graph = helper.make_graph(
        [node], "node", inputs, [onnx.ValueInfoProto(name=each) for each in node.output if each]
    )
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(each, order="C"), key) for key, each in values.items()
    )
    model = helper.make_model(graph, opset_imports=opsets)
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        session(model, confined=True)
    except NpucError as error:
        return error.problems[0].reason
    except Exception as error:  # ONNX's own kinds of errors
        return str(error)
    return None


ELEMENTS = {
    "tensor(float)": TensorProto.FLOAT,
    "tensor(uint8)": TensorProto.UINT8,
    "tensor(int8)": TensorProto.INT8,
    "tensor(int32)": TensorProto.INT32,
    "tensor(int64)": TensorProto.INT64,
    "tensor(bool)": TensorProto.BOOL,
}
"""The element types that npuc imports, as onnxruntime names them."""


def types_by_onnxruntime(
    model: onnx.ModelProto, folder: Path | None, inputs: Mapping[str, TensorType]
) -> dict[str, TypeProto]:
    """The static types of all tensors of a model as onnxruntime infers them: it also knows its own operators.

    inputs: types of the model's inputs. Empty if onnxruntime cannot open the model.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for port in made.graph.input:
        if port.name in inputs:
            port.type.CopyFrom(proto_of(inputs[port.name]))
    names = [name for node in made.graph.node for name in node.output if name]
    try:
        found = session(*without_weights(with_outputs(made, names), folder), confined=True).get_outputs()
    except NpucError:
        return {}
    return {
        each.name: helper.make_tensor_type_proto(ELEMENTS[each.type], each.shape)
        for each in found
        if each.type in ELEMENTS and all(isinstance(extent, int) for extent in each.shape)
    }


def static(found: TypeProto) -> TensorType | None:
    """The type of a tensor with static, non-zero dimensions; None for anything else."""
    if found.WhichOneof("value") != "tensor_type" or not found.tensor_type.HasField("shape"):
        return None
    dims = found.tensor_type.shape.dim
    code = found.tensor_type.elem_type
    if not code or not all(each.WhichOneof("value") == "dim_value" and each.dim_value > 0 for each in dims):
        return None
    try:
        dtype = helper.tensor_dtype_to_np_dtype(code)
    except (KeyError, ValueError):
        return None
    return None if dtype.kind not in "fiub" else TensorType(tuple(each.dim_value for each in dims), str(dtype))


def proto_of(found: TensorType) -> TypeProto:
    """A static type as an ONNX message."""
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(np.dtype(found.dtype)), found.shape)


SMALL = 1 << 12
"""The most elements of a tensor whose values may determine a shape: sizes, repeats, limits.

ONNX's data propagation keeps a message for every element of a vector, known or not.
"""


def infer_types(
    node: onnx.NodeProto,
    known: Mapping[str, TypeProto],
    constants: Mapping[str, Array],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> dict[str, TypeProto]:
    """The types of a node's results by ONNX's rules; results without a type are left out.

    known, constants: types and values of tensors, of which those count that the node or its subgraphs read. Raises
    ModelError (E110, E111) for a node whose subgraphs make ONNX need more memory or time than the limits.
    """
    read = dict.fromkeys(all_inputs(node))
    types = {name: known[name] for name in read if name in known}
    inputs = [helper.make_value_info(name, each) for name, each in types.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    values = {name: constants[name] for name in read if name in constants}
    small = {name: each for name, each in values.items() if each.size <= SMALL and each.dtype.kind in "fiub"}
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value, order="C"), name) for name, value in small.items()
    )
    model = helper.make_model(graph, opset_imports=opsets)
    long = any(_is_long(each) for each in types.values())
    return _infer_isolated(model) if any(subgraphs(node)) and not long else _types(model, data_prop=not long)


def _is_long(found: TypeProto) -> bool:
    """Whether this is a vector whose values ONNX must not follow."""
    dims = found.tensor_type.shape.dim
    return len(dims) == 1 and dims[0].dim_value > SMALL


def _types(model: onnx.ModelProto, *, data_prop: bool) -> dict[str, TypeProto]:
    try:
        found = shape_inference.infer_shapes(model, data_prop=data_prop)
    except Exception:  # no types are known if inference fails; onnxruntime decides later
        return {}
    return {each.name: each.type for each in found.graph.output if each.type.WhichOneof("value") is not None}


def _infer_isolated(model: onnx.ModelProto) -> dict[str, TypeProto]:
    """The types with data propagation, which in subgraphs meets vectors of any length: by another process."""
    plain = _types(model, data_prop=False)
    if len(plain) == len(model.graph.output) and all(map(is_static, plain.values())):
        return plain
    try:
        (found,) = isolate(_Propagation).run(None, {"model": model.SerializeToString()})
    except NpucError as error:
        if error.problems[0].code == "E105":
            return plain
        raise
    return {name: TypeProto.FromString(each) for name, each in found.items()}


def is_static(found: TypeProto) -> bool:
    """Whether every dimension is known."""
    tensor = found.tensor_type
    return tensor.HasField("shape") and all(each.HasField("dim_value") for each in tensor.shape.dim)


class _Propagation:
    """Shape inference with data propagation, run as an onnxruntime session is."""

    def get_inputs(self) -> Sequence[Any]:
        """None: the only feed is the model."""
        return ()

    get_outputs = get_inputs

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, bytes]) -> list[Any]:
        """The serialised types of the outputs by name."""
        del names
        model = onnx.ModelProto.FromString(feeds["model"])
        return [{name: each.SerializeToString() for name, each in _types(model, data_prop=True).items()}]
