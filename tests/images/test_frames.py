"""Programs that take frames: against the model's floats, which numpy computes from the same pixels outside."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import npuc as api
from npuc.errors import DataError
from npuc.frontend.frames import add_frames
from npuc.frontend.reading import read_model
from npuc.host.step import HostStep
from npuc.images.description import PRESETS, bind, describe
from npuc.images.pictures import fit, frame_of, open_picture
from npuc.images.yuv import from_rgb
from npuc.ir import Array, TensorType
from npuc.ops import build
from npuc.targets.easynpu.export.c_plan import with_frames
from npuc.targets.nvdla.network import quantising
from npuc.targets.nvdla.program import frames
from tests.cli.process import SYNTHETIC, npuc
from tests.images.making import SIZE, maps, network, photos
from tests.passes.networks import node

LAST = (1, SIZE, SIZE, 3)
FIRST = (1, 3, SIZE, SIZE)


def run(model: Path | bytes, x: Array) -> Array:
    """The model's outputs for samples, one by one."""
    session = ort.InferenceSession(model if isinstance(model, bytes) else str(model))
    return np.concatenate([np.asarray(session.run(None, {"x": each})[0]) for each in x])


def by_hand(frames: Array, order: str, layout: str, frame: str, mean: Any, std: Any, *, last: bool) -> Array:
    """The model's input, (samples, 1, ...): numpy's arithmetic in float64 on one channel after the other."""
    planes = frames if layout == "nchw" else np.moveaxis(frames, -1, -3)
    wide = [np.broadcast_to(np.float64(each), len(order)) for each in (mean, std)]
    rows = [(planes[..., frame.index(c), :, :] - m) / s for c, m, s in zip(order, *wide, strict=True)]
    return np.stack(rows, axis=-1 if last else -3).astype(np.float32)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_order_and_layout_becomes_what_the_model_reads(preset: str, tmp_path: Path) -> None:
    random, usual = np.random.default_rng(1), PRESETS[preset]
    models = {shape: network(tmp_path, shape, name=f"{len(shape)}{shape[1]}.onnx") for shape in (FIRST, LAST)}
    for shape, layout, frame in product((FIRST, LAST), ("nhwc", "nchw"), ("rgb", "bgr", "rgba", "bgra")):
        images = describe({"preset": preset, "frame": frame, "layout": layout})
        images = bind(images, {"x": TensorType(shape)}, fused=True)
        size = (SIZE, SIZE, len(frame)) if layout == "nhwc" else (len(frame), SIZE, SIZE)
        frames = random.integers(0, 256, (2, 1, *size)).astype(np.uint8)
        wanted = by_hand(frames, usual.order, layout, frame, usual.mean, usual.std, last=shape is LAST)
        np.testing.assert_allclose(images[0].values_of(frames), wanted, rtol=1e-6, atol=2e-5)
        made = add_frames(read_model(models[shape]), images)
        onnx.checker.check_model(made)
        np.testing.assert_allclose(run(made.SerializeToString(), frames), run(models[shape], wanted), atol=1e-4)


@pytest.mark.parametrize("bits", [10, 12, 16])
def test_deeper_frames_count_with_their_fractions(bits: int, tmp_path: Path) -> None:
    # 12 bits, 1000 of 4095: 1000 / 16 = 62.5 of 255; (62.5 - 127.5) / 64
    keys, unit = {"mean": [127.5, 20.0, 0.0], "std": 64, "frame": "bgr", "bits": bits}, 2 ** (bits - 8)
    (found,) = bind(describe(keys), {"x": TensorType(FIRST)}, fused=True)
    assert (found.frame_type.dtype, found.frame_shape) == ("uint16", LAST)
    frames = np.random.default_rng(1).integers(0, 256 * unit, (2, *LAST)).astype(np.uint16)
    wanted = by_hand(frames / unit, "rgb", "nhwc", "bgr", keys["mean"], 64, last=False)
    np.testing.assert_allclose(found.values_of(frames), wanted, atol=1e-5)
    model = network(tmp_path)
    made = add_frames(read_model(model), [found])
    onnx.checker.check_model(made)
    exact = run(model, wanted)
    np.testing.assert_allclose(run(made.SerializeToString(), frames), exact, atol=1e-4)
    program = api.compile(model, "easynpu", calibration={"x": frames}, input=keys)
    assert noise(program.run({"x": frames})["y"].reshape(-1, 4), exact) > 24
    pixels = program.samples(photos(tmp_path)).inputs["x"]
    assert pixels.dtype == np.uint16 and 0 < pixels.max() <= 255 * unit and not (pixels % unit).any()


