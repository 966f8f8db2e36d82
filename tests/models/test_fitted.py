"""The fitted detectors find objects of images that they were not fitted to, by their labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest

from npuc.ir import Array
from npuc.models import fitted
from npuc.reference import session
from npuc.verification.judging.boxes import Decoding, decode_boxes, overlaps

YOLO = Decoding("columns", "y", "y", 6, 756, "centre")
SSD = Decoding("pair", "boxes", "y", 756, 3, "corners", background="first")


def _yolo(outputs: list[Array]) -> Mapping[str, Array]:
    return {"y": outputs[0]}


def _ssd(outputs: list[Array]) -> Mapping[str, Array]:
    return {"y": outputs[0], "boxes": outputs[1] * fitted.SIZE}


@pytest.mark.parametrize(
    ("build", "outputs", "decoding", "least"), [(fitted.yolo, _yolo, YOLO, 0.6), (fitted.ssd, _ssd, SSD, 0.75)]
)
def test_objects_are_found_where_they_are(
    build: Callable[[], onnx.ModelProto],
    outputs: Callable[[list[Array]], Mapping[str, Array]],
    decoding: Decoding,
    least: float,
) -> None:
    run, seen = session(build()), fitted.images(40, (5,))
    found = objects = 0
    for image, boxes in zip(seen.pixels, seen.boxes, strict=True):
        made = decode_boxes(outputs(run.run(None, {"input": image[None]})), decoding).boxes
        over = np.where(made.classes == boxes[:, :1], overlaps(boxes[:, 1:], made.corners), 0)
        found += int((over.max(axis=1, initial=0) >= 0.5).sum())
        objects += len(boxes)
    assert objects > 40
    assert found / objects >= least


def test_pixels_of_text_are_told_from_bars_and_things() -> None:
    run, seen = session(fitted.text()), fitted.text_images(40, (5,))
    found = np.stack([run.run(None, {"input": image[None]})[0].reshape(-1) > 0.3 for image in seen.pixels])
    text = fitted.inside(seen.boxes, fitted.SIZE).reshape(found.shape)
    assert 0.05 < text.mean() < 0.2
    assert (found & text).sum() / (found | text).sum() >= 0.45
