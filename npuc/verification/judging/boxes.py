"""Boxes: decoded from outputs, their overlap, non-maximum suppression, matching, and average precision."""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.verification.judging.metric import Outputs, finite, ratio

LEAST_OVERLAP = 0.5
"""The least intersection over union of a correct detection."""


@frozen
class Boxes:
    """The boxes of one sample, in order of descending score. Corners: (boxes, 4) float64, x1, y1, x2, y2."""

    corners: Array
    scores: Array
    classes: Array

    def __len__(self) -> int:
        return len(self.corners)

    def select(self, which: Array) -> Boxes:
        """A selection of the boxes, by index or mask."""
        return Boxes(self.corners[which], self.scores[which], self.classes[which])

    def scale(self, width: float, height: float) -> Boxes:
        """The boxes with their coordinates scaled."""
        return Boxes(self.corners * (width, height, width, height), self.scores, self.classes)


def overlaps(first: Array, second: Array) -> Array:
    """Intersection over union of all pairs: corners (n, 4) and (m, 4) give (n, m); 0 if both boxes are empty.

    >>> overlaps(np.array([[0.0, 0, 2, 2]]), np.array([[1.0, 0, 3, 2], [5, 5, 6, 6]])).round(3).tolist()
    [[0.333, 0.0]]
    """
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    areas = [np.clip(each[:, 2:] - each[:, :2], 0, None).prod(axis=1) for each in (first, second)]
    union = areas[0][:, None] + areas[1][None] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def suppress_overlaps(boxes: Boxes, most_overlap: float) -> Boxes:
    """The boxes left by non-maximum suppression: of two of a class that overlap more, the higher score stays."""
    left = np.ones(len(boxes), bool)
    for at in range(len(boxes)):
        if left[at]:
            rest = np.flatnonzero(left[at + 1 :] & (boxes.classes[at + 1 :] == boxes.classes[at])) + at + 1
            over = overlaps(boxes.corners[at : at + 1], boxes.corners[rest])[0]
            left[rest[over > most_overlap]] = False
    return boxes.select(left)


def match_boxes(found: Boxes, wanted: Boxes) -> Array:
    """The index of the true box that each detection matches, -1 for none: (detections,) int64.

    A detection is compared with the box of its class that it overlaps most. It matches if the overlap is
    LEAST_OVERLAP or more and no detection of a higher score has matched that box: further detections of it are
    wrong.
    Source: Everingham et al., The PASCAL Visual Object Classes Challenge, 2010, section 4.2, and its VOCevaldet.m.
    """
    result = np.full(len(found), -1, np.int64)
    if not len(wanted):
        return result
    over = np.where(found.classes[:, None] == wanted.classes, overlaps(found.corners, wanted.corners), -1.0)
    taken: set[int] = set()
    for at, best in enumerate(over.argmax(axis=1).tolist()):
        if over[at, best] >= LEAST_OVERLAP and best not in taken:
            taken.add(best)
            result[at] = best
    return result


def average_precision(right: Array, weights: Array, truths: Array) -> Array:
    """The area under the curve of the best precision at each recall or above: (drawings,).

    right: (detections,) bool, in order of descending score; weights: how often each detection counts, (drawings,
    detections); truths: the number of true boxes, (drawings,). The result is NaN without true boxes.
    Source: VOC development kit from 2010 on, VOCap.m.

    >>> right = np.array([True, False, True, False])
    >>> average_precision(right, np.ones((1, 4)), np.array([4.0])).tolist()  # 1 up to recall 1/4, 2/3 up to 1/2
    [0.41666666666666663]
    """
    hits, all_found = np.cumsum(weights * right, axis=1), np.cumsum(weights, axis=1)
    precision = np.divide(hits, all_found, out=np.zeros_like(hits), where=all_found > 0)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    return ratio((weights * right * envelope).sum(axis=1), truths)


CANDIDATES = 3000
"""The number of boxes per sample, those with the highest scores, that enter suppression."""
MOST = 300
"""The number of boxes per sample, those with the highest scores, that are kept after suppression."""
SURE = 1e-3
"""Tolerance on probabilities for rounding."""


@frozen
class Decoding:
    """How to interpret the outputs."""

    layout: str
    """pair: (N, 4) and (N, classes); rows: (N, 4 + objectness + classes); columns: (4 + classes, N)."""
    boxes: str
    scores: str
    """Names of the two outputs; equal if there is only one."""
    rows: int
    columns: int
    """Shape of the scores' output without its batch axis."""
    box_format: str
    """corners (x1, y1, x2, y2) or centre (x, y, width, height)."""
    score_threshold: float = 0.25
    nms_iou: float = 0.45
    background: str = ""
    """Which class is the background: first, last or none; empty if not specified."""
    score_function: str = "identity"
    """The function that turns scores into probabilities: identity, sigmoid or softmax."""

    @property
    def classes(self) -> int:
        """The number of classes without the background."""
        return {
            "pair": self.columns - (self.background in ("first", "last")),
            "rows": self.columns - 5,
            "columns": self.rows - 4,
        }[self.layout]


@frozen
class DecodedBoxes:
    """The detections of a sample, and evidence on whether the parameters are right."""

    boxes: Boxes
    low: float
    high: float
    """The smallest and the largest probability."""
    distributions: bool
    """Whether every row of probabilities sums to one, in pair layout with two or more columns."""


def decode_boxes(outputs: Outputs, decoding: Decoding) -> DecodedBoxes:
    """The boxes of one sample: the best class of each, if it reaches the score threshold, after suppression.

    Corners are in the model's own units. Raises DataError (E402) for values that are not finite.
    """
    places, values = _parts(outputs, decoding)
    scores = _probabilities(values, decoding.score_function)
    low, high = float(scores.min()), float(scores.max())
    sums = decoding.layout == "pair" and scores.shape[1] > 1 and np.abs(scores.sum(axis=1) - 1).max() < SURE
    if decoding.layout == "rows":
        scores = scores[:, :1] * scores[:, 1:]
    columns = {"first": slice(1, None), "last": slice(-1)}.get(decoding.background, slice(None))
    scores = scores[:, columns]
    best = scores.max(axis=1)
    order = np.argsort(-best, kind="stable")[:CANDIDATES]
    order = order[best[order] >= decoding.score_threshold]
    corners = _corners(places[order], decoding.box_format)
    left = suppress_overlaps(Boxes(corners, best[order], scores[order].argmax(axis=1)), decoding.nms_iou)
    return DecodedBoxes(left.select(np.arange(min(len(left), MOST))), low, high, bool(sums))


def _parts(outputs: Outputs, decoding: Decoding) -> tuple[Array, Array]:
    """Box coordinates (N, 4) and scores (N, classes); in rows layout the objectness is the first score."""
    values = finite(outputs[decoding.scores], decoding.scores).reshape(decoding.rows, decoding.columns)
    if decoding.layout == "pair":
        return finite(outputs[decoding.boxes], decoding.boxes).reshape(-1, 4), values
    values = values if decoding.layout == "rows" else values.T
    return values[:, :4], values[:, 4:]


def _probabilities(values: Array, function: str) -> Array:
    match function:
        case "sigmoid":
            return 0.5 + 0.5 * np.tanh(0.5 * values)
        case "softmax":
            powers = np.exp(values - values.max(axis=1, keepdims=True))
            return powers / powers.sum(axis=1, keepdims=True)
        case _:
            return values


def _corners(places: Array, box_format: str) -> Array:
    if box_format == "corners":
        return places
    half = places[:, 2:] / 2
    return np.concatenate([places[:, :2] - half, places[:, :2] + half], axis=1)