# Y = 81, U = 90, V = 240 is red: R = 1.164 * 65 + 1.596 * 112 = 254.4, G = 75.66 + 0.391 * 38 - 0.813 * 112 < 0;
# Y = 145, U = 54, V = 34: R = 150.2 - 150.0, G = 150.2 + 28.9 + 76.4, B = 150.2 - 149.3
PAIRS = {
    "nv12": [[81, 81, 145, 145], [81, 81, 145, 145], [90, 240, 54, 34]],
    "nv21": [[81, 81, 145, 145], [81, 81, 145, 145], [240, 90, 34, 54]],
    "yuyv": [[[81, 90], [81, 240], [145, 54], [145, 34]]] * 2,
    "uyvy": [[[90, 81], [240, 81], [54, 145], [34, 145]]] * 2,
}


@pytest.mark.parametrize("form", PAIRS)
def test_frames_in_yuv_become_rgb(form: str, tmp_path: Path) -> None:
    (small,) = bind(describe({"frame": form}), {"x": TensorType((1, 3, 2, 4))}, fused=True)
    frame = np.array([PAIRS[form]], np.uint8)
    assert frame.shape == small.frame_shape
    found = small.values_of(frame)[0, :, :, ::2].transpose(1, 2, 0)
    np.testing.assert_allclose(found, [[(254.41, 0, 0), (0.13, 255, 0.83)]] * 2, atol=0.02)
    colours = np.round(found).repeat(2, axis=1).astype(np.uint8)
    assert np.abs(from_rgb(colours, form).astype(int) - frame[0]).max() <= 1
    random = np.random.default_rng(1)
    for shape, order in product((FIRST, LAST), ("rgb", "bgr")):
        model = network(tmp_path, shape)
        images = bind(
            describe({"preset": "imagenet", "frame": form, "order": order}), {"x": TensorType(shape)}, fused=True
        )
        frames = random.integers(0, 256, (2, *images[0].frame_shape)).astype(np.uint8)
        made = add_frames(read_model(model), images)
        onnx.checker.check_model(made)
        wanted = run(model, images[0].values_of(frames))
        np.testing.assert_allclose(run(made.SerializeToString(), frames), wanted, atol=1e-4)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_yuv_with_all_of_its_chroma_becomes_rgb(layout: str, tmp_path: Path) -> None:
    # the red and the green of PAIRS; not limited: G = 75.66 + 14.86 - 91.06, B = 75.66 - 76.68
    (small,) = bind(describe({"frame": "yuv", "layout": layout}), {"x": TensorType((1, 3, 1, 2))}, fused=True)
    frame = np.array([[[[81, 90, 240], [145, 54, 34]]]], np.uint8)
    frame = frame if layout == "nhwc" else np.moveaxis(frame, -1, 1)
    assert frame.shape == small.frame_shape
    exact = [[(254.41, -0.54, -1.02), (0.13, 255.51, 0.83)]]
    np.testing.assert_allclose(np.moveaxis(small.values_of(frame)[0], 0, -1), exact, atol=0.02)
    colours = np.clip(np.rint(exact), 0, 255).astype(np.uint8)
    assert np.abs(frame_of(colours, small).astype(int) - frame[0]).max() <= 1
    for shape, order in product((FIRST, LAST), ("rgb", "bgr")):
        keys = {"preset": "imagenet", "frame": "yuv", "order": order, "layout": layout}
        images = bind(describe(keys), {"x": TensorType(shape)}, fused=True)
        frames = np.random.default_rng(1).integers(0, 256, (2, *images[0].frame_shape)).astype(np.uint8)
        made = add_frames(read_model(network(tmp_path, shape)), images)
        onnx.checker.check_model(made)
        wanted = run(tmp_path / "net.onnx", images[0].values_of(frames))
        np.testing.assert_allclose(run(made.SerializeToString(), frames), wanted, atol=1e-4)


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize(
    ("target", "precision"),
    [("easynpu", "int8"), ("nvdla-small", "int8"), ("nvdla-full", "fp16"), ("bm1684", "int8"), ("bm1684", "fp32")],
)
def test_the_matrix_from_yuv_is_part_of_the_first_convolution(
    target: str, precision: str, pad: int, tmp_path: Path
) -> None:
    folder, model = photos(tmp_path), network(tmp_path, pad=pad)
    keys = {"preset": "imagenet", "frame": "yuv"}
    made = api.compile(model, target, precision=precision, calibration=folder, input=keys)
    frames = made.samples(folder).inputs["x"]
    exact = run(model, made.program.images[0].values_of(frames))
    assert noise(made.run({"x": frames})["y"].reshape(-1, 4), exact) > 30
    account = {each["node"]: each["place"] for each in made.program.manifest["account"]}
    assert "host" not in account.values()
    layers = [each["nodes"] for each in made.report["layers"]]
    surrounds = precision == "int8" and target in ("easynpu", "bm1684")
    assert (["x/rgb"] in layers) == (pad > 0 and not surrounds), layers


