"""Damaged models: whatever a file holds, the answer is a graph or an NpucError."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npuc.errors import NpucError
from npuc.frontend import import_model, load
from tests.onnx_models import parse

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,3,8,8] x) => (float[1,10] y) <int64[2] z = {1, -1}> {
    c = Conv <strides = [1, 1], pads = [1, 1, 1, 1], group = 1> (x, w, b)
    r = Clip(c)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    f = Reshape(p, z)
    s = Shape(f)
    y = Gemm <transB = 1, alpha = 1.0> (f, v)
}"""
EXTREMES = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 2**31, 2**63 - 1])


def small_model() -> onnx.ModelProto:
    return parse(TEXT, w=np.ones((4, 3, 3, 3)), b=np.ones(4), v=np.ones((10, 64)))


def survives(action: Callable[[], object]) -> None:
    """The action may raise an NpucError, which can be written down, and nothing else."""
    with contextlib.suppress(NpucError):
        try:
            action()
        except NpucError as error:
            print(error)
            raise


def test_the_undamaged_model_loads() -> None:
    assert [node.op for node in import_model(small_model()).nodes] == [
        "Conv",
        "Clip",
        "MaxPool",
        "Reshape",
        "Gemm",
    ]


@settings(
    max_examples=300, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_never_cause_a_traceback(tmp_path: Path, changes: list[tuple[float, int]]) -> None:
    data = bytearray(small_model().SerializeToString())
    for where, value in changes:
        data[int(where * len(data))] = value
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    survives(lambda: load(path))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.integers(0, 99), st.integers(0, 99), st.lists(EXTREMES, max_size=5), EXTREMES)
def test_changed_attributes_never_cause_a_traceback(node: int, index: int, values: list[int], value: int) -> None:
    model = small_model()
    chosen = [each for each in model.graph.node if each.attribute]
    attributes = chosen[node % len(chosen)].attribute
    attribute = attributes[index % len(attributes)]
    attribute.ints[:] = values
    attribute.i = value
    survives(lambda: import_model(model))


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.integers(0, 99), st.integers(0, 9), st.sampled_from(["", "x", "w", "z", "c", "y", "s", "nowhere"]))
def test_rewired_inputs_never_cause_a_traceback(node: int, index: int, name: str) -> None:
    model = small_model()
    inputs = model.graph.node[node % len(model.graph.node)].input
    if index < len(inputs):
        inputs[index] = name
    else:
        inputs.append(name)
    survives(lambda: import_model(model))


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.integers(0, 4), st.lists(EXTREMES, max_size=5), st.integers(-1, 30))
def test_changed_constants_never_cause_a_traceback(index: int, dims: list[int], data_type: int) -> None:
    model = small_model()
    tensor = model.graph.initializer[index % len(model.graph.initializer)]
    tensor.dims[:] = dims
    tensor.data_type = data_type
    survives(lambda: import_model(model))


@pytest.mark.parametrize("extent", [-(2**63), -1, 0, 2**40, 2**63 - 1])
def test_extreme_extents_of_an_input_are_refused(extent: int) -> None:
    model = small_model()
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = extent
    with pytest.raises(NpucError):
        import_model(model)
