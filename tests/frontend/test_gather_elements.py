"""GatherElements and GatherND with constant indices, against onnxruntime and by what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.interpreter import run
from npuc.ir import Array
from tests.onnx_models import parse

Reference = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]
DATA = np.random.default_rng(0).standard_normal((2, 5, 4)).astype(np.float32)


def _model(indices: Array, axis: int, *, constant: bool = False) -> onnx.ModelProto:
    ports = "float[1] z" if constant else "float[2,5,4] x"
    node = f"y = GatherElements <axis = {axis}> (x, i)"
    body = f"g = {node.replace('y =', '')} y = Add(g, z)" if constant else node
    model = parse(f"g ({ports}) => (float y) {{ {body} }}", 13)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.append(numpy_helper.from_array(indices, "i"))
    if constant:
        model.graph.initializer.append(numpy_helper.from_array(DATA, "x"))
    return model


def _alike(line: list[int], axis: int, *others: int, dtype: type = np.int64) -> Array:
    """Indices that vary along one axis only."""
    shape = [*others]
    shape.insert(axis, len(line))
    return (
        np.moveaxis(np.broadcast_to(np.array(line, dtype), (*others, len(line))), -1, axis).reshape(shape).copy()
    )


CASES = {
    "channels in another order": (_alike([3, 0, 4, 4, -5], 1, 2, 4), 1, "Gather"),
    "a negative axis and 32-bit indices": (_alike([1, 1, 3], 2, 2, 5, dtype=np.int32), -1, "Gather"),
    "only a corner of the other axes": (_alike([1, 0], 0, 3, 2), 0, "Slice Gather"),
    "one index": (_alike([2], 1, 2, 4), 1, "Gather"),
}


@pytest.mark.parametrize(("indices", "axis", "ops"), CASES.values(), ids=CASES)
def test_indices_alike_along_the_other_axes_gather_slices(
    indices: Array, axis: int, ops: str, onnxruntime_values: Reference
) -> None:
    model = _model(indices, axis)
    graph = import_model(model)
    assert " ".join(each.op for each in graph.nodes) == ops
    np.testing.assert_array_equal(run(graph, {"x": DATA})["y"], onnxruntime_values(model, {"x": DATA})["y"])


def test_of_constants_any_elements_are_taken(onnxruntime_values: Reference) -> None:
    indices = np.random.default_rng(1).integers(-5, 5, (2, 7, 3))
    model, fed = _model(indices, 1, constant=True), {"z": np.ones(1, np.float32)}
    graph = import_model(model)
    assert [each.op for each in graph.nodes] == ["Add"]
    np.testing.assert_array_equal(run(graph, fed)["y"], onnxruntime_values(model, fed)["y"])


WRONG = {
    "they vary along two axes": (np.arange(40).reshape(2, 5, 4) % 5, 1, "E202"),
    "an index beyond the axis": (_alike([0, 5], 1, 2, 4), 1, "E105"),
    "another rank": (np.zeros((2, 5), np.int64), 1, "E105"),
    "more than the tensor has along another axis": (_alike([0], 1, 3, 4), 1, "E105"),
}


@pytest.mark.parametrize(("indices", "axis", "code"), WRONG.values(), ids=WRONG)
def test_other_indices_are_refused(indices: Array, axis: int, code: str) -> None:
    with pytest.raises(NpucError) as caught:
        import_model(_model(indices, axis))
    assert [each.code for each in caught.value.problems] == [code]


OF_SEVERAL_AXES = {
    "along one axis": np.array([[1], [0], [-1]]),
    "along two": np.array([[[1, 4], [0, -5]], [[-2, 2], [1, 1]], [[0, 0], [0, 0]]]),
    "single elements": np.array([[1, 4, 3], [0, 0, 0], [-1, -1, -1]]),
    "one vector": np.array([1, 2]),
}


def _model_nd(indices: Array, batch_dims: int = 0) -> onnx.ModelProto:
    node = f"y = GatherND <batch_dims = {batch_dims}> (x, i)"
    return parse(f"g (float[2,5,4] x) => (y) {{ {node} }}", 13, i=indices)


@pytest.mark.parametrize("indices", OF_SEVERAL_AXES.values(), ids=OF_SEVERAL_AXES)
def test_indices_into_several_axes_gather_slices(indices: Array, onnxruntime_values: Reference) -> None:
    model = _model_nd(indices)
    graph = import_model(model)
    assert {each.op for each in graph.nodes} <= {"Reshape", "Gather"}
    np.testing.assert_array_equal(run(graph, {"x": DATA})["y"], onnxruntime_values(model, {"x": DATA})["y"])


WRONG_ND = {
    "beyond the second axis": (np.array([[0, 5]]), 0, "E105"),
    "more indices than axes": (np.zeros((1, 4), np.int64), 0, "E105"),
    "indices of each sample": (np.zeros((2, 1), np.int64), 1, "E202"),
}


@pytest.mark.parametrize(("indices", "batch_dims", "code"), WRONG_ND.values(), ids=WRONG_ND)
def test_other_indices_into_several_axes_are_refused(indices: Array, batch_dims: int, code: str) -> None:
    with pytest.raises(NpucError) as refused:
        import_model(_model_nd(indices, batch_dims))
    assert [each.code for each in refused.value.problems] == [code]