def test_a_doc_string_of_the_model_s_own_puts_no_node_on_the_host(tmp_path: Path) -> None:
    proto = onnx.load(network(tmp_path))
    proto.graph.node[0].doc_string = "converts a frame from YUV"
    onnx.save(proto, tmp_path / "net.onnx")
    made = api.compile(tmp_path / "net.onnx", "easynpu", calibration="synthetic", proof="off")
    assert "host" not in {each["place"] for each in made.program.manifest["account"]}


@pytest.mark.parametrize(
    ("keys", "opset", "reason"),
    [
        ({"frame": "nv12"}, 17, "chroma is for several pixels"), ({"bits": 12}, 17, "more than 8 bits"),
        ({}, 9, "the model's opset is too old"),
    ],
)  # fmt: skip
def test_check_and_compile_say_why_the_host_converts(
    keys: dict[str, Any], opset: int, reason: str, tmp_path: Path
) -> None:
    model, described = network(tmp_path, opset=opset), tmp_path / "input.toml"
    described.write_text("".join(f"{key} = {value!r}\n" for key, value in keys.items()), "utf-8")
    given = (model, "--target", "easynpu", "--input", described)
    assert reason in npuc("check", *given).out
    assert reason in npuc("compile", *given, *SYNTHETIC, "-o", tmp_path / "o").out
    assert npuc("check", *given, "--strict").code == 1


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small", "bm1684"])
def test_the_host_converts_yuv_and_says_so(target: str, tmp_path: Path) -> None:
    folder, model = photos(tmp_path), network(tmp_path)
    keys = {"preset": "imagenet", "frame": "nv12"}
    made = api.compile(model, target, precision="int8", calibration=folder, input=keys)
    assert made.program.inputs[0].shape == (1, SIZE * 3 // 2, SIZE)
    frames = made.samples(folder).inputs["x"]
    exact = run(model, made.program.images[0].values_of(frames))
    assert noise(made.run({"x": frames})["y"].reshape(-1, 4), exact) > 24
    hosted = [each["node"] for each in made.program.manifest["account"] if each["place"] == "host"]
    assert "x/cast" in hosted
    made.save(tmp_path / "o")
    form = "okkernel" if target == "bm1684" else "c"
    npuc("export", tmp_path / "o", "--format", form, "-o", tmp_path / "c").done()  # a part without a frame


def test_before_opset_10_a_cast_takes_the_place_of_the_scale(tmp_path: Path) -> None:
    model = network(tmp_path, opset=9)
    images = bind(describe("yolo"), {"x": TensorType(FIRST)}, fused=True)
    frames = np.random.default_rng(1).integers(0, 256, (1, 1, *LAST[1:])).astype(np.uint8)
    made = add_frames(read_model(model), images)
    np.testing.assert_allclose(
        run(made.SerializeToString(), frames), run(model, images[0].values_of(frames)), atol=1e-5
    )


def test_an_input_that_is_an_output_is_refused(tmp_path: Path) -> None:
    model = read_model(network(tmp_path))
    model.graph.output.append(model.graph.input[0])
    with pytest.raises(DataError, match="gives it as an output"):
        add_frames(model, bind(describe("none"), {"x": TensorType(FIRST)}, fused=True))


def noise(found: Array, exact: Array) -> float:
    return float(10 * np.log10(np.square(exact).sum() / np.square(found - exact).sum()))


KINDS: list[tuple[dict[str, Any], int]] = [
    ({"preset": "imagenet"}, 1),
    ({"preset": "imagenet", "frame": "bgr"}, 0),
    ({"preset": "caffe-bgr", "layout": "nchw"}, 3),
    ({"preset": "yolo"}, 1),
]
CASES = [
    *((target, "int8", *kind) for target in ("easynpu", "nvdla-small", "bm1684") for kind in KINDS),
    *((*target, *KINDS[0]) for target in (("nvdla-full", "fp16"), ("bm1684", "fp32"))),
]


@pytest.mark.parametrize(("target", "precision", "keys", "pad"), CASES)
def test_frames_cost_no_accuracy(
    target: str, precision: str, keys: dict[str, Any], pad: int, tmp_path: Path
) -> None:
    folder, model = photos(tmp_path), network(tmp_path, pad=pad)
    made = {
        data: api.compile(model, target, precision=precision, calibration=folder, input=described)
        for data, described in (("frame", keys), ("float", {**keys, "frame": "float"}))
    }
    exact = run(model, made["float"].samples(folder).inputs["x"])
    found = {data: each.run(folder)["y"].reshape(-1, 4) for data, each in made.items()}
    assert made["frame"].program.inputs[0].dtype == "uint8"
    assert (found["frame"].argmax(axis=1) == exact.argmax(axis=1)).all()
    allowed = noise(found["float"], exact) - 3  # of eight samples
    assert noise(found["frame"], exact) > min(allowed, {"int8": 38, "fp16": 55, "fp32": 90}[precision])
    proof = made["frame"].report["proof"]
    assert proof["model"] and proof["bit_exact"] in ((True,) if precision == "int8" else (None,))


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small", "bm1684"])
@pytest.mark.parametrize(("mean", "pad"), [(0, 1), (103.9, 3), (127.5, 0), (127.5, 1), (255, 3)])
def test_padding_is_the_model_s_zero_whatever_the_mean(target: str, mean: float, pad: int, tmp_path: Path) -> None:
    # a frame of one value makes the border all that differs: a wrong padding would be far off
    model, keys = network(tmp_path, pad=pad), {"mean": [mean, 127.5, 20.0] if mean == 127.5 else mean, "std": 64}
    frames = np.stack([np.full(LAST, each, np.uint8) for each in (0, 64, 128, 255)] * 2)
    frames[4:, :, ::2] = 255 - frames[4:, :, ::2]
    made = api.compile(model, target, precision="int8", calibration={"x": frames}, input=keys)
    values = by_hand(frames, "rgb", "nhwc", "rgb", keys["mean"], 64, last=False)
    exact = run(model, values)
    assert noise(made.run({"x": frames})["y"].reshape(-1, 4), exact) > 24


def test_the_host_computes_nothing_for_frames_that_fuse(tmp_path: Path) -> None:
    model = network(tmp_path, pad=0)
    for target in ("easynpu", "nvdla-small", "bm1684"):
        found = api.compile(
            model, target, precision="int8", calibration="synthetic", input="imagenet", proof="off"
        )
        hosted = [each for each in found.program.manifest["account"] if each["place"] == "host"]
        assert not hosted, hosted


MACHINES = ("nvdla-small", "nvdla-large", "nvdla-full")


@pytest.mark.parametrize("taken", ["n/mean", "c/centred", "c/offset", "n/of_pixels"])
def test_constants_of_frames_do_not_replace_the_model_s(taken: str) -> None:
    """Before, those of the same name took their place."""
    random = np.random.default_rng(0)
    constants = {"s": np.full(1, 1, np.float32), "z": np.full(1, 128, np.uint8), "b": np.zeros(3, np.float32)}
    shapes = {"w": (3, 1, 1, 1), "v": (4, 3, 3, 3), taken: (2, 4, 1, 1)}
    constants |= {name: random.uniform(0.5, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        node("DequantizeLinear", "x s z", "d"), node("Conv", "d w b", "n", group=3),
        node("Conv", "n v", "c", pads=(1, 1, 1, 1)), node("Conv", f"c {taken}", "y"),
    ]  # fmt: skip
    graph = build("g", nodes, {"x": TensorType((1, 3, 8, 8), "uint8")}, ("y",), constants)
    centred, steps = frames.centre_frames(graph, lambda _frame, _zero: np.ones((3, 256)))
    assert bool(steps) == (taken != "n/mean")
    for found in (centred, frames.offset_frames(graph)):
        assert np.array_equal(found.constants[found.nodes[-1].inputs[1]], constants[taken])


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize(
    ("preset", "frame"),
    [("imagenet", "rgb"), ("imagenet", "bgr"), ("caffe-bgr", "bgr"), ("tf", "rgba"), ("yolo", "bgra")],
)
def test_cdma_converts_frames_at_no_cost(target: str, preset: str, frame: str, tmp_path: Path) -> None:
    folder, model = photos(tmp_path), network(tmp_path, pad=1)
    made, plain = (
        api.compile(model, target, calibration=folder, input={"preset": preset, "frame": each})
        for each in (frame, "float")
    )
    most = 1.02 if len(frame) > 3 else 1  # of four bytes a pixel
    assert made.report["cycles"] <= plain.report["cycles"] * most and made.report["proof"]["bit_exact"]
    steps = [each for each in made.program.manifest["steps"] if each["kind"] == "host"]
    assert {each["op"] for each in steps if "x" in each["inputs"][0]} <= {"Transpose"}
    loads = next(each["loads"] for each in made.program.manifest["steps"] if "loads" in each)
    assert [each["place"]["precision"] for each in loads] == ["uint8"]
    exact = run(model, plain.samples(folder).inputs["x"])
    found, floats = (noise(each.run(folder)["y"].reshape(-1, 4), exact) for each in (made, plain))
    assert found > min(floats - 3, 38)  # of eight samples


@pytest.mark.parametrize("level", ["0", "1"])
@pytest.mark.parametrize(
    ("target", "pad"), [("easynpu", 1), ("nvdla-small", 1), ("nvdla-small", 3), ("nvdla-full", 1), ("bm1684", 1)]
)
def test_int8_on_frames_is_as_exact_as_on_floats(target: str, pad: int, level: str, tmp_path: Path) -> None:
    """By maps of classes: thousands of values, so that chance is less than 0.3 dB."""
    folder, model = photos(tmp_path, 20), maps(tmp_path, pad)
    made, plain = (
        api.compile(
            model, target, precision="int8", calibration=folder, input={"preset": "imagenet", **more}, level=level
        )
        for more in ({}, {"frame": "float"})
    )
    exact = run(model, plain.samples(folder).inputs["x"])
    found, floats = (each.run(folder)["y"].reshape(exact.shape) for each in (made, plain))
    assert noise(found, exact) >= noise(floats, exact) - 0.3  # bytes are exact, floats are rounded
    scores, ours, theirs = (each.mean(axis=(2, 3)) for each in (exact, found, floats))
    best = np.sort(scores, axis=1)
    clear = best[:, -1] - best[:, -2] > 2 * np.abs(theirs - scores).max()  # of what int8 can tell apart
    assert clear.sum() >= 15 and (ours.argmax(axis=1) == theirs.argmax(axis=1))[clear].all()
    (frame,), (values,) = made.program.inputs, plain.program.inputs
    assert 4 * np.dtype(frame.dtype).itemsize == np.dtype(values.dtype).itemsize
    assert np.prod(frame.shape) == np.prod(values.shape)


def test_whether_cdma_converts_is_known_before_the_network_is_improved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    best = quantising.best_network
    monkeypatch.setattr(quantising, "best_network", lambda *given: searched.append("once") or best(*given))
    folder, model = photos(tmp_path), network(tmp_path)
    for weights in ("auto", "direct"):
        api.compile(model, "nvdla-small", calibration=folder, input="imagenet", weights=weights, proof="off")
    assert searched == ["once", "once"]


@pytest.mark.parametrize(
    ("preset", "frame", "pad"),
    [("imagenet", "rgb", 0), ("imagenet", "rgba", 1), ("yolo", "bgr", 1), ("mtcnn", "bgra", 3)],
)
def test_cdma_converts_frames_to_fp16(preset: str, frame: str, pad: int, tmp_path: Path) -> None:
    folder, model = photos(tmp_path), network(tmp_path, pad=pad)
    made, plain = (
        api.compile(
            model, "nvdla-full", precision="fp16", calibration=folder, input={"preset": preset, "frame": each}
        )
        for each in (frame, "float")
    )
    steps = made.program.manifest["steps"]
    assert {each["op"] for each in steps if each["kind"] == "host" and "x" in each["inputs"]} <= {"Transpose"}
    loads = next(each["loads"] for each in steps if "loads" in each)
    assert [each["place"]["precision"] for each in loads] == ["uint8"]
    exact = run(model, plain.samples(folder).inputs["x"])
    found, floats = (noise(each.run(folder)["y"].reshape(-1, 4), exact) for each in (made, plain))
    assert found > min(floats - 1, 60)


@pytest.mark.parametrize(("keys", "pad"), [({"mean": 128, "std": 64}, 1), ({"preset": "imagenet"}, 3)])
def test_cdma_converts_frames_to_int16(keys: dict[str, Any], pad: int, tmp_path: Path) -> None:
    folder, model = photos(tmp_path), network(tmp_path, pad=pad)
    made = api.compile(model, "nvdla-full", precision="int16", calibration=folder, input=keys)
    steps = made.program.manifest["steps"]
    assert {each["op"] for each in steps if each["kind"] == "host" and "x" in each["inputs"]} == {"Transpose"}
    loads = next(each["loads"] for each in steps if "loads" in each)
    assert [each["place"]["precision"] for each in loads] == ["uint8"] and made.report["proof"]["bit_exact"]
    frames = made.samples(folder).inputs["x"]
    exact = run(model, made.program.images[0].values_of(frames))
    assert noise(made.run({"x": frames})["y"].reshape(-1, 4), exact) > 74  # int16 has 80


def test_a_frame_that_others_read_as_floats_is_no_image_of_bytes(tmp_path: Path) -> None:
    # 1 / 255 is no whole number: what the maximum reads cannot come from CDMA
    proto = onnx.load(network(tmp_path))
    proto.graph.node.append(onnx.helper.make_node("GlobalMaxPool", ["x"], ["z"], "most"))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, (1, 3, 1, 1)))
    onnx.save(proto, tmp_path / "two.onnx")
    folder = photos(tmp_path)
    made = api.compile(tmp_path / "two.onnx", "nvdla-full", precision="fp16", calibration=folder, input="yolo")
    (frames,) = made.samples(folder).inputs.values()
    found = made.run({"x": frames})
    np.testing.assert_allclose(found["z"].reshape(-1, 3), frames.max(axis=(1, 2, 3)) / 255, rtol=1e-3)


