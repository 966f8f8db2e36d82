"""Attention and RMSNormalization, which PyTorch writes from opset 23 on: with the results of ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.interpreter import run
from npuc.ir import Array
from npuc.regions.artefact import is_composite
from npuc.samples.loading import Samples
from tests.compiled import checked, program_of
from tests.onnx_models import network, tensors

HEADS = {"q": (1, 4, 5, 8), "k": (1, 4, 7, 8), "v": (1, 4, 7, 6)}
EQUAL = {"q": (2, 4, 5, 8), "k": (2, 4, 5, 8), "v": (2, 4, 5, 8)}
SHARED = {"q": (1, 6, 5, 8), "k": (1, 2, 7, 8), "v": (1, 2, 7, 6)}
FLAT = {"q": (2, 5, 32), "k": (2, 7, 16), "v": (2, 7, 12)}
BOOL = np.arange(35).reshape(5, 7) % 3 > 0
BOOL[:, 0] = True
NUMBERS = np.where(BOOL, np.linspace(-2, 3, 140).reshape(1, 4, 5, 7), -np.inf).astype(np.float32)


def _model(
    op: str,
    shapes: Mapping[str, tuple[int, ...]],
    constants: Mapping[str, Array] | None = None,
    opset: int = 23,
    **attrs: Any,
) -> onnx.ModelProto:
    nodes = [helper.make_node(op, [*shapes, *(constants or {})], ["y"], **attrs)]
    return network(nodes, shapes, constants, opset=opset)


def _behind_a_layer(
    shape: tuple[int, ...], heads: Mapping[str, tuple[int, ...]] = HEADS, **attrs: Any
) -> onnx.ModelProto:
    """Attention with a mask of finite numbers: a product with the identity."""
    model = _model("Attention", {**heads, "mask": shape}, **attrs)
    model.graph.node[0].input[3] = "made"
    model.graph.node.insert(0, helper.make_node("MatMul", ["mask", "one"], ["made"]))
    model.graph.initializer.extend(tensors({"one": np.eye(shape[-1])}))
    return model


def _feeds(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    random = np.random.default_rng(1)
    return {name: random.normal(0.3, 1, shape).astype(np.float32) for name, shape in shapes.items()}


CASES = [
    _model("Attention", HEADS),
    _model("Attention", HEADS, scale=0.3),
    _model("Attention", HEADS, scale=0.0),
    _model("Attention", EQUAL, is_causal=1),
    _model("Attention", HEADS, {"mask": NUMBERS[0, 0]}),
    _model("Attention", HEADS, {"mask": NUMBERS}),
    _model("Attention", HEADS, {"mask": BOOL}),
    _model("Attention", EQUAL, {"mask": BOOL[:, :5]}, is_causal=1),
    _model("Attention", SHARED),
    _model("Attention", FLAT, q_num_heads=4, kv_num_heads=2),
    _model("RMSNormalization", {"x": (2, 5, 16)}, {"s": np.linspace(-1, 2, 16, dtype=np.float32)}),
    _model(
        "RMSNormalization", {"x": (2, 3, 4)}, {"s": np.array([[2], [3], [1]], np.float32)}, axis=1, epsilon=0.1
    ),
    _behind_a_layer((4, 5, 7)),
    _behind_a_layer((5, 7)),
]


@pytest.mark.parametrize("model", CASES)
def test_the_result_is_that_of_onnxs_reference(model: onnx.ModelProto) -> None:
    shapes = {
        port.name: tuple(dim.dim_value for dim in port.type.tensor_type.shape.dim) for port in model.graph.input
    }
    feeds = _feeds(shapes)
    found: Any = ReferenceEvaluator(model).run(["y"], feeds)
    (wanted,) = found
    np.testing.assert_allclose(run(import_model(model), feeds)["y"], wanted, rtol=1e-4, atol=1e-5)


NO_KEY = {"mask": BOOL & (np.arange(5) != 2)[:, None]}
PAST = {**EQUAL, "mask": (5, 5), "past_k": (2, 4, 5, 8), "past_v": (2, 4, 5, 8)}


@pytest.mark.parametrize(
    ("model", "code", "reason"),
    [
        (_model("Attention", HEADS, is_causal=1), "E202", "5 queries and 7 keys with is_causal"),
        (_model("Attention", HEADS, softcap=2.0), "E202", "the scores are limited"),
        (_model("Attention", {**HEADS, "mask": (5, 7)}), "E106", "mask"),
        (_model("Attention", {**EQUAL, "mask": (5, 5)}, is_causal=1), "E106", "mask"),
        (_behind_a_layer((5, 5), EQUAL, is_causal=1), "E106", "made"),
        (_model("Attention", HEADS, NO_KEY), "E202", "leaves a query no key"),
        (_model("Attention", EQUAL, {"mask": np.arange(5) > 0}, is_causal=1), "E202", "leaves a query no key"),
        (_model("Attention", HEADS, {"mask": BOOL[:, :6]}), "E202", "for 7 keys"),
        (_model("Attention", PAST), "E202", "earlier keys"),
        (_model("Attention", EQUAL, left_window_size=2, opset=25), "E202", "a window of the keys"),
        (_model("Attention", FLAT), "E105", "0 heads"),
        (_model("Attention", {**HEADS, "q": (1, 3, 5, 8)}), "E105", "3 heads of queries"),
    ],
)
def test_other_forms_are_refused(model: onnx.ModelProto, code: str, reason: str) -> None:
    with pytest.raises(NpucError) as refused:
        import_model(model)
    problem = refused.value.problems[0]
    assert problem.code == code and reason in f"{problem.reason} {problem.tensor}"


@pytest.mark.parametrize(
    "model", [CASES[at] for at in (0, 8, 9, 10, -1)], ids=["heads", "shared", "flat", "rms", "mask"]
)
def test_it_runs_on_bm1684(model: onnx.ModelProto, tmp_path: Path) -> None:
    program = program_of(model, tmp_path, "bm1684")
    assert not is_composite(program)
    assert checked(program, tmp_path)["status"] == "ok"


@pytest.mark.parametrize(
    ("name", "on_host"), [("bm1684", {"Where", "Cast", "ReduceMax"}), ("easynpu", {"Attention"})]
)
def test_of_a_mask_of_booleans_only_the_mask_is_left_to_the_host(
    name: str, on_host: set[str], tmp_path: Path
) -> None:
    model = _model("Attention", {**EQUAL, "mask": (2, 1, 5, 5)})
    model.graph.node[0].name = "Attention"
    model.graph.input[3].type.tensor_type.elem_type = TensorProto.BOOL
    model.graph.initializer.extend(tensors({"w": np.eye(8)[::-1].copy()}))
    model.graph.node.append(helper.make_node("MatMul", ["y", "w"], ["z"]))
    model.graph.output[0].name = "z"
    program = program_of(model, tmp_path, name)
    host = [step["path"] for step in program.manifest["steps"] if step["kind"] == "host"]
    nodes = {
        node.op_type for path in host for node in onnx.load_from_string(bytes(program.files[path])).graph.node
    }
    assert nodes == on_host
    kept = np.random.default_rng(7).random((3, 2, 1, 5, 5)) > 0.4
    kept[..., 0] = True
    kept[1, ..., 3, :] = False  # a query without any key: 0
    feeds = {each: np.stack([values] * 3) for each, values in _feeds(EQUAL).items()}
    assert checked(program, tmp_path, Samples({**feeds, "mask": kept}))["status"] == "ok"
