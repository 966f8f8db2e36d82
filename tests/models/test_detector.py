"""The detector of npuc.models behaves like a trained one, by the labels of images that it was not fitted to."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from npuc.models import detector
from npuc.models.detector import CLASSES, SIZE, scenes


def _outputs(model: onnx.ModelProto, pixels: Any) -> Any:
    """(images, 4 + CLASSES, CELLS, CELLS)."""
    run = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([np.asarray(run.run(None, {"input": each[None]})[0]) for each in pixels])


@pytest.mark.parametrize("bias", [-6.0, -9.0])
def test_scores_are_near_1_at_objects_and_at_the_bias_elsewhere(bias: float) -> None:
    seen = scenes(60, (1, 2))
    found = _outputs(detector.detector(bias), seen.pixels)
    scores, empty, objects = found[:, 4:].astype(np.float64), list[float](), list[float]()
    for image, boxes in zip(scores, seen.boxes, strict=True):
        clear = np.ones((detector.CELLS, detector.CELLS), bool)
        for kind, x1, y1, x2, y2 in boxes:
            column, row = (int((low + high) / 2 / detector.STRIDE) for low, high in ((x1, x2), (y1, y2)))
            objects.append(image[int(kind), row, column])
            clear[max(row - 3, 0) : row + 4, max(column - 3, 0) : column + 4] = False
        empty += image[:, clear].ravel().tolist()
    middle = np.median(empty)
    assert abs(np.log(middle / (1 - middle)) - bias) < 0.5
    assert len(objects) > 60
    assert np.median(objects) > 0.95
    assert np.mean(np.array(objects) > detector.SURE) > 0.9


def test_boxes_lie_on_the_objects() -> None:
    seen = scenes(60, (1, 2))
    found = _outputs(detector.detector(), seen.pixels)
    errors: list[Any] = []
    for image, boxes in zip(found, seen.boxes, strict=True):
        for _, x1, y1, x2, y2 in boxes:
            column, row = (int((low + high) / 2 / detector.STRIDE) for low, high in ((x1, x2), (y1, y2)))
            x, y = (column + 0.5) * detector.STRIDE, (row + 0.5) * detector.STRIDE
            left, top, right, bottom = image[:4, row, column] * detector.STRIDE
            errors.append(np.array([x - left, y - top, x + right, y + bottom]) - (x1, y1, x2, y2))
    assert np.abs(errors).mean() < 3


def test_objects_are_inside_their_boxes_and_apart() -> None:
    seen = scenes(40, (3,))
    assert seen.pixels.shape == (40, 3, SIZE, SIZE)
    for image, boxes in zip(seen.pixels, seen.boxes, strict=True):
        for kind, x1, y1, x2, y2 in boxes.astype(int):
            assert 0 <= x1 < x2 <= SIZE and 0 <= y1 < y2 <= SIZE
            middle = image[:, (y1 + y2) // 2, (x1 + x2) // 2]
            assert kind < CLASSES
            assert middle[0 if kind == 0 else 2] > middle[1]  # red or blue, not grey