def test_a_mean_before_a_form_that_reads_no_image_stays_a_layer(tmp_path: Path) -> None:
    folder, model = photos(tmp_path), network(tmp_path)
    made = api.compile(model, "nvdla-small", calibration=folder, input="imagenet", weights="direct")
    assert made.report["layers"][0]["nodes"] == ["x/centre", "x/normalise"], made.report["layers"][0]
    assert made.report["proof"]["bit_exact"]


def step(op: str, tensors: tuple[str, str], **attrs: object) -> HostStep:
    source, target = tensors
    return HostStep(target, op, (source,), (target,), attrs, conversion=True, reason="")


@pytest.mark.parametrize(
    ("before", "after", "reader", "fits"),
    [
        ({}, {}, "q", True),
        ({"zero_point": 128}, {"zero_point": 0}, "q", True),
        ({"scale": 0.25}, {}, "q", False),
        ({"zero_point": 1}, {}, "q", False),
        ({"dtype": "int8"}, {}, "q", False),
        ({}, {"dtype": "uint8"}, "q", False),
        ({}, {}, "d", False),  # the floats are read elsewhere too
    ],
)
def test_bytes_are_shifted_in_c_only_where_both_scales_agree(
    before: dict[str, Any], after: dict[str, Any], reader: str, fits: bool
) -> None:
    steps = [
        step("DequantizeLinear", ("x", "d"), **{"scale": 0.5, "zero_point": 0, "dtype": "uint8"} | before),
        step("QuantizeLinear", ("d", "q"), **{"scale": 0.5, "zero_point": -128, "dtype": "int8"} | after),
        step("Reshape", (reader, "r"), shape=[1]),
    ]
    found = with_frames(steps)
    assert [each.op for each in found if isinstance(each, HostStep)] == (
        ["Frame", "Reshape"] if fits else ["DequantizeLinear", "QuantizeLinear", "Reshape"]
    )


