"""Rare forms of a model's nodes and constants, written plainly.

Sparse constants are made dense: no target stores them otherwise. What onnxruntime's optimiser fused with an
activation becomes two nodes: a target may run the first alone. Recurrent operators with the batch first (layout 1)
get the steps first, which onnxruntime runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from npuc.errors import ModelError
from npuc.ir import Array
from npuc.onnx_files.external_data import LARGEST_TENSOR, array_of
from npuc.onnx_files.subgraphs import graphs, nodes_in, tensor_names
from npuc.reference import STANDARD
from npuc.system.budget import expect_room
from npuc.target import RECURRENT
from npuc.text.escaping import Names


def with_dense_constants(model: onnx.ModelProto, folder: Path | None) -> onnx.ModelProto:
    """The model with dense initialisers and values of Constant in place of sparse ones, also in its subgraphs.

    Raises ModelError (E105) for indices that do not fit the shape, (E110) for more memory than the limit.
    """
    if not any(graph.sparse_initializer or _sparse_values(graph) for graph in graphs(model.graph)):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for graph in graphs(made.graph):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(sparse, sparse.values.name, folder))
        del graph.sparse_initializer[:]
        for value in _sparse_values(graph):
            dense = onnx.helper.make_attribute("value", _dense(value.sparse_tensor, "", folder))
            value.CopyFrom(dense)
    return made


def _sparse_values(graph: onnx.GraphProto) -> list[onnx.AttributeProto]:
    constants = (node for node in graph.node if node.op_type == "Constant")
    return [each for node in constants for each in node.attribute if each.name == "sparse_value"]


def _dense(sparse: onnx.SparseTensorProto, name: str, folder: Path | None) -> onnx.TensorProto:
    """indices: of elements (NNZ,), or of rows, columns, ... (NNZ, rank)."""
    shape, values, indices = tuple(sparse.dims), array_of(sparse.values, folder), array_of(sparse.indices, folder)
    size = int(np.prod(shape, dtype=np.float64)) if all(0 <= each <= LARGEST_TENSOR for each in shape) else -1
    if not 0 <= size <= LARGEST_TENSOR or values.dtype.kind not in "fiub":
        raise _form_error(f"a sparse constant of {values.dtype} {list(shape)}", name)
    expect_room(3 * size * values.itemsize, "a constant", tensor=name)
    dense = np.zeros(size, values.dtype)
    dense[_flat(indices, shape, size, len(values.ravel()), name)] = values.ravel()
    return numpy_helper.from_array(dense.reshape(shape), name)


def _flat(indices: Array, shape: tuple[int, ...], size: int, count: int, name: str) -> Array:
    """The elements' positions. Raises ModelError (E105) unless they are distinct, inside and as many as values."""
    if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        raise _form_error(f"indices {indices.dtype} {list(indices.shape)} for {count} values", name)
    limits = np.array(shape if indices.ndim == 2 else size)
    if ((indices < 0) | (indices >= limits)).any():
        raise _form_error(f"an index lies outside {list(shape)}", name)
    flat = np.asarray(np.ravel_multi_index(tuple(indices.T), shape)) if indices.ndim == 2 else indices
    if len(np.unique(flat)) != count:
        raise _form_error("two values for one element", name)
    return flat


def _form_error(reason: str, name: str) -> ModelError:
    return ModelError("E105", f"a sparse constant: {reason}", tensor=name or None)


KINDS = {
    "activation": onnx.AttributeProto.STRING,
    "activation_params": onnx.AttributeProto.FLOATS,
    **dict.fromkeys(("activation_alpha", "activation_beta"), onnx.AttributeProto.FLOAT),
}
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign"), ()),
    **dict.fromkeys(("LeakyRelu", "Elu"), ("alpha",)),
    "HardSigmoid": ("alpha", "beta"),
}
"""Activations that are nodes of the same form in every opset, and their parameters in order."""


def with_activations_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with an ONNX node for the activation of every FusedConv and FusedGemm; itself if none has one.

    A Clip stays fused. Source: onnxruntime, docs/ContribOperators.md.
    """
    if not any(map(_is_fused, model.graph.node)):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    names = Names(tensor_names(made.graph))
    nodes = [new for node in model.graph.node for new in _separate(node, names)]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _is_fused(node: onnx.NodeProto) -> bool:
    given = {each.name: each for each in node.attribute}
    if node.domain != "com.microsoft" or node.op_type not in ("FusedConv", "FusedGemm") or len(node.output) != 1:
        return False
    if any(KINDS.get(name, each.type) != each.type for name, each in given.items()):
        return False  # the importer tells what is wrong
    return "activation" in given and given["activation"].s.decode(errors="replace") in ACTIVATIONS


def _separate(node: onnx.NodeProto, names: Names) -> Iterator[onnx.NodeProto]:
    if not _is_fused(node):
        yield node
        return
    first, given = onnx.NodeProto(), {each.name: helper.get_attribute_value(each) for each in node.attribute}
    first.CopyFrom(node)
    del first.attribute[:]
    first.attribute.extend(each for each in node.attribute if not each.name.startswith("activation"))
    first.output[0] = names.new(f"{node.output[0]}/before")
    if node.op_type == "FusedGemm":
        first.op_type, first.domain = "Gemm", ""
    op = given["activation"].decode()
    own = [given.get(f"activation_{key}", 0.0) for key in ("alpha", "beta")]
    values = given.get("activation_params", ()) if node.op_type == "FusedConv" else own
    attrs = dict(zip(ACTIVATIONS[op], values, strict=False))
    yield from (first, helper.make_node(op, first.output, node.output, **attrs))


SWAPPED = (1, 0, 2)
"""The axes of an input or a state in the other layout."""
INPUTS = (0, 5, 6)
"""The places of X and of the initial states."""
LAST = (2, 0, 1, 3)
"""The axes of all states, (batch, steps, directions, hidden), from (steps, directions, batch, hidden)."""


def steps_first(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every LSTM, GRU and RNN in layout 0, those in branches too; itself if none has layout 1.

    Source: ONNX, the attribute layout of these operators.
    """
    if not any(map(_batch_first, nodes_in(model.graph.node))):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    names = Names(tensor_names(made.graph))
    for graph in graphs(made.graph):
        nodes = [new for node in graph.node for new in _in_layout_0(node, names)]
        del graph.node[:]
        graph.node.extend(nodes)
    return made


def _batch_first(node: onnx.NodeProto) -> bool:
    layout = (each.i for each in node.attribute if each.name == "layout")
    return node.op_type in RECURRENT and node.domain in STANDARD and 1 in layout


def _in_layout_0(node: onnx.NodeProto, names: Names) -> Iterator[onnx.NodeProto]:
    """The node, between the transpositions of its inputs and outputs."""
    if not _batch_first(node):
        yield node
        return
    made, behind = onnx.NodeProto(), list[onnx.NodeProto]()
    made.CopyFrom(node)
    del made.attribute[:]
    made.attribute.extend(each for each in node.attribute if each.name != "layout")
    for at in INPUTS:
        if at < len(node.input) and node.input[at]:
            made.input[at] = names.new(f"{node.input[at]}/steps_first")
            yield _transpose(node.input[at], made.input[at], SWAPPED)
    for at, name in enumerate(node.output):
        if name:
            made.output[at] = names.new(f"{name}/steps_first")
            behind.append(_transpose(made.output[at], name, SWAPPED if at else LAST))
    yield made
    yield from behind


def _transpose(source: str, result: str, axes: Sequence[int]) -> onnx.NodeProto:
    return helper.make_node("Transpose", [source], [result], f"{result}/transpose", perm=axes)
