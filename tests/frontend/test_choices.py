"""IsNaN and Where, which PyTorch writes behind and before the Softmax of attention: with onnxruntime's results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc.errors import DataError
from npuc.frontend import import_model
from npuc.interpreter import run
from npuc.ir import Array
from npuc.regions.artefact import is_composite
from npuc.samples.loading import Samples
from tests.compiled import checked, places, program_of
from tests.conftest import Reference
from tests.frontend.test_refusals import problem_of, problems_of
from tests.onnx_models import parse, tensors

GUARD = "s = Softmax(z)\n n = IsNaN(s)\n y = Where(n, zero, s)"
LOGITS = "l = MatMul(x, w)"
CAUSAL = np.where(np.tri(4, dtype=bool), 0, -np.inf).astype(np.float32)
FULL = CAUSAL.copy()
FULL[2] = -np.inf
ONE = np.full((4, 1), -np.inf, np.float32)
RANDOM = np.random.default_rng(3)
CONSTANTS = {
    "w": RANDOM.normal(0, 0.5, (4, 4)).astype(np.float32),
    "causal": CAUSAL,
    "full": FULL,
    "one": ONE,
    "undefined": np.where(np.eye(4), np.nan, 0).astype(np.float32),
    "kept": np.tri(4, dtype=bool),
    "never": np.zeros((2, 1, 1), bool),
    "always": np.ones((1, 4), bool),
    "zero": np.float32(0),
    "least": np.float32(-np.inf),
    "low": np.float32(-3.4e38),
    "some": np.float32(-4),
    "epsilon": np.float32(1e-6),
    "two": np.float32(2),
    "three": np.array([2, 4, 4]),
    "cube": np.float32(3),
    "minus": np.float32(-2),
    "huge": np.float32(1e20),
    "tiny": np.float32(1e-30),
    "bar": np.array([0, -np.inf, 0, 0], np.float32),
    "variance": np.array([1, 2, -0.5, 1], np.float32),
    "gain": np.linspace(0.5, 2, 4, dtype=np.float32),
}
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