@pytest.mark.skipif(
    shutil.which("make") is None or shutil.which("cc") is None, reason="needs make and a C compiler"
)
def test_the_c_driver_takes_the_bytes_of_frames(tmp_path: Path) -> None:
    made = api.compile(network(tmp_path), "easynpu", calibration=photos(tmp_path), input="imagenet")
    made.save(tmp_path / "o")
    npuc(
        "export",
        tmp_path / "o",
        "--format",
        "c",
        "--self-test",
        "--data",
        tmp_path / "photos",
        "-o",
        tmp_path / "c",
    ).done()
    program = (tmp_path / "c" / "npuc_program.c").read_text("utf-8")
    header = (tmp_path / "c" / "npuc_program.h").read_text("utf-8")
    assert "NPUC_UINT8" in program and "npuc_op_frame(" in program and "npuc_op_quantize" not in program
    done = subprocess.run(["make", "check"], cwd=tmp_path / "c", capture_output=True, text=True, check=False)
    assert "2 samples as simulated" in done.stdout, done.stdout + done.stderr
    sources = [each for each in (tmp_path / "c").rglob("*.c") if each.stem not in ("main", "self_test")]
    subprocess.run(
        ["cc", "-I.", "-shared", "-fPIC", "-o", "run.so", *sources, "-lm"], cwd=tmp_path / "c", check=True
    )
    assert "int npuc_run(const uint8_t *frame_0, float *output_0, void *arena);" in header
    library = ctypes.CDLL(str(tmp_path / "c" / "run.so"))
    library.npuc_model_power_up()
    assert library.npuc_init(ctypes.byref(ctypes.c_char.in_dll(library, "npuc_program"))) == 0
    frame, found = made.samples(tmp_path / "photos").inputs["x"][:1], np.empty((1, 4), np.float32)
    arena = np.empty(int(header.split("NPUC_ARENA_BYTES ")[1].split()[0]) // 8 + 1)
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (frame, found, arena)]
    assert library.npuc_run(*pointers) == 0
    np.testing.assert_array_equal(found, made.run({"x": frame})["y"].reshape(1, 4))


