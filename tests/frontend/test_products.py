"""Products of matrices and windows: Gemm and MatMul, Einsum, convolutions, scalers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.ir import Array
from npuc.ops.interpreter import run
from npuc.regions.artefact import is_composite
from tests.compiled import checked, program_of
from tests.onnx_models import network, node, parse

Reference = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]
RNG = np.random.default_rng(0)


def noise(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def check(node: str, values: Mapping[str, Array], constants: str, ops: str, reference: Reference) -> None:
    """Compares the node with onnxruntime; `constants` names the inputs that are initialisers."""
    fed = {name: value for name, value in values.items() if name not in constants.split()}
    inputs = ", ".join(f"float[{','.join(map(str, value.shape))}] {name}" for name, value in fed.items())
    model = parse(f"g ({inputs}) => (y) {{ y = {node} }}", 13)
    held = [numpy_helper.from_array(values[name], name) for name in constants.split()]
    model.graph.initializer.extend(held)
    graph = import_model(model)
    assert " ".join(each.op for each in graph.nodes) == ops
    np.testing.assert_allclose(run(graph, fed)["y"], reference(model, fed)["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 2.0), (1.0, 0.0)])
@pytest.mark.parametrize("bias", [(4,), (1, 4), (1,), (3, 1)])
def test_gemm_with_a_constant_weight(
    trans_a: int, trans_b: int, alpha: float, beta: float, bias: tuple[int, ...], onnxruntime_values: Reference
) -> None:
    node = f"Gemm <transA = {trans_a}, transB = {trans_b}, alpha = {alpha}, beta = {beta}> (a, b, c)"
    values = {
        "a": noise(*((5, 3) if trans_a else (3, 5))),
        "b": noise(*((4, 5) if trans_b else (5, 4))),
        "c": noise(*bias),
    }
    ops = ["Transpose"] * trans_a + ["Gemm"] + ["Add"] * (bias == (3, 1) and beta != 0)
    check(node, values, "b c", " ".join(ops), onnxruntime_values)


@pytest.mark.parametrize(("node", "ops"), [
    ("Gemm (a, b, c)", "MatMul Add"), ("Gemm (a, b)", "MatMul"), ("Gemm <alpha = 2.0> (a, b)", "MatMul Mul"),
    ("Gemm <alpha = 2.0, beta = 3.0> (a, b, c)", "MatMul Mul Mul Add"),
])  # fmt: skip
def test_gemm_without_a_constant_weight(node: str, ops: str, onnxruntime_values: Reference) -> None:
    values = {"a": noise(3, 5), "b": noise(5, 4), "c": noise(4)}
    used = {name: value for name, value in values.items() if f"{name}" in node.split("(")[1]}
    check(node, used, "", ops, onnxruntime_values)


def test_matmul_with_a_constant_matrix_becomes_gemm(onnxruntime_values: Reference) -> None:
    check("MatMul (a, b)", {"a": noise(3, 5), "b": noise(5, 4)}, "b", "Gemm", onnxruntime_values)


def test_other_products_stay(onnxruntime_values: Reference) -> None:
    check("MatMul (a, b)", {"a": noise(2, 3, 5), "b": noise(5, 4)}, "b", "MatMul", onnxruntime_values)
    check("MatMul (a, b)", {"a": noise(3, 5), "b": noise(5, 4)}, "a", "MatMul", onnxruntime_values)
    check("MatMul (a, b)", {"a": noise(3, 5), "b": noise(5, 4)}, "", "MatMul", onnxruntime_values)


def test_a_weight_in_the_right_orientation_keeps_its_name() -> None:
    model = parse("g (float[1,2] x) => (y) <float[3,2] w = {1,2,3,4,5,6}>{ y = Gemm <transB = 1> (x, w) }", 13)
    assert import_model(model).nodes[0].inputs == ("x", "w")


def test_an_addend_that_is_larger_than_the_product_is_refused() -> None:
    text = "g (float[1,5] a, float[5,4] b, float[3,4] c) => (y) { y = Gemm (a, b, c) }"
    model = parse(text, 13)
    with pytest.raises(NpucError, match="does not broadcast") as refused:
        import_model(model)
    assert refused.value.problems[0].code == "E105"


@pytest.mark.parametrize(("a", "b", "constants", "ops"), [
    ((4,), (4, 5), "", "Reshape MatMul Reshape"), ((3, 4), (4,), "", "Reshape MatMul Reshape"),
    ((4,), (4,), "", "Reshape Reshape MatMul Reshape"), ((2, 3, 4), (4,), "b", "MatMul Reshape"),
    ((4,), (2, 4, 5), "a", "MatMul Reshape"), ((4,), (4, 5), "b", "Reshape Gemm Reshape"),
    ((3, 4), (4,), "b", "Gemm Reshape"), ((3, 4), (4,), "a", "Reshape MatMul Reshape"),
])  # fmt: skip
def test_vectors_are_matrices_of_one_row_or_column(
    a: tuple[int, ...], b: tuple[int, ...], constants: str, ops: str, onnxruntime_values: Reference
) -> None:
    check("MatMul (a, b)", {"a": noise(*a), "b": noise(*b)}, constants, ops, onnxruntime_values)


def _model(equation: str, *shapes: Sequence[int], constants: Sequence[int] = ()) -> onnx.ModelProto:
    """One Einsum; constants: the operands that are weights."""
    random = np.random.default_rng(2)
    weights = {f"x{at}": random.normal(0.2, 1, shapes[at]) for at in constants}
    inputs = {f"x{at}": shape for at, shape in enumerate(shapes) if at not in constants}
    names = " ".join(f"x{at}" for at in range(len(shapes)))
    return network([node("Einsum", names, "y", equation=equation)], inputs, weights)


@pytest.mark.parametrize(("equation", "shapes"), [
    ("ij,jk->ik", ((2, 3), (3, 4))), ("ij,jk", ((2, 3), (3, 4))), ("ij , kj -> ki", ((2, 3), (4, 3))),
    ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))), ("bhqk,bkhd->bqhd", ((2, 3, 4, 5), (2, 5, 3, 6))),
    ("bchw,bdhw->bcd", ((2, 3, 4, 5), (2, 6, 4, 5))), ("bchw,dc->bdhw", ((2, 3, 4, 5), (6, 3))),
    ("dc,bchw->bdhw", ((6, 3), (2, 3, 4, 5))), ("nctv,vw->nctw", ((2, 3, 4, 5), (5, 5))),
    ("nkctv,kvw->nctw", ((1, 2, 3, 4, 5), (2, 5, 6))), ("i,j->ij", ((3,), (4,))), ("i,j->ji", ((3,), (4,))),
    ("i,i->", ((3,), (3,))), ("bi,bi->b", ((2, 3), (2, 3))), ("bij,bj->bij", ((2, 3, 4), (2, 4))),
    ("bi,bk->bik", ((2, 3), (2, 4))), ("abc,cd->d", ((2, 3, 4), (4, 5))), ("ij,jk->i", ((2, 3), (3, 4))),
    ("bij->bji", ((2, 3, 4),)), ("bij->j", ((2, 3, 4),)), ("ba", ((2, 3),)),
])  # fmt: skip
def test_the_result_is_numpys(equation: str, shapes: Sequence[Sequence[int]]) -> None:
    random = np.random.default_rng(1)
    feeds = {f"x{at}": random.normal(0.3, 1, shape).astype(np.float32) for at, shape in enumerate(shapes)}
    found = run(import_model(_model(equation, *shapes)), feeds)["y"]
    np.testing.assert_allclose(found, np.einsum(equation, *feeds.values()), rtol=1e-5, atol=1e-5)
    for at in range(len(shapes) if len(shapes) > 1 else 0):
        model = _model(equation, *shapes, constants=[at])
        weights = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        known = {name: each for name, each in feeds.items() if name not in weights}
        wanted = np.einsum(equation, *({**feeds, **weights}[name] for name in feeds))
        np.testing.assert_allclose(run(import_model(model), known)["y"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("equation", "shapes"), [
    ("ii->i", ((3, 3),)), ("...i->...", ((3, 3),)), ("ij,jk,kl->il", ((3, 3), (3, 3), (3, 3))),
    ("ij,jk->ik", ((2, 1), (3, 4))), ("ij,jk->iq", ((2, 3), (3, 4))), ("ijk,jk->i", ((2, 3), (3, 4))),
    ("ij->ii", ((2, 3),)),
])  # fmt: skip
def test_other_equations_are_refused(equation: str, shapes: Sequence[Sequence[int]]) -> None:
    with pytest.raises(NpucError) as refused:
        import_model(_model(equation, *shapes))
    assert refused.value.problems[0].code in ("E202", "E105")


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small", "bm1684"])
def test_a_product_with_a_weight_is_a_convolution(target: str, tmp_path: Path) -> None:
    program = program_of(_model("bchw,dc->bdhw", (1, 8, 6, 5), (12, 8), constants=[1]), tmp_path, target)
    assert not is_composite(program)
    assert program.manifest["report"]["macs"] == 12 * 8 * 30
    assert checked(program, tmp_path)["status"] == "ok"


def test_the_products_of_an_attention_run_on_bm1684(tmp_path: Path) -> None:
    program = program_of(_model("bqhd,bkhd->bhqk", (1, 7, 2, 8), (1, 9, 2, 8)), tmp_path, "bm1684")
    assert not is_composite(program)
    assert checked(program, tmp_path)["status"] == "ok"


def compare(op: str, w: tuple[int, ...], attrs: dict[str, Any], reference: Reference) -> None:
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 4, 9, 8), w))
    model = network([node(op, "x w", "y", **attrs)], x.shape, {"w": weight}, opset=13)
    found = run(import_model(model), {"x": x})["y"]
    np.testing.assert_allclose(found, reference(model, {"x": x})["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("more", [{}, {"strides": [2, 3]}, {"kernel_shape": [2, 3]}])
def test_conv_pads_automatically(auto_pad: str, more: dict[str, Any], onnxruntime_values: Reference) -> None:
    compare("Conv", (3, 4, 2, 3), {"auto_pad": auto_pad, **more}, onnxruntime_values)


@pytest.mark.parametrize("attrs", [
    {"auto_pad": "SAME_UPPER", "strides": [2, 3]}, {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
    {"auto_pad": "VALID", "strides": [2, 3]}, {"output_shape": [17, 16], "strides": [2, 2]},
    {"output_shape": [18, 17], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"output_shape": [19, 18], "strides": [2, 2], "output_padding": [1, 1]},
    {"output_shape": [17, 16], "strides": [2, 2], "kernel_shape": [4, 4]},
])  # fmt: skip
def test_conv_transpose_cuts_to_its_output_shape(attrs: dict[str, Any], onnxruntime_values: Reference) -> None:
    compare("ConvTranspose", (4, 3, 4, 4), attrs, onnxruntime_values)


def scaled(shape: str, offset: str, scale: str) -> onnx.ModelProto:
    node = f"y = ai.onnx.ml.Scaler<offset = {offset}, scale = {scale}>(x)"
    return parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>'
        f" g (float{shape} x) => (float{shape} y) {{ {node} }}"
    )


@pytest.mark.parametrize(("shape", "offset", "scale"), [
    ("[3]", "[1.5, -2.0, 0.25]", "[0.5, 3.0, -7.0]"), ("[4,3]", "[1.5, -2.0, 0.25]", "[0.5, 3.0, -7.0]"),
    ("[4,3]", "[1.5]", "[0.5]"),
])  # fmt: skip
def test_a_scaler_subtracts_and_multiplies_feature_by_feature(shape: str, offset: str, scale: str) -> None:
    model = scaled(shape, offset, scale)
    x = {
        "x": np.random.default_rng(0).standard_normal([int(n) for n in shape[1:-1].split(",")]).astype(np.float32)
    }
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = run(import_model(model), x)["y"]
    np.testing.assert_allclose(found, np.asarray(session.run(["y"], x)[0]), rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "offset", "code"), [("[1,4,3]", "[1.0, 1.0, 1.0]", "E202"), ("[4,3]", "[1.0, 1.0]", "E105")]
)
def test_a_scaler_of_other_shapes_is_refused(shape: str, offset: str, code: str) -> None:
    with pytest.raises(NpucError) as refused:
        import_model(scaled(shape, offset, offset))
    assert refused.value.problems[0].code == code


def test_other_operators_of_the_domain_are_not_known() -> None:
    model = scaled("[3]", "[1.0]", "[1.0]")
    model.graph.node[0].op_type = "Normalizer"
    model.graph.node[0].ClearField("attribute")
    with pytest.raises(NpucError) as refused:
        import_model(model)
    assert refused.value.problems[0].code == "E201"
