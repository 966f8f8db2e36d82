"""Matrix products with and without constant weights."""

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


@pytest.mark.parametrize(
    ("node", "ops"),
    [
        ("Gemm (a, b, c)", "MatMul Add"),
        ("Gemm (a, b)", "MatMul"),
        ("Gemm <alpha = 2.0> (a, b)", "MatMul Mul"),
        ("Gemm <alpha = 2.0, beta = 3.0> (a, b, c)", "MatMul Mul Mul Add"),
    ],
)
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
