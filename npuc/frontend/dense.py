"""Sparse constants of a model made dense: no target stores them otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from npuc.errors import ModelError
from npuc.ir import Array
from npuc.onnx_files.external_data import LARGEST_TENSOR, array_of
from npuc.onnx_files.subgraphs import graphs
from npuc.system.budget import expect_room


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
        raise _bad(f"a sparse constant of {values.dtype} {list(shape)}", name)
    expect_room(3 * size * values.itemsize, "a constant", tensor=name)
    dense = np.zeros(size, values.dtype)
    dense[_flat(indices, shape, size, len(values.ravel()), name)] = values.ravel()
    return numpy_helper.from_array(dense.reshape(shape), name)


def _flat(indices: Array, shape: tuple[int, ...], size: int, count: int, name: str) -> Array:
    """The elements' positions. Raises ModelError (E105) unless they are distinct, inside and as many as values."""
    if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        raise _bad(f"indices {indices.dtype} {list(indices.shape)} for {count} values", name)
    limits = np.array(shape if indices.ndim == 2 else size)
    if ((indices < 0) | (indices >= limits)).any():
        raise _bad(f"an index lies outside {list(shape)}", name)
    flat = np.asarray(np.ravel_multi_index(tuple(indices.T), shape)) if indices.ndim == 2 else indices
    if len(np.unique(flat)) != count:
        raise _bad("two values for one element", name)
    return flat


def _bad(reason: str, name: str) -> ModelError:
    return ModelError("E105", f"a sparse constant: {reason}", tensor=name or None)
