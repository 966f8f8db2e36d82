"""Forms that 8 bits have only after rewriting: other first axes, padding, dilations; compared with onnxruntime."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from npuc import api, running
from npuc.errors import HOST_STEP
from npuc.ir import Array
from npuc.reference import session
from npuc.target import Options
from npuc.targets.bm1684.network.passes import expand_slopes, functions_to_convs
from tests.bm1684.kernels import need_compiler, vendor_libraries
from tests.cli.process import SYNTHETIC, npuc
from tests.compiled import causes
from tests.passes.networks import assert_same_meaning, network, node
from tests.runtime import RUNTIME

ROWS = "m = MatMul(x, w)\n a = Add(m, b)\n r = Relu(a)\n"
IMAGE, BATCH = (1, 16, 24, 20), (5, 16, 24, 20)
FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], str]] = {
    "rows of windows": ((4, 6, 16), (4, 6, 12), ROWS + "y = Add(r, m)"),
    "windows joined": ((4, 9, 16), (1, 36, 12), ROWS + "y = Reshape(r, joined)"),
    "windows in another order": ((4, 6, 16), (6, 4, 12), ROWS + "y = Transpose <perm=[1, 0, 2]> (r)"),
    "windows moved round": (
        (4, 6, 16),
        (4, 6, 12),
        ROWS + "f, e = Split <axis=0, num_outputs=2> (r)\n y = Concat <axis=0> (e, f)",
    ),
    "scaled heads": (
        (4, 6, 16),
        (4, 3, 6, 4),
        "m = MatMul(x, w)\n g = Reshape(m, heads)\n t = Transpose <perm=[0, 2, 1, 3]> (g)\n y = Mul(t, half)",
    ),
    "padded windows": ((4, 6, 16), (5, 6, 12), ROWS + "y = Pad(r, one)"),
    "chosen windows": ((3, 4, 6, 16), (4, 6, 12), "g = Gather <axis=0> (x, second)\n y = MatMul(g, w)"),
    "columns of windows": ((2, 6, 16, 4), (2, 6, 12, 4), "y = MatMul(turned, x)"),
    "rows of images": (
        (2, 16, 5, 4),
        (2, 20, 12),
        "c = Conv <pads=[1, 1, 1, 1]> (x, k)\n p = MaxPool <kernel_shape=[1, 1]> (c)\n"
        "t = Transpose <perm=[0, 2, 3, 1]> (p)\n g = Reshape(t, tokens)\n y = MatMul(g, w)",
    ),
    "tokens' features": (
        (4, 6, 16),
        (4, 6, 16),
        "c = MatMul(x, w)\n a = Add(c, b)\n e = Sigmoid(a)\n y = MatMul(e, turned)",
    ),
    "maps beyond local memory": (
        (1, 16, 280, 260),
        (1, 16, 140, 130),
        "c = Conv <pads=[1, 1, 1, 1]> (x, k)\n r = Relu(c)\n e = Conv <group=16, pads=[0, 2, 0, 2]> (r, d)\n"
        "s = Sigmoid(e)\n a = Add(s, r)\n y = MaxPool <kernel_shape=[2, 2], strides=[2, 2]> (a)",
    ),
    "much padding": (IMAGE, (1, 16, 60, 22), "c = Conv <pads=[20, 3, 18, 1]> (x, k)\n y = Relu(c)"),
    "padding of unsigned maps": (
        BATCH,
        (5, 16, 14, 12),
        "c = Conv <pads=[1, 1, 1, 1]> (x, k)\n r = Relu(c)\n p = Pad(r, sides)\n"
        "y = MaxPool <kernel_shape=[2, 2], strides=[2, 2]> (p)",
    ),
    "mirrored": (IMAGE, (1, 16, 26, 21), 'p = Pad <mode="reflect"> (x, sides)\n y = Conv (p, k)'),
    "a number around": (IMAGE, (1, 16, 26, 21), "c = Conv(x, k)\n y = Pad(c, sides, one_)"),
    "a step below zero around": (IMAGE, (1, 16, 26, 21), "c = Conv(x, k)\n y = Pad(c, sides, little)"),
    "a negative number around a batch": (
        BATCH,
        (5, 16, 26, 21),
        "c = Conv(x, k)\n r = Relu(c)\n y = Pad(r, sides, low)",
    ),
    "the largest number around": (
        IMAGE,
        (1, 16, 26, 21),
        "c = Conv(x, k)\n s = Sigmoid(c)\n y = Pad(s, sides, high)",
    ),
    "slopes of elements": (
        (1, 16, 7, 6),
        (1, 16, 7, 6),
        "c = Conv <pads=[1, 1, 1, 1]> (x, k)\n y = PRelu(c, all)",
    ),
    "functions of vectors": (
        (5, 16),
        (5, 12),
        "g = Gemm(x, w, b)\n t = Tanh(g)\n p = Mul(t, t)\n r = PRelu(g, even)\n y = Add(p, r)",
    ),
    "functions of a row": ((1, 16), (1, 16), "t = Tanh(x)\n y = Add(t, x)"),
    "copies of an image": ((1, 16, 5, 4), (3, 16, 5, 4), "c = Conv(x, q)\n y = Expand(c, three_images)"),
    "columns beyond the field": (
        (1, 1, 4, 3000),
        (1, 10, 1, 1500),
        "c = Conv <pads=[1, 1, 1, 1]> (x, one_to_ten)\n s = Sigmoid(c)\n a = Add(s, c)\n"
        "y = MaxPool <kernel_shape=[4, 2], strides=[1, 2]> (a)",
    ),
    "channels beyond the field": (
        (3, 16, 3, 3),
        (3, 4, 3, 3),
        "c = Conv(x, up)\n t = Tanh(c)\n e = Conv <group=4100> (t, each)\n a = Add(e, t)\n y = Conv(a, down)",
    ),
    "a picture with its channels last": (
        (3, 72, 61, 3),
        (3, 10, 72, 61),
        "t = Transpose <perm=[0, 3, 1, 2]> (x)\n y = Conv <pads=[1, 1, 1, 1]> (t, three)",
    ),
    "pictures and results with their channels last": (
        (3, 40, 61, 3),
        (3, 38, 59, 10),
        "t = Transpose <perm=[0, 3, 1, 2]> (x)\n c = Conv(t, three)\n y = Transpose <perm=[0, 2, 3, 1]> (c)",
    ),
    "narrow depthwise": (IMAGE, IMAGE, "y = Conv <group=16, pads=[0, 2, 0, 2]> (x, d)"),
    "dilated depthwise": (BATCH, BATCH, "y = Conv <group=16, dilations=[2, 2], pads=[0, 4, 0, 4]> (x, d)"),
    "wide dilation": (IMAGE, IMAGE, "y = Conv <dilations=[18, 18], pads=[18, 18, 18, 18]> (x, k)"),
    "enlarged along rows": (IMAGE, (1, 16, 50, 22), "y = ConvTranspose <strides=[2, 1]> (x, k)"),
}
"""The shapes of input and result, and the nodes."""
MAPS = {
    "Sigmoid": "y = Sigmoid(c)",
    "Tanh": "y = Tanh(c)",
    "HardSwish": "y = HardSwish(c)",
    "HardSigmoid": "y = HardSigmoid(c)",
    "LeakyRelu": "y = LeakyRelu <alpha=0.2> (c)",
    "PRelu": "y = PRelu(c, slopes)",
    "PRelu of small slopes": "f = Mul(slopes, tenth)\n y = PRelu(c, f)",
    "Swish": "s = Sigmoid(c)\n y = Mul(c, s)",
    "Gelu": "e = Div(c, root)\n f = Erf(e)\n g = Add(f, one_)\n h = Mul(c, g)\n y = Mul(h, half)",
    "a square": "y = Mul(c, c)",
    "limits on both sides": "y = Clip(c, low, high)",
    "a gate of channels": "p = GlobalAveragePool(c)\n v = Conv(p, q)\n s = HardSigmoid(v)\n y = Mul(c, s)",
    "a gate of columns": "p = ReduceMean <keepdims=1> (c, rows)\n s = Sigmoid(p)\n y = Mul(s, c)",
    "a product of positive maps": "r = Relu(c)\n s = Sigmoid(c)\n y = Mul(r, s)",
    "the larger of two maps": "t = Tanh(c)\n s = Sigmoid(c)\n y = Max(t, s)",
    "the smaller of two maps": "t = Tanh(c)\n s = Sigmoid(c)\n y = Min(s, t)",
    "the larger of a map and numbers": "y = Max(slopes, c)",
    "the smaller of a map and numbers": "y = Min(c, slopes)",
    "a sum with a mean": "p = GlobalAveragePool(c)\n y = Add(p, c)",
}
"""Of a convolution's result c: functions of one element, and products."""
FORMS.update(
    {
        f"{name} of {n}": ((n, 16, 7, 6), (n, 16, 7, 6), f"c = Conv <pads=[1, 1, 1, 1]> (x, k)\n {nodes}")
        for n in (1, 5)
        for name, nodes in MAPS.items()
    }
)
WEIGHTS: dict[str, tuple[int, ...]] = {
    "w": (16, 12),
    "b": (12,),
    "k": (16, 16, 3, 3),
    "d": (16, 1, 1, 5),
    "q": (16, 16, 1, 1),
    "gains": (16,),
    "b16": (16,),
    "places": (17, 16),
    "seven": (70, 3, 7, 7),
    "three": (10, 3, 3, 3),
    "turned": (12, 16),
    "slopes": (16, 1, 1),
    "all": (16, 7, 6),
    "one_to_ten": (10, 1, 3, 3),
    "up": (4100, 16, 1, 1),
    "each": (4100, 1, 1, 1),
    "down": (4, 4100, 1, 1),
}
HEADS = (
    "l = MatMul(n, w)\n r = Reshape(l, apart)\n t = Transpose <perm=[0, 2, 1, 3]> (r)\n"
    "i = Transpose <perm=[0, 2, 3, 1]> (r)\n s = MatMul(t, i)\n p = Softmax(s)\n o = MatMul(p, t)\n"
    "j = Transpose <perm=[0, 2, 1, 3]> (o)\n f = Reshape(j, behind)\n m = MatMul(f, turned)\n "
)
"""Attention of three heads of 4 channels on tokens n."""
NORMAL = "n = LayerNormalization <axis=-1> (x, gains, b16)\n"
ATTENTION = {
    **{
        f"attention of {n}": ((n, t, 16), (n, t, 16), f"{NORMAL}{HEADS}y = Add(x, m)") for n, t in ((1, 9), (5, 4))
    },
    "attention of few tokens": ((2, 3, 16), (2, 3, 16), f"n = Identity(x)\n {HEADS}y = Tanh(m)"),
    "attention to places": (
        (3, 17, 16),
        (3, 16),
        f"a = Add(x, places)\n v = Mul(a, a)\n z = ReduceMean(v, last)\n e = Add(z, tenth)\n"
        f"u = Sqrt(e)\n n = Div(a, u)\n {HEADS}h = Add(a, m)\n y = ReduceMean <keepdims=0> (h, across)",
    ),
}
FORMS.update(ATTENTION)
PICTURES = {
    "a wide window of a picture": ("strides=[2, 2], pads=[3, 3, 3, 2]", "seven", (1, 70, 45, 45)),
    "unequal strides": ("strides=[3, 2], pads=[0, 6, 1, 5]", "seven", (4, 70, 29, 48)),
    "a window beyond the picture": ("pads=[6, 6, 6, 6]", "seven", (1, 70, 96, 97)),
    "a small window": ("pads=[1, 0, 0, 1]", "three", (3, 10, 89, 90)),
    "every other column": ("pads=[2, 2, 2, 2], dilations=[2, 2]", "three", (1, 10, 90, 91)),
}
"""Convolutions of a picture of 90 x 91: attributes, weights, and the result's shape."""
FORMS.update(
    {
        form: ((n, 3, 90, 91), (n, *rest), f"y = Conv <{attributes}> (x, {weights})")
        for form, (attributes, weights, (n, *rest)) in PICTURES.items()
    }
)