def test_commands_that_run_the_model_see_the_same_frames(tmp_path: Path) -> None:
    folder, model, out = photos(tmp_path), network(tmp_path, (1, 3, SIZE, SIZE)), tmp_path / "o"
    npuc("compile", model, "--target", "easynpu", "--input", "imagenet", "--calibration", folder, "-o", out).done()
    assert "verified" in npuc("verify", model, out, "--data", folder, "--bisect", "-o", tmp_path / "b").done()
    sample = dict(np.load(tmp_path / "b" / "sample.npz")) if (tmp_path / "b" / "sample.npz").exists() else {}
    assert all(each.dtype == np.uint8 for each in sample.values())
    report = npuc("accuracy", model, out, "--data", folder, "--metric", "regression", "--json").json
    assert report["samples"] == 8 and report["simulated"]["bit_exact"]
    given = ("--input", "imagenet", "--data", folder, "--calibration", folder)
    (row,) = npuc("compare", model, "--targets", "easynpu", *given, "--json").json["rows"]
    assert row["argmax_agreement"] == 1.0 and row["sqnr_db"] > 20
    npuc("report", out, "--model", model, "--data", folder, "-o", tmp_path / "r.html").done()
    given = ("--input", "imagenet", "--calibration", folder, "--grid", "pe_rows=1,4", "--jobs", "1", "--json")
    points = npuc("sweep", model, "--target", "easynpu", *given).json["points"]
    usual = npuc("compile", model, "--target", "easynpu", "--input", "imagenet", *SYNTHETIC, "-o", out, "--json")
    assert points[1]["cycles"] < points[0]["cycles"] == usual.json["cycles"]


