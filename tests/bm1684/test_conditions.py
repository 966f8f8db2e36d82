"""Conditions of BM1684's slices, views and constraints: where one does not hold, another way means the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from npuc import api
from npuc.account import account_of
from npuc.ir import Attr, Graph, Node
from npuc.onnx_files.export import to_onnx
from npuc.ops.interpreter import run
from npuc.program import as_loaded
from npuc.target import Options, target
from npuc.targets.bm1684.lowering import slicing
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.network import fixed, support
from npuc.targets.bm1684.network.fixed import OPERATORS
from tests.bm1684.kernels import need_compiler
from tests.conftest import Reference
from tests.graphs.compiling import Case, check_compile, compiled_program, samples_of, verified
from tests.passes.networks import feeds, network, node
from tests.runtime import RUNTIME

RELU = node("Relu", "x", "a")
CONV = node("Conv", "a w", "b", pads=(1, 1, 1, 1))
SUM = node("Add", "b c", "y")
COUNTED = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 1}


def _sliced(*nodes: Node, outputs: str = "y", images: int = 1, **constants: tuple[int, ...]) -> Graph:
    return network((images, 2, 24, 40), outputs, RELU, *nodes, **{"w": (2, 2, 3, 3), **constants})


SLICED = {
    "rows above and below the map": _sliced(node("Conv", "a w", "y", pads=(9, 0, 9, 0)), w=(2, 2, 3, 1)),
    "an average in ceil_mode": _sliced(
        CONV, node("AveragePool", "b", "y", **COUNTED, strides=(2, 2), ceil_mode=1)
    ),
    "a Concat of rows": _sliced(CONV, node("Concat", "a b", "y", axis=2)),
    "a Concat of channels": _sliced(CONV, node("Concat", "a b", "y", axis=1)),
    "a constant per row": _sliced(CONV, SUM, c=(24, 1)),
    "a graph output in the middle": _sliced(CONV, node("Relu", "b", "y"), outputs="b y"),
    "a constant per image": _sliced(CONV, SUM, images=3, c=(3, 1, 1, 1)),
    "a constant per image of lower rank": _sliced(CONV, SUM, images=3, c=(2, 1, 1)),
}


@pytest.mark.parametrize("local_bytes", [2048, 3072, 6144])
@pytest.mark.parametrize("name", SLICED)
def test_what_is_computed_in_slices_is_what_onnxruntime_computes_whole(
    name: str, local_bytes: int, onnxruntime_values: Reference
) -> None:
    if RUNTIME < (1, 29) and name == "an average in ceil_mode":
        pytest.skip("this onnxruntime divides windows that reach beyond the padding by another size")
    graph = SLICED[name]
    sliced = slicing.fit(graph, Machine(local_bytes=local_bytes))
    given = feeds(graph)
    found = run(sliced, given)
    for output, value in onnxruntime_values(to_onnx(graph), given).items():
        np.testing.assert_allclose(found[output], value, rtol=0, atol=1e-5 * np.abs(value).max())


@pytest.mark.parametrize("name", SLICED)
def test_these_graphs_are_sliced(name: str) -> None:
    assert len(slicing.fit(SLICED[name], Machine(local_bytes=3072)).nodes) > len(SLICED[name].nodes)


ODD = node("Slice", "b", "c", axes=(1,), starts=(1,), ends=(6,), steps=(2,))


def _averaged(side: int, **attrs: Attr) -> Graph:
    return network((1, 3, side, side), "y", RELU, node("AveragePool", "a", "y", **{**COUNTED, **attrs}))


MOVED = {
    "channels of two images": network(
        (2, 3, 4, 4), "y", RELU, CONV, node("Concat", "a b", "y", axis=1), w=(3, 3, 3, 3)
    ),
    "every other channel": network(
        (1, 6, 4, 4), "y", RELU, node("Conv", "a w", "b"), ODD, node("Relu", "c", "y"), w=(6, 6, 1, 1)
    ),
    "an average that counts fewer elements at the border": _averaged(5, strides=(2, 2), count_include_pad=0),
    "an average of one window that is partly padding": _averaged(2, pads=(1, 1, 0, 0), count_include_pad=0),
    "a window that lies in the padding": network(
        (1, 3, 1, 4), "y", node("Conv", "x w", "y", strides=(3, 1), pads=(1, 0, 0, 0)), w=(4, 3, 1, 2)
    ),
    "an average that counts its padding": _averaged(5),
}


@pytest.mark.parametrize("name", MOVED)
def test_the_chip_model_gives_what_onnxruntime_gives(name: str, tmp_path: Path) -> None:
    need_compiler()
    report = verified(MOVED[name], Case("bm1684", "fp32"), tmp_path, samples=2)
    assert all(each["max_abs_error"] < 1e-4 for each in report["outputs"])


Constraint = Callable[..., str | None]
PRELU = node("PRelu", "x slope", "y")


@pytest.mark.parametrize(
    ("shape", "refused"),
    [((4, 1, 1), False), ((1,), False), ((1, 4, 1), True), ((4,), True), ((4, 4, 4), True), ((12,), True)],
)
def test_slopes_are_one_or_one_per_channel_of_an_image(shape: tuple[int, ...], refused: bool) -> None:
    graph = network((12,) if shape == (12,) else (1, 4, 4, 4), "y", PRELU, slope=shape)
    assert bool(support.slope_per_channel(graph, graph.nodes[0])) is refused


@pytest.mark.parametrize(
    ("shape", "refused"),
    [
        ((1, 2, 2047), False), ((1, 2, 2048), True), ((1, 2, 23, 89, 4), False), ((1, 2, 2048, 4), True),
        ((1, 4095, 1), False), ((1, 4096, 1), True),
    ],
)  # fmt: skip
def test_images_that_are_normalised_fit_rows_columns_and_channels(shape: tuple[int, ...], refused: bool) -> None:
    channels = np.ones(shape[1], np.float32)
    layer = node("InstanceNormalization", "x s b", "y")
    graph = network(shape, "y", layer, s=channels, b=channels)
    assert bool(support.refusal(graph, graph.nodes[0])) is refused


@pytest.mark.parametrize("refusal", [support.refusal, fixed.refusal])
@pytest.mark.parametrize(("slope", "refused"), [(0.5, False), (-np.inf, True), (np.nan, True)])
def test_slopes_are_finite(refusal: Any, slope: float, refused: bool) -> None:
    graph = network((1, 4, 4, 4), "y", PRELU, slope=np.array([slope], np.float32))
    assert bool(refusal(graph, graph.nodes[0])) is refused


@pytest.mark.parametrize(("pads", "refused"), [(0, False), (2, False), (3, True)])
def test_padding_of_a_transposed_convolution_lies_within_its_kernel(pads: int, refused: bool) -> None:
    conv = node("ConvTranspose", "x w", "y", pads=(pads,) * 4)
    graph = network((1, 2, 6, 6), "y", conv, w=(2, 2, 3, 3))
    assert bool(support.refusal(graph, graph.nodes[0])) is refused


@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_padding_behind_a_transposed_convolution_may_exceed_its_kernel(
    kernel: int, stride: int, tmp_path: Path
) -> None:
    """Rows and columns are cut from the end one after the other, until little is left."""
    need_compiler()
    outputs = [
        node("ConvTranspose", "x w", f"y{end}", strides=(stride,) * 2, pads=(0, kernel - 1, end, most - end))
        for most in [3 * stride]
        for end in range(most + 1)
    ]
    graph = network((2, 3, 5, 5), " ".join(each.output for each in outputs), *outputs, w=(3, 2, kernel, kernel))
    report = verified(graph, Case("bm1684", "fp32"), tmp_path)
    assert max(each["max_abs_error"] for each in report["outputs"]) < 1e-5


def test_batches_in_an_order_that_no_strides_describe_are_copied(tmp_path: Path) -> None:
    need_compiler()
    moved = node("Transpose", "x", "t", perm=(1, 0, 2, 3))
    graph = network((2, 3, 4, 20), "y", moved, node("MatMul", "t w", "y"), w=(3, 2, 20, 9))
    report = verified(graph, Case("bm1684", "fp32"), tmp_path)
    assert max(each["max_abs_error"] for each in report["outputs"]) < 1e-4


def test_integers_are_refused() -> None:
    graph: Graph = network(
        (1, 2, 4, 4), "y", node("QuantizeLinear", "x s z", "q"), node("Relu", "q", "y"), s=0.1, z=np.int8(3)
    )
    assert support.floats(graph, graph.nodes[1])
    assert not support.floats(network((1, 2), "y", node("Relu", "x", "y")), node("Relu", "x", "y"))


def test_integers_that_are_moved_to_an_output_are_verified(tmp_path: Path) -> None:
    need_compiler()
    graph = network((1, 4, 4, 3), "q y", RELU, node("QuantizeLinear", "a s z", "q"),
        node("Transpose", "q", "y", perm=(0, 2, 3, 1)), s=0.05, z=np.int8(3))  # fmt: skip
    report = verified(graph, Case("bm1684", "fp32"), tmp_path, samples=2)
    assert all(each["max_abs_error"] <= 1 for each in report["outputs"])


def test_integers_that_are_outputs_have_their_own_type(tmp_path: Path) -> None:
    need_compiler()
    graph = network((1, 2, 4, 4), "q", node("QuantizeLinear", "x s z", "q"), s=0.1, z=np.int8(3))
    values = samples_of(graph, 2)
    _, program = compiled_program(graph, values, Case("bm1684", "fp32"), tmp_path)
    found = target("bm1684").runner(as_loaded(program), "own")(values)["q"]
    wanted = np.stack([run(graph, {"x": each})["q"] for each in values["x"]])
    np.testing.assert_array_equal(found, wanted, strict=True)


def test_a_product_takes_the_place_of_an_operand_that_nothing_else_reads(tmp_path: Path) -> None:
    need_compiler()
    layers = node("Tanh", "x", "a"), node("Sigmoid", "x", "b"), node("Mul", "a b", "s"), node("Tanh", "s", "y")
    graph = network((1, 4, 8, 8), "y", *layers)
    _, program = compiled_program(graph, samples_of(graph, 1), Case("bm1684", "fp32"), tmp_path)
    assert "s" not in {each["buffer"] for each in program.manifest["buffers"]}


KEEP_IMAGES_APART = [
    node("Concat", "x x", "y", axis=0), node("Split", "x", "y z", axis=0, split=(2, 2)),
    node("Slice", "x", "y", axes=(0,), starts=(1,), ends=(3,), steps=(1,)),
    node("Interleave", "x x", "y", axis=0), node("Pad", "x", "y", pads=(1, 0, 0, 0, 0, 0, 0, 0)),
    node("Reshape", "x", "y", shape=(2, 8, 4, 4)), node("Transpose", "x", "y", perm=(1, 0, 2, 3)),
]  # fmt: skip


@pytest.mark.parametrize("moved", KEEP_IMAGES_APART, ids=lambda each: each.op)
def test_moves_in_8_bits_do_not_touch_the_batch(moved: Node) -> None:
    graph = network((4, 4, 4, 4), " ".join(moved.outputs), moved)
    assert sum(check(graph, moved) is not None for check in OPERATORS[moved.op].constraints) == 1


@pytest.mark.parametrize("name", ["bm1684", "easynpu", "nvdla-small"])
def test_what_has_no_elements_is_refused(name: str) -> None:
    graph = network(
        (1, 3, 4, 4),
        "y",
        node("Slice", "x", "a", axes=(1,), starts=(3,), ends=(3,), steps=(1,)),
        node("Sigmoid", "a", "y"),
    )
    found = target(name).problems(graph, Options(precision=target(name).precisions[0]))
    assert {each.code for each in found} == {"E202"}
    assert all("no elements" in each.reason for each in found)


def test_a_constant_that_is_rounded_behind_a_concat_is_no_layer(tmp_path: Path) -> None:
    nodes = [
        node("Concat", "x c", "t", axis=3),
        node("QuantizeLinear", "t scale zero", "q"),
        node("DequantizeLinear", "q scale zero", "y"),
    ]
    graph = network((1, 4, 3, 3), "y", *nodes, c=(1, 4, 3, 1), scale=0.0131, zero=np.uint8(0))
    report = verified(graph, Case("bm1684", "fp32"), tmp_path, samples=2)
    assert report["status"] == "ok"


@pytest.mark.parametrize("end", [-1, 0])
def test_padding_alone_is_left_where_all_of_a_map_is_cut_away(end: int, tmp_path: Path) -> None:
    """A row is put before the only one, which the end takes away or leaves."""
    if RUNTIME < (1, 29) and end < 0:
        pytest.skip("this onnxruntime reads beyond a map that a Pad cuts away")
    graph = network(
        (2, 1, 2, 4),
        "y",
        node("Pad", "x", "a", mode="constant", pads=(2, 1, 1, 0, 2, end, 0, 0), value=0.5),
        node("Add", "a b", "y"),
        b=(6, 2 + end, 3, 4),
    )
    samples = samples_of(graph, 2)["x"]
    assert check_compile(graph, [{"x": each} for each in samples], Case("bm1684", "fp32"), tmp_path) == "ok"


@pytest.mark.parametrize(("columns", "floats"), [(3000, False), (40, True)])
def test_int8_sends_to_fp32_only_what_fp32_runs(columns: int, floats: bool) -> None:
    op = node("Max", "x x", "y") if floats else node("Conv", "x w", "y")
    graph = network((1, 1, 4, columns), "y", op, w=(1, 1, 1, 1))
    both = [target("bm1684").problems(graph, Options(precision=each, strict=True)) for each in ("int8", "fp32")]
    assert both[0] and bool(both[1]) != floats
    assert ("fp32" in str(both[0][0].help)) == floats


def test_what_the_host_runs_whole_is_proved_on_the_users_samples(tmp_path: Path) -> None:
    """Maps of too many columns, a prime number, behind one that is calibrated."""
    need_compiler()
    nodes = [RELU, node("Concat", "x a", "c", axis=1), node("InstanceNormalization", "c s t", "b")]
    graph = network((1, 32, 9, 3001), "y", *nodes, node("Relu", "b", "y"), s=(64,), t=(64,))
    path = tmp_path / "m.onnx"
    onnx.save(to_onnx(graph), path)
    values = np.random.default_rng(0).normal(0.2, 1, (1, 1, 32, 9, 3001)).astype(np.float32)
    found = api.compile(path, "bm1684", calibration={"x": values}, options=Options(precision="int8"))
    assert {each.place for each in account_of(found.program.manifest)} == {"host"}
