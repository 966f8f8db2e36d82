"""What is compiled is right: random graphs near the borders of the lowering, and the borders one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from npuc.errors import NpucError
from npuc.ir import Array
from npuc.onnx_files.export import to_onnx
from npuc.target import Options, Request
from npuc.targets.bm1684.target import BM1684
from tests.compiled import compilation
from tests.graphs.drawn import drawn
from tests.onnx_models import network, node

EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 63, 64, 65, 97, 128, 129, 1000, 2047, 2048, 4095, 4096, 4097)
"""Around the number of NPUs and the largest extents of the interface."""


@pytest.mark.parametrize("first", range(0, 48, 8))
def test_a_drawn_graph_at_the_borders_of_the_machine_is_right_or_refused(first: int) -> None:
    graphs = (drawn(seed, steps=(1, 6), extents=EXTENTS, most_elements=24_000) for seed in range(first, first + 8))
    results = [judged(to_onnx(graph), 0, net.feeds()[0]) for graph, net in graphs]
    assert sum(result == "ok" for result in results) >= 5, results


def _feeds(model: onnx.ModelProto, rng: np.random.Generator) -> dict[str, Array]:
    shapes = {each.name: [d.dim_value for d in each.type.tensor_type.shape.dim] for each in model.graph.input}
    return {name: (rng.standard_normal(shape) + 0.25).astype(np.float32) for name, shape in shapes.items()}


def judged(model: onnx.ModelProto, seed: int, given: Mapping[str, Array] | None = None) -> str:
    """ok, or refused and why. Raises AssertionError for a wrong result, and whatever else goes wrong."""
    feeds = given or _feeds(model, np.random.default_rng(seed + 1))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in model.graph.output]
    expected = dict(zip(names, session.run(None, feeds), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        try:
            program = compilation(Request(path, BM1684, Options(precision="fp32"))).program
        except NpucError as error:
            return f"refused: {error}"
    found = BM1684.runner(program)({name: value[np.newaxis] for name, value in feeds.items()})
    for name, values in expected.items():
        room = 2e-5 * max(1.0, float(np.abs(values).max(initial=0)))
        np.testing.assert_allclose(found[name][0], values, rtol=0, atol=room, err_msg=name)
    return "ok"


def _one(op: str, shape: tuple[int, ...], *constants: Array, **attrs: Any) -> onnx.ModelProto:
    held = {f"c{index}": each for index, each in enumerate(constants)}
    return network([node(op, " ".join(["x", *held]), "y", **attrs)], shape, held)


@pytest.mark.parametrize("columns", [63, 64, 65, 128, 129, 2053, 4099])
@pytest.mark.parametrize("op", ["Add", "Div", "BatchNormalization", "PRelu", "Sigmoid"])
def test_columns_of_a_matrix_beyond_the_npus_are_their_own(op: str, columns: int) -> None:
    rng, shape = np.random.default_rng(columns), (3, columns)

    def row(offset: float = 1.5) -> Array:
        return (rng.standard_normal(columns) * 0.3 + offset).astype(np.float32)

    given = {"BatchNormalization": [row(), row(), row(), np.abs(row()) + 0.5], "Sigmoid": []}.get(op, [row()])
    assert judged(_one(op, shape, *given), 1) == "ok"


@pytest.mark.parametrize(
    "shape", [(1, 4096, 4), (2, 4097, 1), (1, 3, 2048), (1, 65, 2053), (1, 2, 2053, 3), (2, 1, 1, 4111)]
)
@pytest.mark.parametrize("op", ["Relu", "Sigmoid", "Sqrt", "BatchNormalization", "Mul"])
def test_functions_of_elements_know_no_largest_extent(op: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    channels = [np.abs(rng.standard_normal(shape[1])).astype(np.float32) + 0.5 for _ in range(4)]
    repeated = np.abs(rng.standard_normal((*shape[:-1], 1))).astype(np.float32)
    model = _one(op, shape, *{"BatchNormalization": channels, "Mul": [repeated]}.get(op, []))
    if op == "Sqrt":
        model.graph.node.insert(0, node("Abs", "x", "positive"))
        model.graph.node[1].input[0] = "positive"
    assert judged(model, 2) == "ok"


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 5), (2, 3, 4, 5), (1, 2, 3, 4, 5)])
def test_padding_goes_around_every_axis(mode: str, shape: tuple[int, ...]) -> None:
    begins, ends = [i % 2 + (i > 0) for i in range(len(shape))], [n % 2 if n > 1 else 0 for n in shape]
    begins = [min(b, n - 1) for b, n in zip(begins, shape, strict=True)]
    assert judged(_one("Pad", shape, np.array(begins + ends, np.int64), mode=mode), 4) == "ok"


def test_values_behind_the_last_column_are_never_read() -> None:
    """0 / 0 in words that no tensor has would end in a refusal of the chip model."""
    nodes = node("Gemm", "x w b", "g"), node("Reciprocal", "g", "r"), node("Tanh", "r", "y")
    assert judged(network(nodes, (2, 77), {"w": np.eye(77), "b": np.full(77, 9.0)}), 5) == "ok"


QDQ = (("int8", 0), ("int8", -29), ("uint8", 128))


@pytest.mark.parametrize(("dtype", "zero"), QDQ)
def test_a_quantised_model_computes_its_steps_in_fp32(dtype: str, zero: int) -> None:
    """Integers in, integers out, rounded in between: what onnxruntime rounds, ties included."""
    constants = {
        "s": np.float32(0.125), "z": np.array(zero, dtype), "r": np.float32(0.5),
        "w": np.eye(65, dtype=np.float32),
    }  # fmt: skip
    nodes = [
        node("Transpose", "x", "i", perm=[1, 0]),
        node("DequantizeLinear", "i s z", "f"),
        node("MatMul", "f w", "p"),
        node("QuantizeLinear", "p r z", "q"),
        node("DequantizeLinear", "q r z", "d"),
        node("Relu", "d", "l"),
        node("QuantizeLinear", "l s z", "y"),
    ]
    kind = TensorProto.INT8 if dtype == "int8" else TensorProto.UINT8
    model = network(nodes, (65, 4), constants, dtype=kind)
    limits = np.iinfo(dtype)
    values = np.resize(np.arange(limits.min, limits.max + 1), (65, 4)).astype(dtype)
    assert judged(model, 0, {"x": values}) == "ok"


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize("size", [(7, 9), (14, 18), (5, 30)])
@pytest.mark.parametrize("kind", ["half_pixel", "align_corners", "asymmetric"])
def test_images_are_resized_to_any_size(mode: str, size: tuple[int, int], kind: str) -> None:
    resize = node("Resize", "x - - sizes", "y", mode=mode, coordinate_transformation_mode=kind)
    assert judged(network([resize], (2, 3, 7, 9), {"sizes": np.array([2, 3, *size])}), 6) == "ok"


@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 5, 7), (3, 7, 9)), ((2, 3, 5, 65), (2, 3, 65, 4)), ((1, 4, 3, 70), (4, 70, 66)), ((5, 6), (2, 6, 3))],
)
def test_batches_of_matrices_that_are_both_computed_are_multiplied(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    assert judged(network([node("MatMul", "x w", "y")], {"x": left, "w": right}), 7) == "ok"


def test_a_product_of_more_rows_than_local_memory_holds_is_made_in_parts() -> None:
    weights = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32) / 17
    assert judged(_one("MatMul", (2, 900, 300), weights), 8) == "ok"
    turned = node("Transpose", "x", "t", perm=[2, 0, 1]), node("MatMul", "t w", "y")
    assert judged(network(turned, (900, 300, 2), {"w": weights}), 8) == "ok"


@pytest.mark.parametrize("shape", [(1, 70, 9, 11), (2, 5, 60, 40), (3, 4, 6), (1, 3, 2, 4, 5)])
def test_instances_are_normalised(shape: tuple[int, ...]) -> None:
    values = np.linspace(0.5, 2, shape[1]).astype(np.float32)
    assert judged(_one("InstanceNormalization", shape, values, values - 1), 9) == "ok"


@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 2, 3), (3,)])
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax", "ReduceMin"])
def test_any_axes_are_reduced(op: str, axes: tuple[int, ...]) -> None:
    assert judged(_one(op, (3, 66, 5, 7), axes=axes, keepdims=0), 10) == "ok"