def test_variants_take_pictures_in_their_own_batches(tmp_path: Path) -> None:
    folder, model = photos(tmp_path), network(tmp_path)
    proto = onnx.load(model)
    for each in (*proto.graph.input, *proto.graph.output):
        each.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(proto, model)
    options = ("--target", "easynpu", "--input", "yolo", "--calibration", folder, "-o", tmp_path / "o")
    two = [f"--input-shape=x={batch},3,{SIZE},{SIZE}" for batch in (1, 2)]
    npuc("compile", model, *options, *two).done()
    assert npuc("run", tmp_path / "o", "--data", folder, "--json").json["samples"] == 8
    assert npuc("run", tmp_path / "o" / "variants" / "1", "--data", folder, "--json").json["samples"] == 4
    npuc("compile", model, *options, "--bind", "batch=4", "--force").done()
    assert npuc("verify", model, tmp_path / "o", "--data", folder, "--json").json["samples"] == 2
    classes = [0, 1, 2, 3, 3, 2, 1, 0]
    pictures = sorted(folder.iterdir())
    rows = "".join(f"{each},{label}\n" for each, label in zip(pictures, classes, strict=True))
    (tmp_path / "labels.csv").write_text(rows, "utf-8")
    given = ("accuracy", model, tmp_path / "o", "--data", tmp_path / "labels.csv", "--json")
    found = npuc(*given).json
    assert (found["metric"], found["truth"], found["samples"], found["classes"]) == ("top1", "labels", 2, 4)
    values = np.stack([values_of_yolo(each) for each in pictures])
    exact = run(model, values).argmax(axis=1)
    assert found["fp32"]["top1"] == (exact == classes).mean()
    assert found["simulated"]["bit_exact"] and found["simulator"]["top1"] == found["integer"]["top1"]


