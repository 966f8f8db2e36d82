"""Which metric the shapes of outputs and labels tell, at the borders of what is recognised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npuc.errors import DataError
from npuc.program import GIVEN_BY, Program
from npuc.samples.loading import Samples
from npuc.verification.judging.choosing import Asked, NotTaken, choose_metric
from npuc.verification.judging.detections import Detections

YOLO = (1, 3, 640, 640)


def program(given: tuple[int, ...], *outputs: tuple[int, ...]) -> Program:
    ports = [{"name": f"o{at}", "shape": list(shape), "dtype": "float32"} for at, shape in enumerate(outputs)]
    inputs = [{"name": "x", "shape": list(given), "dtype": "float32"}]
    return Program({"inputs": inputs, "outputs": ports, GIVEN_BY: {}}, {})


def samples(y: Any = None, labels: Any = None) -> Samples:
    return Samples({"x": np.zeros((2, 1))}, labels, truth=y)


@pytest.mark.parametrize(
    ("given", "outputs", "layout"),
    [
        # the exports of YOLOv8 and YOLOv5 for COCO: 80 x 80 + 40 x 40 + 20 x 20 places, and three boxes at each
        (YOLO, [(1, 84, 8400)], "columns"),
        (YOLO, [(1, 25200, 85)], "rows"),
        ((1, 3, 416, 416), [(1, 3549, 85)], "rows"),
        ((1, 416, 416, 3), [(1, 10647, 85)], "rows"),
        ((1, 3, 1280, 1280), [(1, 102000, 85)], "rows"),  # with a map of stride 64
        (YOLO, [(1, 5, 8400)], "columns"),
        (YOLO, [(1, 8400, 6)], "rows"),
        (YOLO, [(1, 300, 4), (1, 300, 80)], "pair"),
        ((1, 3, 240, 320), [(1, 4420, 2), (1, 4420, 4)], "pair"),  # UltraFace: scores first
        ((1, 3, 240, 320), [(4420, 4), (4420, 1)], "pair"),
    ],
)
def test_detectors_are_recognised(given: tuple[int, ...], outputs: list[tuple[int, ...]], layout: str) -> None:
    metric, why, truths = choose_metric(program(given, *outputs), samples(), Asked())
    assert isinstance(metric, Detections) and metric.decoding.layout == layout and truths is None
    assert str(list(outputs[0])).strip("[]") in why
    assert metric.image == (given[2:] if given[1] == 3 else given[1:3])
    if layout == "pair":
        assert (metric.decoding.boxes, metric.decoding.scores) == (
            ("o0", "o1") if outputs[0][-1] == 4 else ("o1", "o0")
        )


@pytest.mark.parametrize(
    "outputs",
    [
        [(1, 300, 6)],  # a row a detection, or classes behind 5 numbers: nothing tells
        [(1, 8401, 85)],
        [(1, 4, 8400)],
        [(1, 8400, 5)],
    ],
)
def test_one_output_of_another_size_is_no_detector(outputs: list[tuple[int, ...]]) -> None:
    metric, _, _ = choose_metric(program(YOLO, *outputs), samples(), Asked())
    assert metric.name == "ctc"  # which fp32's values must confirm
    with pytest.raises(DataError, match="not recognised as a detector"):
        choose_metric(program(YOLO, *outputs), samples(), Asked("detections"))


@pytest.mark.parametrize(
    "outputs",
    [
        [(1, 300, 4), (1, 300, 4)],  # either could be the boxes
        [(1, 300, 4), (1, 299, 80)],
        [(1, 300, 4), (1, 300, 80), (1, 300, 10)],
        [(1, 80, 80, 85), (1, 40, 40, 85)],
        [(1, 2, 60, 60)],
    ],
)
def test_what_is_ambiguous_is_refused_with_what_is_recognised(outputs: list[tuple[int, ...]]) -> None:
    with pytest.raises(DataError, match="no metric is recognised") as caught:
        choose_metric(program(YOLO, *outputs), samples(), Asked())
    assert "(N, 4)" in str(caught.value.problems[0].limit)
    with pytest.raises(DataError):
        choose_metric(program(YOLO, *outputs), samples(), Asked("detections"))
    assert choose_metric(program(YOLO, *outputs), samples(), Asked("regression"))[0].name == "regression"


def test_labels_come_before_shapes() -> None:
    line = program((1, 3, 32, 320), (1, 40, 97))
    assert choose_metric(line, samples(), Asked())[0].name == "ctc"
    metric, why, truths = choose_metric(line, samples(np.ones((2, 5), np.int64)), Asked())
    assert metric.name == "ctc" and "a sequence of labels" in why and truths is not None
    assert choose_metric(line, samples(np.ones((2, 40, 97))), Asked())[0].name == "regression"
    assert choose_metric(line, samples(np.ones(2), np.ones(2, np.int64)), Asked())[0].name == "top1"
    one = program((1, 4), (1, 1))
    assert choose_metric(one, samples(np.ones(2), np.ones(2, np.int64)), Asked())[0].name == "regression"
    with pytest.raises(DataError, match="one element"):
        choose_metric(one, samples(np.ones(2), np.ones(2, np.int64)), Asked("top1"))
    vector = program((1, 4), (1, 10))
    with pytest.raises(DataError, match="no labels"):
        choose_metric(vector, samples(), Asked())
    assert choose_metric(vector, samples(np.ones((2, 10))), Asked())[0].name == "regression"


@pytest.mark.parametrize(("outputs", "options", "error"), [
    ([(1, 20, 4)], {"metric": "detections"}, DataError), ([(1, 2, 3, 4)], {"metric": "ctc"}, DataError),
    ([(-1, 20)], {"metric": "regression"}, DataError), ([(1, 20)], {"metric": "no.py:function"}, DataError),
])  # fmt: skip
def test_what_does_not_fit_is_refused(
    outputs: list[tuple[int, ...]], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        choose_metric(program(YOLO, *outputs), samples(), Asked(**options))


@pytest.mark.parametrize(
    "options", [{"metric": "map"}, {"metric": "a.py:"}, {"metric": "a:f"}, {"metric": "a.py:1"}]
)
def test_values_that_there_are_not_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(NotTaken):
        Asked(**options)
