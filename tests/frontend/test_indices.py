"""Constant indices, axes, pads and divisors, over the borders of what is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import npuc
from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.ir import Array
from npuc.ops.interpreter import run
from tests.onnx_models import parse

CASES: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "the last index": ("y = Gather <axis = 1> (a, c)", {"c": [3]}, None),
    "an index behind it": ("y = Gather <axis = 1> (a, c)", {"c": [0, 4]}, "indices from 0 to 4"),
    "the first index from behind": ("y = Gather <axis = 1> (a, c)", {"c": [-4, 3]}, None),
    "an index before it": ("y = Gather <axis = 1> (a, c)", {"c": [-5]}, "indices from -5 to -5"),
    "an index into a constant": ("b = Gather <axis = 0> (d, c)\n y = Add (a, b)", {"c": [4]}, "from 4 to 4"),
    "an index into a shape": ("s = Shape (a)\n y = Gather <axis = 0> (s, c)", {"c": [3]}, "indices from 3 to 3"),
    "no index at all": ("b = Gather <axis = 1> (a, c)\n y = Concat <axis = 1> (a, b)", {"c": []}, None),
    "a divisor of 1": ("i = Cast <to = 7> (a)\n j = Div (i, c)\n y = Cast <to = 1> (j)", {"c": [1]}, None),
    "a divisor of -1": ("i = Cast <to = 7> (a)\n j = Div (i, c)\n y = Cast <to = 1> (j)", {"c": [-1]}, None),
    "a divisor of 0": ("i = Cast <to = 7> (a)\n j = Div (i, c)\n y = Cast <to = 1> (j)", {"c": [0]}, "by 0"),
    "a 0 among divisors": ("i = Cast <to = 7> (a)\n y = Div (i, c)", {"c": [1, 2, 0, 4, 5]}, "divided by 0"),
    "constants divided": ("i = Div (c, c)\n f = Cast <to = 1> (i)\n y = Add (a, f)", {"c": [0]}, "by 0"),
    "floats divided by 0": ("b = Div (a, z)\n y = Clip (b, z, o)", {"z": np.float32(0), "o": np.float32(1)}, None),
    "the last axis": ("y = ReduceSum (a, c)", {"c": [2]}, None),
    "an axis behind it": ("y = ReduceSum (a, c)", {"c": [3]}, "axis 3 of a tensor with 3 dimensions"),
    "steps of 0": ("y = Slice (a, c, o, o, z)", {"c": [0], "o": [2], "z": [0]}, "steps [0]"),
    "what only the host knows": ("y = CumSum (a, c)", {"c": np.int64(3)}, "cannot run it"),
}  # fmt: skip


@pytest.mark.parametrize("target", ["bm1684", "easynpu"])
@pytest.mark.parametrize("name", CASES)
def test_constants_are_checked_at_import(name: str, target: str) -> None:
    body, constants, said = CASES[name]
    held = {key: value if np.size(value) else np.asarray(value, np.int64) for key, value in constants.items()}
    text = f"g (float[1,4,5] x) => (y) {{ a = Abs (x)\n {body} }}"
    model = parse(text, **{"d": np.ones((4, 5)), **held})
    x = np.random.default_rng(0).uniform(1, 5, (3, 1, 4, 5)).astype(np.float32)
    precision = "fp32" if target == "bm1684" else "int8"
    if said is not None:
        with pytest.raises(NpucError) as caught:
            npuc.compile(model, target, precision=precision, calibration={"x": x}, level="0")
        assert said in str(caught.value) and {each.code for each in caught.value.problems} == {"E105"}
        return
    program = npuc.compile(model, target, precision=precision, calibration={"x": x}, level="0")
    session: Any = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = np.concatenate([session.run(None, {"x": each})[0] for each in x])
    np.testing.assert_allclose(program.run({"x": x})["y"], wanted, rtol=0.05, atol=0.1)


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


GATHER_ELEMENTS_CASES = {
    "channels in another order": (_alike([3, 0, 4, 4, -5], 1, 2, 4), 1, "Gather"),
    "a negative axis and 32-bit indices": (_alike([1, 1, 3], 2, 2, 5, dtype=np.int32), -1, "Gather"),
    "only a corner of the other axes": (_alike([1, 0], 0, 3, 2), 0, "Slice Gather"),
    "one index": (_alike([2], 1, 2, 4), 1, "Gather"),
}


@pytest.mark.parametrize(("indices", "axis", "ops"), GATHER_ELEMENTS_CASES.values(), ids=GATHER_ELEMENTS_CASES)
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


X = np.arange(1, 9, dtype=np.float32).reshape(2, 4)


def model_of(pads: list[int], mode: str) -> onnx.ModelProto:
    return parse(f'g (float[2,4] x) => (float[a,b] y) {{ y = Pad<mode = "{mode}">(x, p) }}', 19, p=np.array(pads))


def shifted(begin: int, width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Column i of the result is column i - begin of X, or 0 beside it."""
    return np.pad(X, ((0, 0), (16, 16)))[:, 16 - begin : 16 - begin + width]


@pytest.mark.parametrize("begin", [-6, -5, -4, -3, 3, 4, 5, 6])
@pytest.mark.parametrize("more", [1, 2, 4])
def test_a_crop_beyond_the_axis_takes_from_what_is_added(begin: int, more: int) -> None:
    for pads in ([0, begin, 0, more - begin - 4], [0, more - begin - 4, 0, begin]):
        model = model_of(pads, "constant")
        graph = import_model(model)
        (found,) = run(graph, {"x": X}, ["y"]).values()
        assert np.array_equal(found, shifted(pads[1], more))


@pytest.mark.parametrize("size", [2**31, 2**40, 2**63 - 1])
def test_sizes_that_cancel_take_no_memory(size: int) -> None:
    graph = import_model(model_of([0, size, 0, -size], "constant"))
    (found,) = run(graph, {"x": X}, ["y"]).values()
    assert np.array_equal(found, np.zeros((2, 4)))


@pytest.mark.parametrize("mode", ["edge", "wrap"])
def test_nothing_can_be_repeated_if_nothing_is_left(mode: str) -> None:
    assert import_model(model_of([0, -3, 0, 3], mode)).nodes
    with pytest.raises(NpucError, match="crops 5 of 4") as error:
        import_model(model_of([0, -5, 0, 5], mode))
    assert error.value.problems[0].code == "E105"
