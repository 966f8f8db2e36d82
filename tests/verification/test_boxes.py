"""Boxes against published and hand-made examples: overlap, suppression, matches, average precision, mAP."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.errors import DataError
from npuc.verification.judging.boxes import (
    Boxes,
    Decoding,
    average_precision,
    decode_boxes,
    match_boxes,
    overlaps,
    suppress_overlaps,
)
from npuc.verification.judging.detections import Detections


def boxes(*rows: tuple[float, float, float, float, float, int]) -> Boxes:
    """x1, y1, x2, y2, score, class."""
    values = np.array(rows, np.float64).reshape(-1, 6)
    return Boxes(values[:, :4], values[:, 4], values[:, 5].astype(np.int64))


def test_average_precision_is_that_of_the_published_example() -> None:
    # Padilla, Netto, da Silva: A Survey on Performance Metrics for Object-Detection Algorithms, 2020: 24
    # detections of 15 objects, right at these ranks; AP over all points 24.56 % (of terms cut off behind 4 digits)
    right = np.zeros(24, bool)
    right[[0, 2, 9, 11, 12, 13, 22]] = True
    assert average_precision(right, np.ones((1, 24)), np.array([15.0])) == pytest.approx(0.2456, abs=1e-4)
    # by hand, the largest precision at each recall or beyond: 1, 2/3, four times 6/14, 7/23
    by_hand = (1 + 2 / 3 + 4 * 6 / 14 + 7 / 23) / 15
    assert average_precision(right, np.ones((1, 24)), np.array([15.0])) == pytest.approx(by_hand, rel=1e-12)


def test_a_sample_that_counts_twice_is_as_if_it_were_there_twice() -> None:
    right = np.array([True, False, True, False, True])
    weights = np.array([[2.0, 1, 0, 3, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
    found = average_precision(right, weights, np.array([8.0, 2, 0]))
    # twice right, wrong, three times wrong, right: precision 1 up to 2 of 8, 3 / 7 up to 3
    assert found[:2] == pytest.approx([(2 + 3 / 7) / 8, (1 + 2 / 3) / 2], rel=1e-12)
    assert np.isnan(found[2])


def test_overlap_is_intersection_over_union() -> None:
    first = np.array([[0.0, 0, 10, 10], [5, 5, 5, 9]])
    second = np.array([[5.0, 0, 15, 10], [0, 0, 10, 10], [10, 0, 20, 10], [2, 2, 4, 7], [5, 5, 5, 9]])
    found = overlaps(first, second)
    np.testing.assert_allclose(found[0], [50 / 150, 1, 0, 10 / 100, 0], rtol=1e-12)
    assert found[1].tolist() == [0, 0, 0, 0, 0]  # a box without area overlaps nothing


def test_suppression_keeps_the_better_of_two_and_other_classes() -> None:
    # 2 overlaps 1 by 9 / 11 = .818; 3 has another class; 4 overlaps 2 by .818 and 1 by 8 / 12 = .667
    given = boxes((0, 0, 10, 1, 0.9, 0), (1, 0, 11, 1, 0.8, 0), (0, 0, 10, 1, 0.7, 1), (2, 0, 12, 1, 0.6, 0))
    assert suppress_overlaps(given, 0.7).scores.tolist() == [0.9, 0.7, 0.6]
    assert suppress_overlaps(given, 0.6).scores.tolist() == [0.9, 0.7]
    assert suppress_overlaps(given, 9 / 11).scores.tolist() == [0.9, 0.8, 0.7, 0.6]  # not above the limit
    assert suppress_overlaps(given, 1.0).scores.tolist() == [0.9, 0.8, 0.7, 0.6]


def test_matches_are_those_of_pascal_voc() -> None:
    true = boxes((0, 0, 10, 10, 1, 0), (20, 0, 30, 10, 1, 0), (0, 0, 10, 10, 1, 1))
    found = boxes(
        (0, 0, 10, 5, 0.9, 0),  # overlap .5: just enough
        (0, 0, 10, 10, 0.8, 0),  # better, but the box is found already: wrong
        (20, 0, 30, 4.9, 0.7, 0),  # overlap .49
        (0, 0, 10, 10, 0.6, 2),  # no such class
        (20, 0, 30, 10, 0.5, 0),
        (0, 0, 10, 10, 0.4, 1),
    )
    assert match_boxes(found, true).tolist() == [0, -1, -1, -1, 1, 2]
    assert match_boxes(found, boxes()).tolist() == [-1] * 6
    assert match_boxes(boxes(), true).tolist() == []


# Three boxes of one image as every layout has them: corners, score of class 0 and of class 1.
CORNERS = np.array([[8.0, 8, 24, 24], [40, 40, 60, 56], [9, 8, 25, 24]])
SCORES = np.array([[0.9, 0.05], [0.1, 0.8], [0.7, 0.2]])
CENTRES = np.array([[16.0, 16, 16, 16], [50, 48, 20, 16], [17, 16, 16, 16]])


def pair(**options: object) -> Decoding:
    return Decoding("pair", "b", "s", 3, 2, **{"box_format": "corners", **options})  # type: ignore[arg-type]


LAYOUTS = {
    "corners": (pair(), {"b": CORNERS[None], "s": SCORES[None]}),
    "centres": (pair(box_format="centre"), {"b": CENTRES[None], "s": SCORES[None]}),
    "rows": (Decoding("rows", "o", "o", 3, 7, "centre"), {"o": np.concatenate([CENTRES, np.full((3, 1), 0.5),
     2 * np.minimum(SCORES, 0.5)], axis=1)[None]}),
    "columns": (Decoding("columns", "o", "o", 6, 3, "centre"), {"o": np.concatenate([CENTRES, SCORES],
     axis=1).T[None]}),
    "logits": (pair(score_function="sigmoid"), {"b": CORNERS[None], "s": np.log(SCORES / (1 - SCORES))[None]}),
    "background first": (Decoding("pair", "b", "s", 3, 3, "corners", background="first",
     score_function="softmax"), {"b": CORNERS[None], "s": np.log(np.concatenate([1 - SCORES.sum(axis=1,
     keepdims=True), SCORES], axis=1))[None]}),
    "background last": (Decoding("pair", "b", "s", 3, 3, "corners", background="last"),
     {"b": CORNERS[None], "s": np.concatenate([SCORES, np.full((3, 1), 0.95)], axis=1)[None]}),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_boxes(layout: str) -> None:
    decoding, outputs = LAYOUTS[layout]
    assert decoding.classes == 2
    found = decode_boxes(outputs, decoding).boxes  # the third overlaps the first by 15 / 17
    np.testing.assert_allclose(found.corners, CORNERS[:2], rtol=1e-12)
    assert found.classes.tolist() == [0, 1]
    wanted = [0.5, 0.5] if layout == "rows" else [0.9, 0.8]  # objectness .5, and classes of 1 at most
    np.testing.assert_allclose(found.scores, wanted, rtol=1e-6)


def test_the_threshold_is_the_least_score_that_counts() -> None:
    outputs = {"b": CORNERS[None], "s": SCORES[None]}
    kept = [
        len(decode_boxes(outputs, pair(score_threshold=each, nms_iou=1.0)).boxes)
        for each in (0.7, 0.71, 0.81, 0.91)
    ]
    assert kept == [3, 2, 1, 0]


def digests(*samples: tuple[np.ndarray, np.ndarray], decoding: Decoding | None = None) -> list[object]:
    metric = Detections(decoding or pair(), (64, 64))
    return [metric.digest({"b": b[None], "s": s[None]}, {}, None) for b, s in samples]


def test_map_recall_and_pixels_are_those_counted_by_hand() -> None:
    exact = digests((CORNERS, SCORES), (CORNERS, SCORES))
    # the second sample: the first box is moved by 2 pixels in x (overlap 14 / 18), the second by half its width
    moved = CORNERS + np.array([[2.0, 0, 2, 0], [10, 0, 10, 0], [2, 0, 2, 0]])
    found = digests((CORNERS, SCORES), (moved, SCORES))
    report = Detections(pair(), (64, 64)).report({"fp32": exact, "simulator": found}, None)
    assert report["boxes"] == 4 and report["decoding"]["units"] == "pixels"
    assert report["fp32"]["map50"] == report["fp32"]["recall"] == 1 and report["fp32"]["box_error_px"] == 0
    row = report["simulator"]
    # class 0: both found; class 1: one of two found, of two with the same score that of the first sample
    assert row["map50"] == pytest.approx((1 + 0.5) / 2) and row["difference"] == pytest.approx(-0.25)
    assert row["recall"] == pytest.approx(3 / 4)
    # of the three that are found one is off by 2 pixels in two of its four coordinates
    assert row["box_error_px"] == pytest.approx(1 / 3)
    assert row["interval"][0] <= row["map50"] <= row["interval"][1] and row["recall_interval"] == [0.5, 1.0]


def test_labels_are_the_truth_where_there_are_some() -> None:
    exact = digests((CORNERS, SCORES), (CORNERS, SCORES))
    labels = np.full((2, 3, 5), -1.0)
    labels[0, :2] = [[0, 8, 8, 24, 24], [1, 40, 40, 60, 56]]
    labels[1, :2] = [[1, 8, 8, 24, 24], [0, 30, 8, 40, 24]]  # another class there, and nothing here
    report = Detections(pair(), (64, 64)).report({"fp32": exact, "simulator": exact}, labels)
    assert report["boxes"] == 4
    # class 0, scores .9 .9: right, wrong, of 2; class 1, scores .8 .8: right, wrong, of 2
    assert report["fp32"]["map50"] == pytest.approx(0.5)
    assert report["simulator"]["recall"] == 1  # of fp32's detections


def test_units_of_the_image_are_scaled_to_pixels_and_labels_may_be_in_either() -> None:
    exact = digests((CORNERS / 64, SCORES))
    found = digests((CORNERS / 64 + np.array([[1 / 64, 0, 1 / 64, 0]]), SCORES))
    both = {"fp32": exact, "simulator": found}
    for labels in ([[[0, 8, 8, 24, 24]]], [[[0, 8 / 32, 8 / 64, 24 / 32, 24 / 64]]]):
        wide = Detections(pair(), (64, 32)).report(both, np.array(labels, np.float64))
        assert wide["decoding"]["units"] == "image"
        assert wide["simulator"]["box_error_px"] == pytest.approx(2 * (1 / 64) * 32 / 4)
    unknown = Detections(pair(), None).report(both, None)
    assert unknown["simulator"]["box_error_px"] is None and unknown["simulator"]["recall"] == 1
    with pytest.raises(DataError, match="other units"):
        Detections(pair(), None).report(both, np.array([[[0, 8, 8, 24, 24.0]]]))


def test_what_nobody_calls_boxes_must_be_in_pixels() -> None:
    metric = Detections(pair(), (64, 64), certain=False)
    assert metric.report({"fp32": digests((CORNERS, SCORES))}, None)["boxes"] == 2
    with pytest.raises(DataError, match="--metric detections"):
        metric.report({"fp32": digests((CORNERS / 64, SCORES))}, None)


def test_one_sample_has_no_interval() -> None:
    exact = digests((CORNERS, SCORES))
    row = Detections(pair(), (64, 64)).report({"fp32": exact}, None)["fp32"]
    assert row["interval"] is None and row["box_error_px_interval"] is None


@pytest.mark.parametrize(("places", "scores", "options", "said"), [
    (CORNERS, SCORES * 4, {}, "no probabilities"), (CORNERS, SCORES - 0.5, {}, "no probabilities"),
    (CENTRES[[0, 1, 1]], SCORES * 0.9, {}, "end before they begin"),
    (CORNERS, SCORES / 9, {}, "detects nothing"),
    (CORNERS, SCORES / SCORES.sum(axis=1, keepdims=True), {"background": ""}, "sum to 1"),
    (CORNERS + 60, SCORES * 0.9, {}, "touch the image"),
    (CORNERS / 64 - 1.5, SCORES * 0.9, {}, "touch the image"),
])  # fmt: skip
def test_outputs_that_are_not_what_they_are_taken_for_are_refused(
    places: np.ndarray, scores: np.ndarray, options: dict[str, str], said: str
) -> None:
    decoding = pair(**{"background": "none", **options})
    with pytest.raises(DataError, match=said) as caught:
        Detections(decoding, (64, 64)).report({"fp32": digests((places, scores), decoding=decoding)}, None)
    assert caught.value.problems[0].code == "E402" and caught.value.problems[0].remedy


@pytest.mark.parametrize("labels", [
    np.zeros(2), np.zeros((2, 3, 4)), np.full((2, 1, 5), -1.0), np.array([[[0, 8, 8, 8, 24]], [[0, 8, 8, 9, 24]]]),
    np.array([[[0, np.nan, 8, 20, 24]], [[0, 8, 8, 9, 24]]]), np.array([[[2, 1, 8, 20, 24]], [[0, 8, 8, 9, 24]]]),
    np.array([[[0.5, 1, 8, 20, 24]], [[0, 8, 8, 9, 24]]]), np.array([["car"], ["dog"]]),
])  # fmt: skip
def test_labels_that_are_no_boxes_are_refused(labels: np.ndarray) -> None:
    exact = digests((CORNERS, SCORES * 0.9), (CORNERS, SCORES * 0.9))
    with pytest.raises(DataError) as caught:
        Detections(pair(), (64, 64)).report({"fp32": exact}, labels)
    assert caught.value.problems[0].code == "E402" and caught.value.problems[0].tensor == "y"


def test_values_that_are_not_finite_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="not finite") as caught:
        digests((CORNERS, np.where(SCORES > 0.8, np.nan, SCORES)))
    assert caught.value.problems[0].tensor == "s"
