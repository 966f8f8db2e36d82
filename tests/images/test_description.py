"""Descriptions of image inputs: what is read, what is refused by name, what fits a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npuc.errors import ArtefactError, DataError
from npuc.images.description import PRESETS, Description, bind, describe
from npuc.ir import TensorType
from npuc.program import Program
from npuc.storage.records import read

RGB = {"x": TensorType((1, 3, 224, 224))}


def refused(call: Any) -> str:
    with pytest.raises(DataError) as caught:
        call()
    (problem,) = caught.value.problems
    return f"{problem.code} {problem.tensor}: {problem.reason} | {problem.limit}"


@pytest.mark.parametrize(("values", "said"), [
    ({"means": [1]}, "unknown key 'means'. Did you mean 'mean'?"), ({"order": "grb"}, "order = 'grb'"),
    ({"order": "nv12"}, "order = 'nv12' is what a camera gives"), ({"frame": "i420"}, "frame = 'i420'"),
    ({"frame": "nv12", "layout": "nchw"}, "layout = 'nchw' beside frame = 'nv12'"),
    ({"frame": "nv12", "order": "gray"}, "frame = 'nv12' lacks channels"), ({"std": 0}, "std = 0 | above 0"),
    ({"std": [1, 0, 1]}, "std = [1, 0, 1] | above 0"), ({"scale": -1}, "scale = -1 | above 0"),
    ({"std": 1, "scale": 1}, "std and scale are both given"), ({"mean": "grey"}, "mean = 'grey'"),
    ({"mean": float("nan")}, "mean = nan"), ({"mean": [True]}, "mean = [True]"), ({"mean": []}, "mean = []"),
    ({"mean": [1, 2]}, "mean has 2 values | one value, or 3 for order = 'rgb'"),
    ({"order": "gray", "mean": [1, 2, 3]}, "mean has 3 values | one value, or 1 for order = 'gray'"),
    ({"order": "rgb", "frame": "gray"}, "frame = 'gray' lacks channels"),
    ({"order": "rgba", "frame": "bgr"}, "frame = 'bgr' lacks channels"), ({"layout": "chw"}, "layout = 'chw'"),
    ({"order": ["rgb"]}, "order = ['rgb']"), ({"bits": 9}, "bits = 9. | 8, 10, 12, 16"),
    ({"bits": "8"}, "bits = '8'"), ({"bits": 8.0}, "bits = 8.0"),
    ({"bits": 10, "frame": "yuyv"}, "bits = 10 beside frame = 'yuyv' | 8 bits"),
    ({"resize": 0}, "resize = 0 | an integer, 1..16384"), ({"resize": 2.5}, "resize = 2.5"),
    ({"letterbox": 256}, "letterbox = 256 | an integer, 0..255"),
    ({"letterbox": 114, "resize": 256}, "letterbox excludes resize"),
    ({"crop": 224}, "crop = 224 without resize"), ({"crop_ratio": 1.5}, "crop_ratio = 1.5"),
    ({"interpolation": "area"}, "interpolation = 'area'"), ({"labels": []}, "labels are no names"),
    ({"preset": "imagnet"}, "preset = 'imagnet'. Did you mean 'imagenet'?"),
    ({"order": "rgb", "x": {}}, "'order' stands beside the table of an input"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    found = refused(lambda: describe(values))
    assert found.startswith("E405 ") and said in found


@pytest.mark.parametrize(("values", "kind", "said"), [
    ({}, TensorType((1, 1, 28, 28)), "the input's shape is [1, 1, 28, 28] | [N, 3, H, W] or [N, H, W, 3]"),
    ({"order": "gray"}, RGB["x"], "the input's shape is [1, 3, 224, 224] | [N, 1, H, W]"),
    ({}, TensorType((3, 224, 224)), "the input's shape is [3, 224, 224]"),
    ({}, TensorType((1, 3, 8, 8), "int64"), "the input's type is int64"),
    ({"mean": 1}, TensorType((1, 3, 8, 8), "uint8"), "the input's type is uint8"),
    ({"resize": 256, "crop": 200}, RGB["x"], "crop = 200 | the input has 224 x 224 pixels"),
    ({"resize": 200}, RGB["x"], "resize = 200 | at least the input's 224 x 224 pixels"),
    ({"frame": "nv12"}, TensorType((1, 3, 7, 8)), "frame = 'nv12' | even sides; the input has 7 x 8 pixels"),
    ({"frame": "yuyv"}, TensorType((1, 3, 8, 7)), "frame = 'yuyv' | even sides"),
    ({"bits": 12}, TensorType((1, 3, 8, 8), "uint8"), "the input's type is uint8"),
    ({"resize": 100}, TensorType((1, 3, 64, 128)), "resize = 100 | at least the input's 64 x 128 pixels"),
])  # fmt: skip
def test_what_does_not_fit_the_model_is_refused_by_name(
    values: dict[str, Any], kind: TensorType, said: str
) -> None:
    found = refused(lambda: bind(describe(values), {"x": kind}, fused=True))
    assert found.startswith("E405 x: ") and said in found


def test_an_input_is_named_where_there_are_several() -> None:
    two = {**RGB, "z": TensorType((1, 1, 8, 8))}
    assert "the model has 2 inputs | inputs: x, z" in refused(lambda: bind(describe("none"), two, fused=True))
    assert "no input 'q'" in refused(lambda: bind(describe({"q": {}}), two, fused=True))
    (found,) = bind(describe({"z": {"order": "gray"}}), two, fused=True)
    assert (found.input, found.shape, found.frame_shape) == ("z", (1, 1, 8, 8), (1, 8, 8, 1))


def test_a_file_overrides_its_preset_and_names_labels_beside_it(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("cat\n dog \n\n", "utf-8")
    text = 'preset = "caffe-bgr"\nframe = "rgb"\nscale = 0.5\nlabels = "names.txt"\nletterbox = 3\n'
    (tmp_path / "input.toml").write_text(text, "utf-8")
    (found,) = describe(tmp_path / "input.toml")
    wanted = Description(order="bgr", frame="rgb", mean=(103.939, 116.779, 123.68), std=(2.0,), letterbox=3)
    assert found == replace(wanted, labels=("cat", "dog"))
    assert describe(str(tmp_path / "input.toml")) == (found,)
    assert read(Description, json.loads(json.dumps(found.as_json())), "images[0]") == found


@pytest.mark.parametrize(("name", "text", "code"), [
    ("missing.toml", None, "E401"), ("imagenets", None, "E405"), ("bad.toml", "= 3", "E405"),
    ("n.toml", 'labels = "no.txt"', "E401"),
])  # fmt: skip
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, text: str | None, code: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text, "utf-8")
    assert refused(lambda: describe(tmp_path / name)).startswith(code)


@pytest.mark.parametrize(("size", "short"), [((224, 224), 256), ((299, 299), 341), ((64, 128), 146)])
def test_imagenet_keeps_seven_eighths_of_the_short_side(size: tuple[int, int], short: int) -> None:
    # 224 / 0.875 = 256; 299 / 0.875 = 341.7; 128 / 0.875 = 146.3
    found = PRESETS["imagenet"].bound_to({"x": TensorType((1, 3, *size))})
    assert found.short_side == short


@pytest.mark.parametrize(("changed", "said"), [
    ({"order": "zyx"}, "order = 'zyx'"), ({"mean": []}, "mean = []"), ({"std": [0.0]}, "std = [0.0]"),
    ({"letterbox": 999}, "letterbox = 999"), ({"shape": [1, 3]}, "its shape is [1, 3]"),
    ({"shape": [1, 5, 4, 4]}, "its shape is [1, 5, 4, 4]"),
    ({"fused": True}, "the program's input is [1, 3, 4, 4]"), ({"input": "z"}, "the program's input is []"),
    ({"fused": 1}, "images[0].fused is 1"),
])  # fmt: skip
def test_a_manifest_that_npuc_did_not_write_is_refused(changed: dict[str, Any], said: str) -> None:
    (whole,) = bind(describe("none"), {"x": TensorType((1, 3, 4, 4))}, fused=False)
    port = {"name": "x", "shape": [1, 3, 4, 4], "dtype": "float32"}
    assert Program({"inputs": [port], "images": [whole.as_json()]}, {}).images == (whole,)
    with pytest.raises(ArtefactError, match="damaged") as caught:
        _ = Program({"inputs": [port], "images": [{**whole.as_json(), **changed}]}, {}).images
    assert said in str(caught.value)
