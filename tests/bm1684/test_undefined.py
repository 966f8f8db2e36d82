"""NaN on BM1684 in fp32: what would make a number of it runs on the host, and only where NaN is possible."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import npuc
from npuc.account import account_of
from npuc.errors import NpucError

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[1,4,8,8] x) => (float[1,4,?,?] y)'
SCALARS = "<float one = {1.0}, float tiny = {1e-6}, float two = {2.0}, float zero = {0.0}, float six = {6.0}>"
QUOTIENT, LOGARITHM = "d = Relu(x)\n q = Div(d, d)", "q = Log(x)"
HIDING = [
    "y = Relu(q)", "y = Exp(q)", "y = Sigmoid(q)", "y = Tanh(q)", "y = Elu(q)", "y = HardSigmoid(q)",
    "y = Softmax<axis = -1>(q)", "y = Clip(q, zero, six)", "y = Max(q, one)", "y = Min(q, one)",
    "y = MaxPool<kernel_shape = [2, 2]>(q)", "y = GlobalMaxPool(q)", "y = ReduceMax<axes = [2, 3]>(q)",
    "y = ReduceMin<axes = [2, 3]>(q)", "a = Add(q, one)\n b = Transpose<perm = [0, 1, 3, 2]>(a)\n y = Relu(b)",
]  # fmt: skip
KEEPING = ["y = Neg(q)", "y = LeakyRelu(q)", "y = Mul(q, two)", "y = HardSwish(q)", "y = GlobalAveragePool(q)"]


def _model(body: str) -> onnx.ModelProto:
    return parser.parse_model(f"{HEAD} {SCALARS} {{ {body} }}")


def _expect_same(model: onnx.ModelProto, program: npuc.Compiled) -> None:
    x = np.random.default_rng(0).standard_normal((1, 4, 8, 8)).astype(np.float32)
    wanted = np.asarray(onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0])
    assert np.isnan(wanted).any()
    np.testing.assert_allclose(program.run(x)["y"].reshape(wanted.shape), wanted, rtol=1e-5)


@pytest.mark.parametrize("source", [QUOTIENT, LOGARITHM], ids=["quotient", "logarithm"])
@pytest.mark.parametrize("hiding", HIDING)
def test_nan_stays_nan_behind_what_would_hide_it(source: str, hiding: str) -> None:
    """Before, a Relu gave 0, a MaxPool -inf."""
    model = _model(f"{source}\n {hiding}")
    _expect_same(model, npuc.compile(model, "bm1684"))


@pytest.mark.parametrize("keeping", KEEPING)
def test_what_keeps_nan_stays_on_the_npu(keeping: str) -> None:
    model = _model(f"{QUOTIENT}\n {keeping}")
    program = npuc.compile(model, "bm1684")
    assert [each["place"] for each in program.report["partitions"]] == ["npu"]
    _expect_same(model, program)


def test_without_the_host_it_is_refused_by_name() -> None:
    with pytest.raises(NpucError) as error:
        npuc.compile(_model(f"{QUOTIENT}\n y = Relu(q)"), "bm1684", strict=True)
    assert [(each.code, each.op, each.tensor) for each in error.value.problems] == [("E202", "Relu", "y")]
    assert "NaN" in error.value.problems[0].reason


@pytest.mark.parametrize(
    "divisor",
    [
        "n = Relu(x)\n d = Add(n, tiny)",
        "n = Mul(x, x)\n m = ReduceMean<axes = [2, 3]>(n)\n e = Add(m, tiny)\n d = Sqrt(e)",
        "n = Pow(x, two)\n e = Add(tiny, n)\n m = Mul(e, two)\n d = Pow(m, two)",
        "d = Max(x, tiny)", "d = Clip(x, tiny, six)", "d = Identity(two)",
        "a = Conv<kernel_shape = [1, 1]>(x, w)\n d = Add(a, tiny)",
    ],
)  # fmt: skip
def test_guarded_divisors_leave_the_relu_on_the_npu(divisor: str) -> None:
    model = _model(f"{divisor}\n q = Div(x, d)\n y = Relu(q)")
    if "(x, w)" in divisor:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "w"))
    program = npuc.compile(model, "bm1684")
    assert [each["place"] for each in program.report["partitions"]] == ["npu"]


@pytest.mark.parametrize(
    "divisor",
    ["d = Relu(x)", "d = Abs(x)", "d = Sub(x, tiny)", "d = Max(x, zero)", "a = Add(x, tiny)\n d = Sub(a, tiny)"],
)
def test_other_divisors_do_not(divisor: str) -> None:
    with pytest.raises(NpucError, match="may be NaN"):
        npuc.compile(_model(f"{divisor}\n q = Div(x, d)\n y = Relu(q)"), "bm1684", strict=True)


def test_a_logarithm_of_what_is_not_negative_is_a_number_or_infinite() -> None:
    model = _model("a = Abs(x)\n q = Log(a)\n y = Relu(q)")
    program = npuc.compile(model, "bm1684")
    assert "NaN" not in str(account_of(program.program.manifest))


def test_integers_are_as_before() -> None:
    """In int8, NaN is 0 wherever it becomes an integer."""
    program = npuc.compile(
        _model(f"{QUOTIENT}\n y = Relu(q)"), "bm1684", calibration="synthetic", precision="int8"
    )
    assert "NaN" not in str(account_of(program.program.manifest))
