"""Constants that npuc finds in onnxruntime's place: the same bits, and what is too large stays a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npuc import reference
from npuc.ir import Array, Graph, Node, TensorType
from npuc.onnx_files.export import FOLDED, MOST_BYTES, result_of, to_onnx
from npuc.ops import build
from npuc.targets.nvdla.arithmetic.integer import SdpStage
from npuc.targets.nvdla.arithmetic.operators import OPERATORS

Reference = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((1, 3, 8)) * 1000
X[0, 0, :6] = [0.0, -0.0, 0.5, -0.5, 2.0**53, -127.5]
HALVES = np.array([[[0.5], [-1.5], [3e-9]]])
ENTRIES, PLACES = np.arange(-128, 128, dtype=np.int8), np.array([0, -1, 5, -128, 127], np.int32)

CASES: list[tuple[str, list[Array], dict[str, Any]]] = [
    *((op, [X, HALVES], {}) for op in ("Add", "Max", "Mul", "Sub")),
    *((op, [X.astype(np.float32), HALVES.astype(np.float32)], {}) for op in ("Add", "Max", "Mul", "Sub")),
    ("Sub", [PLACES, np.array(1, np.int32)], {}), ("Floor", [X], {}), ("Floor", [X.astype(np.float32)], {}),
    ("Clip", [X, np.array(-128.0), np.array(127.0)], {}),
    ("Cast", [X.clip(-128, 127)], {"to": TensorProto.INT8}), ("Cast", [X], {"to": TensorProto.FLOAT}),
    ("Cast", [PLACES > 1], {"to": TensorProto.INT32}), ("Gather", [X[0, 0], PLACES.clip(-8, 7)], {}),
    ("Gather", [X, np.array([2, 0])], {"axis": 1}), ("GatherElements", [ENTRIES, PLACES], {}),
    ("GreaterOrEqual", [PLACES[:, None], PLACES[None]], {}),
    ("ReduceSum", [np.outer(PLACES, PLACES), np.array([1])], {"keepdims": 0}),
    ("ReduceSum", [PLACES, np.array([0])], {}), ("Reshape", [X, np.array([-1, 4])], {}),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "values", "attrs"), CASES)
def test_a_result_has_the_bits_of_onnxruntimes(
    op_type: str, values: list[Array], attrs: dict[str, Any], onnxruntime_values: Reference
) -> None:
    feeds = {f"x{place}": value for place, value in enumerate(values)}
    types = [numpy_helper.from_array(value, name) for name, value in feeds.items()]
    ports = [helper.make_tensor_value_info(each.name, each.data_type, [*each.dims]) for each in types]
    node = helper.make_node(op_type, list(feeds), ["y"], **attrs)
    body = helper.make_graph([node], "g", ports, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found, wanted = result_of(op_type, values, attrs), onnxruntime_values(model, feeds)["y"]
    assert found is not None
    assert (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


def test_every_folded_operator_is_compared() -> None:
    assert {op_type for op_type, _, _ in CASES} == FOLDED.keys()


def test_what_is_no_constant_or_too_large_is_not_folded() -> None:
    large = np.zeros(MOST_BYTES // 4 + 1, np.float32)
    assert result_of("Floor", [None], {}) is None
    assert result_of("Floor", [large], {}) is None
    assert result_of("Cast", [large.astype(np.int8)], {"to": TensorProto.FLOAT}) is None
    assert result_of("Add", [large[:200, None], large[:200]], {}) is None
    assert result_of("Softmax", [large[:1]], {}) is None


def looked_up() -> Graph:
    """A pass on NVDLA whose results are looked up in a table that its constants determine."""
    x1 = SdpStage(alu=1, multiply=1, shift=3).as_attr()
    constants = {"a": np.array([[[-77]]], np.int16), "m": np.array([[[23]]], np.int16)}
    node = Node("NvElementwise", ("x", "a", "m"), ("y",), {"x1": x1}, "n")
    return build("g", [node], {"x": TensorType((1, 1, 16, 16), "int8")}, ("y",), constants, OPERATORS)


def test_a_table_of_constants_is_stored_and_selects_what_the_nodes_selected(onnxruntime_values: Reference) -> None:
    whole, folded = (to_onnx(looked_up(), folded=each) for each in (False, True))
    assert len(whole.graph.node) > len(folded.graph.node) == 4
    assert [node.op_type for node in folded.graph.node] == ["Reshape", "Cast", "GatherElements", "Reshape"]
    assert len(folded.graph.initializer) == 3  # the table and two shapes
    feed = {"x": np.arange(-128, 128).astype(np.int8).reshape(1, 1, 16, 16)}
    found, wanted = (onnxruntime_values(model, feed)["y"] for model in (folded, whole))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("extent", "few"), [(4, True), (512, False)])
def test_a_session_is_optimised_if_its_runs_take_longer_than_its_opening(
    extent: int, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    opened = reference.session

    def recorded(model: onnx.ModelProto, *, few_runs: bool) -> Any:
        asked.append(few_runs)
        return opened(model, few_runs=few_runs)

    monkeypatch.setattr(reference, "session", recorded)
    w = {"w": np.ones((8, 8, 3, 3), np.float32)}
    x = TensorType((1, 8, extent, extent))
    graph = build("g", [Node("Conv", ("x", "w"), ("y",), {"pads": (1, 1, 1, 1)}, "n")], {"x": x}, ("y",), w)
    reference.integer_session(graph, ["y"], 16)
    assert asked == [few]