def _weighted(text: str, weights: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    model, random = onnx.parser.parse_model(text), np.random.default_rng(7)
    for name, extents in weights.items():
        values = random.normal(0.02, 1 / np.sqrt(np.prod(extents[1:])), extents).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def _form(form: str) -> tuple[onnx.ModelProto, Array]:
    """The model and three samples."""
    shape, result, nodes = FORMS[form]
    model = _weighted(
        f'<ir_version: 8, opset_import: ["": 18]> g (float{list(shape)} x) => (float{list(result)} y) '
        "<int64[4] heads = {4, 6, 3, 4}, float half = {0.35}, "
        "int64[3] joined = {1, 36, 12}, int64[3] tokens = {2, 20, 16}, int64 second = {1}, "
        "float root = {1.4142135}, float one_ = {1}, float low = {-0.7}, float high = {1.1}, int64[1] rows = {2}, "
        "float little = {-0.04}, float tenth = {0.1}, float[1] even = {0.3}, "
        "int64[4] three_images = {3, 16, 5, 4}, int64[1] last = {-1}, int64[1] across = {1}, "
        "int64[4] apart = {0, 0, 3, 4}, int64[3] behind = {0, 0, 12}, "
        f"int64[6] one = {{0, 0, 0, 1, 0, 0}}, int64[8] sides = {{0, 0, 1, 2, 0, 0, 3, 1}}> {{ {nodes} }}",
        WEIGHTS,
    )
    return model, np.random.default_rng(8).normal(0.3, 1, (3, *shape)).astype(np.float32)


@cache
def _compiled(form: str) -> api.Compiled:
    model, x = _form(form)
    options = Options(precision="int8", proof="all")
    return api.compile(model, "bm1684", calibration={"x": x}, options=options)


@pytest.mark.parametrize("form", FORMS)
def test_forms_are_rewritten_for_layers_of_8_bits(form: str) -> None:
    """Before, the host computed them."""
    need_compiler()
    if RUNTIME < (1, 29) and form == "padding of unsigned maps":
        pytest.skip("this onnxruntime refuses a Pad before a MaxPool that is as large as its window")
    (model, x), found = _form(form), _compiled(form)
    assert found.report["proof"]["bit_exact"] and {*causes(found.program)} <= {HOST_STEP}
    wanted = np.stack([session(model).run(None, {"x": each})[0] for each in x])
    got = found.run({"x": x})["y"].reshape(wanted.shape)
    assert np.square(got - wanted).sum() < (3e-3 if form in ATTENTION else 1e-3) * np.square(wanted).sum()


@pytest.mark.parametrize("form", FORMS)
def test_the_vendors_model_gives_the_same_values(form: str) -> None:
    vendor_libraries()
    x, found = _form(form)[1], _compiled(form)
    theirs = running.run_batches(found.target.runner(found.program, "vendor"), found.samples({"x": x}))
    np.testing.assert_array_equal(theirs["y"], found.run({"x": x})["y"])


def _texts(form: str) -> list[str]:
    found = _compiled(form)
    return [each["text"] for each in found.target.listing(found.program)]


def test_a_function_between_two_products_moves_nothing() -> None:
    """As onnxruntime's rows it needed three Transposes of the map between them."""
    calls = [each.partition("(")[0] for each in _texts("tokens' features")]
    assert [each for each in calls if each.endswith(("L2S", "S2S"))] == ["okk_gdma_32bit_cpy_L2S"]


@pytest.mark.parametrize("op", ["HardSwish", "LeakyRelu", "PRelu of small slopes"])
def test_convolutions_compute_functions_of_several_images(op: str) -> None:
    for images, tables in ((1, op in ("HardSwish", "LeakyRelu")), (5, False)):
        assert any("lookup" in text for text in _texts(f"{op} of {images}")) == tables


@pytest.mark.parametrize(
    ("slopes", "images", "many"),
    [
        ((-1.5, 0.25, 2.0), 1, True),
        ((0.5, 0.5, 0.5), 1, False),
        ((0.5, 0.5, 0.5), 2, True),
        ((1024, 1024, 1024), 2, True),
        ((-1025, -1025, -1025), 2, False),
        ((np.inf, 0.5, 2.0), 2, False),
        ((-1025, 0.5, 2.0), 1, False),
    ],
)
def test_slopes_that_differ_or_of_several_images_become_convolutions(
    slopes: tuple[float, ...], images: int, many: bool
) -> None:
    given = np.array(slopes, np.float32).reshape(3, 1, 1)
    graph = network((images, 3, 4, 5), "y", node("PRelu", "x a", "y"), a=given)
    found = functions_to_convs(graph)
    assert [each.op for each in found.nodes] == (["Conv", "Conv", "Conv", "Add"] if many else ["PRelu"])
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(("slope", "many"), [(1024.0, True), (1025.0, False)])
def test_slopes_of_one_layer_do_not_forbid_those_of_another(slope: float, many: bool) -> None:
    layers = node("PRelu", "x a", "y"), node("PRelu", "x b", "z")
    slopes = [np.array([0.5, each, 2.0], np.float32).reshape(3, 1, 1) for each in (slope, 0.25)]
    found = expand_slopes(network((1, 3, 4, 5), "y z", *layers, a=slopes[0], b=slopes[1]))
    assert [each.op for each in found.nodes].count("PRelu") == (0 if many else 1)


@pytest.mark.parametrize("form", [form for form in FORMS if "channels last" in form])
def test_pixels_with_their_channels_last_are_moved_as_rows(form: str) -> None:
    """Transfers of single elements take four times as long."""
    shapes = [each.partition("DIM4(")[2].partition(")")[0] for each in _texts(form) if re.search("put0,", each)]
    assert min(int(each.rpartition(" ")[2]) for each in shapes) > 100


def test_padding_with_ones_in_every_bit_keeps_its_bits() -> None:
    """As a float they are not a number, which C could not write."""
    assert any("{.u32 = 0xffffffff}" in text for text in _texts("a step below zero around"))


def test_images_around_a_batch_are_the_hosts(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 18]> g (float[2,16,4,4] x) => (float[3,16,2,2] y) '
        "<int64[8] one = {0, 0, 0, 0, 1, 0, 0, 0}> { c = Conv(x, k)\n y = Pad(c, one) }"
    )
    onnx.save(_weighted(text, WEIGHTS), tmp_path / "m.onnx")
    found = npuc("check", tmp_path / "m.onnx", "--target", "bm1684", "--precision", "int8", "--json").json
    assert [group["op"] for group in found["groups"]] == ["Pad"]


def test_a_movement_beside_what_the_host_computes_takes_no_product_with_it(tmp_path: Path) -> None:
    model = _weighted(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4,113,16] x) => (float[4,113,16] y) '
        "{ q = MatMul(x, w)\n k = MatMul(x, v)\n t = Transpose <perm=[0, 2, 1]> (k)\n s = MatMul(q, t)\n"
        " e = Softmax(s)\n a = MatMul(e, k)\n y = MatMul(a, w) }",
        {"w": (16, 16), "v": (16, 16)},
    )
    onnx.save(model, tmp_path / "m.onnx")
    command = ("compile", *SYNTHETIC, tmp_path / "m.onnx", "--target", "bm1684", "--precision", "int8", "--json")
    report = npuc(*command, "-o", tmp_path / "m.npu").json
    npu = sum(each["macs_on_npu"] for each in report["account"])
    shares = {"npu": npu, "host": sum(each["macs"] for each in report["account"]) - npu}
    assert shares == {"npu": 3 * 4 * 113 * 16 * 16, "host": 2 * 4 * 113 * 113 * 16}
