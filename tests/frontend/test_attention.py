"""Attention and its masks as PyTorch writes them: with the results of ONNX and onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from npuc.errors import DataError, NpucError
from npuc.frontend import import_model
from npuc.ir import Array
from npuc.ops.interpreter import run
from npuc.regions.artefact import is_composite
from npuc.samples.loading import Samples
from tests.compiled import checked, places, program_of
from tests.conftest import Reference
from tests.frontend.test_refusals import problem_of, problems_of
from tests.onnx_models import network, parse, tensors

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


@pytest.mark.parametrize(("model", "code", "reason"), [
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
])  # fmt: skip
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


GUARD = "s = Softmax(z)\n n = IsNaN(s)\n y = Where(n, zero, s)"
LOGITS = "l = MatMul(x, w)"
CAUSAL = np.where(np.tri(4, dtype=bool), 0, -np.inf).astype(np.float32)
FULL = CAUSAL.copy()
FULL[2] = -np.inf
ONE = np.full((4, 1), -np.inf, np.float32)
RANDOM = np.random.default_rng(3)
CONSTANTS = {
    "w": RANDOM.normal(0, 0.5, (4, 4)).astype(np.float32), "causal": CAUSAL, "full": FULL, "one": ONE,
    "undefined": np.where(np.eye(4), np.nan, 0).astype(np.float32), "kept": np.tri(4, dtype=bool),
    "never": np.zeros((2, 1, 1), bool), "always": np.ones((1, 4), bool), "zero": np.float32(0),
    "least": np.float32(-np.inf), "low": np.float32(-3.4e38), "some": np.float32(-4),
    "epsilon": np.float32(1e-6), "two": np.float32(2), "three": np.array([2, 4, 4]), "cube": np.float32(3),
    "minus": np.float32(-2), "huge": np.float32(1e20), "tiny": np.float32(1e-30),
    "bar": np.array([0, -np.inf, 0, 0], np.float32), "variance": np.array([1, 2, -0.5, 1], np.float32),
    "gain": np.linspace(0.5, 2, 4, dtype=np.float32),
}  # fmt: skip
X = RANDOM.normal(0.3, 1, (2, 4, 4)).astype(np.float32)


def of(body: str, inputs: str = "float[2,4,4] x") -> onnx.ModelProto:
    return parse(f"g ({inputs}) => (y) {{ {body} }}", **CONSTANTS)


NEVER_NAN = {
    "logits": f"{LOGITS}\n z = Mul(l, two)",
    "a constant mask": f"{LOGITS}\n z = Add(l, causal)",
    "the mask first": f"{LOGITS}\n z = Add(causal, l)",
    "behind RMSNorm": "q = Mul(x, x)\n m = ReduceMean<axes = [-1]>(q)\n e = Add(m, epsilon)\n r = Sqrt(e)\n"
    " i = Reciprocal(r)\n v = Mul(x, i)\n z = MatMul(v, w)",
    "behind a squared norm": "q = Pow(x, two)\n m = ReduceMean<axes = [-1]>(q)\n e = Add(epsilon, m)\n"
    " r = Sqrt(e)\n v = Div(x, r)\n z = MatMul(v, w)",
    "behind LayerNormalization": "x2 = Mul(x, gain)\n v = LayerNormalization(x2, gain)\n z = MatMul(v, w)",
    "behind masked attention": f"{LOGITS}\n k = Add(l, causal)\n a = Softmax(k)\n z = MatMul(a, x)",
    "a chosen mask": f"{LOGITS}\n z = Where(kept, l, low)",
    "a quotient by what has a lower limit": "d = Max(x, epsilon)\n v = Div(x, d)\n z = MatMul(v, w)",
    "the root of what is not negative": "q = Relu(x)\n v = Sqrt(q)\n z = MatMul(v, w)",
}


@pytest.mark.parametrize("body", NEVER_NAN.values(), ids=NEVER_NAN)
def test_the_test_for_nan_behind_a_softmax_is_left_out(body: str, onnxruntime_values: Reference) -> None:
    model = of(f"{body}\n {GUARD}")
    graph = import_model(model)
    assert graph.nodes[-1].op == "Softmax"
    wanted = onnxruntime_values(model, {"x": X})["y"]
    np.testing.assert_allclose(run(graph, {"x": X})["y"], wanted, rtol=1e-5, atol=1e-6)


MAYBE_NAN = {
    "the mask removes a row": f"{LOGITS}\n z = Add(l, full)",
    "the mask is the same for a whole row": f"{LOGITS}\n z = Add(l, one)",
    "NaN in the mask": f"{LOGITS}\n z = Add(l, undefined)",
    "the mask is an input": f"{LOGITS}\n z = Add(l, m)",
    "the mask is chosen": f"{LOGITS}\n b = Cast<to = 9>(m)\n k = Where(b, zero, least)\n z = Add(l, k)",
    "the axis of the mask": f"{LOGITS}\n k = Add(l, causal)\n z = Transpose<perm = [0, 2, 1]>(k)",
    "two masks": f"{LOGITS}\n b = Cast<to = 9>(m)\n k = Where(b, zero, low)\n t = Add(k, low)\n z = Add(l, t)",
    "a large product": f"{LOGITS}\n k = Mul(m, low)\n z = Add(l, k)",
    "a logarithm": "g = Log(x)\n z = MatMul(g, w)",
    "a root": "g = Sqrt(x)\n z = MatMul(g, w)",
    "a quotient": "g = Div(w, x)\n z = MatMul(g, w)",
    "a quotient by what may be 0": "d = Relu(x)\n g = Div(w, d)\n z = MatMul(g, w)",
    "a power": "g = Pow(x, epsilon)\n z = MatMul(g, w)",
    "a sum that may be negative": "e = Add(x, epsilon)\n g = Sqrt(e)\n z = MatMul(g, w)",
    "a mask along another axis than the Softmax's": f"{LOGITS}\n k = Add(l, bar)\n a = Softmax<axis = 1>(k)\n"
    " z = MatMul(a, w)",
    "products beyond float32": "g = Mul(x, huge)\n h = Mul(g, huge)\n z = MatMul(h, w)",
    "a quotient by next to nothing": "g = Div(x, tiny)\n z = MatMul(g, w)",
    "a negative variance": "g = BatchNormalization(x, gain, gain, gain, variance)\n z = MatMul(g, w)",
    "a negative power": "g = Pow(x, minus)\n z = MatMul(g, w)",
    "the root of a cube": "q = Pow(x, cube)\n e = Add(q, epsilon)\n g = Sqrt(e)\n z = MatMul(g, w)",
    "the root of a product": "q = Mul(x, m)\n e = Add(q, epsilon)\n g = Sqrt(e)\n z = MatMul(g, w)",
    "a constant that is infinite": "g = Mul(x, least)\n z = MatMul(g, w)",
}


@pytest.mark.parametrize("body", MAYBE_NAN.values(), ids=MAYBE_NAN)
def test_it_stays_where_a_row_may_be_nan(body: str) -> None:
    problems = problems_of(of(f"{body}\n {GUARD}", "float[2,4,4] x, float[2,4,4] m"))
    assert {each.code for each in problems} == {"E202"}


def test_an_input_is_tested_for_nan(tmp_path: Path) -> None:
    program = program_of(of("y = IsNaN(x)"), tmp_path)
    assert [ops for place, ops in places(program) if place == "host"] == [("IsNaN",)]


WHERE = {
    "-inf": f"{LOGITS}\n y = Where(kept, l, least)",
    "almost -inf, the other way round": f"{LOGITS}\n y = Where(kept, low, l)",
    "a number": f"{LOGITS}\n y = Where(kept, l, some)",
    "two tensors": f"{LOGITS}\n k = Relu(l)\n y = Where(kept, l, k)",
    "always": f"{LOGITS}\n y = Where(always, l, some)",
    "never, and larger": "k = ReduceMax<axes = [0], keepdims = 0>(x)\n y = Where(never, some, k)",
}


@pytest.mark.parametrize("body", WHERE.values(), ids=WHERE)
def test_a_choice_by_a_constant_is_arithmetic(body: str, onnxruntime_values: Reference) -> None:
    model = of(body)
    found, wanted = run(import_model(model), {"x": X})["y"], onnxruntime_values(model, {"x": X})["y"]
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "body", ["g = Log(x)\n y = Where(kept, x, g)", "b = Cast<to = 9>(x)\n y = Where(b, x, w)"]
)
def test_a_choice_among_infinities_or_by_a_computed_condition_is_refused(body: str) -> None:
    assert (problem_of(of(body)).op, problem_of(of(body)).code) == ("Where", "E202")


@pytest.mark.parametrize("mask", [CAUSAL, FULL], ids=["causal", "a removed row"])
def test_attention_as_pytorch_writes_it_agrees(mask: Array, tmp_path: Path) -> None:
    model = of(f"{LOGITS}\n z = Add(l, causal)\n {GUARD.replace('y =', 'a =')}\n y = MatMul(a, x)")
    next(each for each in model.graph.initializer if each.name == "causal").CopyFrom(*tensors({"causal": mask}))
    if mask is FULL:  # NaN in every sample: nothing can be proved
        with pytest.raises(DataError, match="not finite"):
            program_of(model, tmp_path, "bm1684")
    program = program_of(model, tmp_path, "bm1684", {"proof": "off"} if mask is FULL else None)
    assert is_composite(program) == (mask is FULL)
    assert checked(program, tmp_path)["status"] == "ok"


TESTED = {
    "a number": ("k = Where(b, zero, low)\n z = Add(l, k)", False),
    "-inf": ("k = Where(b, zero, least)\n z = Add(l, k)", True),
    "a part": (
        "k = Where(b, zero, low)\n j = Expand(k, three)\n m = Concat<axis = -1>(j, c)\n"
        " p = Concat<axis = -1>(l, l)\n z = Add(p, m)",
        True,
    ),
}


@pytest.mark.parametrize(("mask", "tested"), TESTED.values(), ids=TESTED)
def test_a_mask_that_the_host_computes_needs_a_test_for_nan_only_if_a_row_may_have_no_number(
    mask: str, tested: bool, tmp_path: Path
) -> None:
    body = f"{LOGITS}\n {mask}\n {GUARD.replace('y =', 'a =')}\n y = Mul(a, some)"
    ports = "float[2,4,4] x, bool[4,4] b" + (", float[2,4,4] c" if "c)" in mask else "")
    program = program_of(of(body, ports), tmp_path, "bm1684")
    on_host = [op for place, ops in places(program) if place == "host" for op in ops]
    assert ("IsNaN" in on_host) == tested
    kept = np.tri(4, dtype=bool)
    kept[2] = False
    feeds = {"x": X[None], "b": kept[None]} | ({"c": X[None]} if "c)" in mask else {})
    assert checked(program, tmp_path, Samples(feeds))["status"] == "ok"