def values_of_yolo(picture: Path) -> Array:
    """What a model with YOLO's preprocessing reads of a picture."""
    (found,) = bind(describe("yolo"), {"x": TensorType(FIRST)}, fused=False)
    return found.normalise(fit(open_picture(picture, "rgb"), found))[None]


def test_pictures_without_pillow_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = network(tmp_path), tmp_path / "o"
    monkeypatch.setitem(sys.modules, "PIL", None)
    given = ("--input", "imagenet", *SYNTHETIC, "-o", out)
    npuc("compile", model, "--target", "easynpu", *given).done()
    np.savez(tmp_path / "x.npz", x=np.zeros((1, SIZE, SIZE, 3), np.uint8))
    npuc("run", out, "--data", tmp_path / "x.npz").done()
    picture = tmp_path / "a.png"
    picture.write_bytes(b"")
    npuc("report", out, "-o", tmp_path / "r.html").done()
    for command in (
        ("run", out),
        ("verify", model, out),
        ("accuracy", model, out),
        ("report", out, "-o", tmp_path / "s.html"),
        ("export", out, "--format", "c", "--self-test", "-o", tmp_path / "c"),
    ):
        assert "npuc[images]" in npuc(*command, "--data", picture).refused("E507"), command
    given = ("--input", "imagenet", "--calibration", picture)
    refused = npuc("compile", model, "--target", "easynpu", *given, "-o", tmp_path / "p").refused("E507")
    assert "npuc[images]" in refused
    compared = npuc("compare", model, "--targets", "easynpu", *given)
    assert "E507 pictures need Pillow" in compared.out + compared.err
