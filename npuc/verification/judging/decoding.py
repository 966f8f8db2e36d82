"""Decoding of outputs into boxes: detector layouts and their parameters."""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.verification.judging.boxes import Boxes, suppressed
from npuc.verification.judging.metric import Outputs, finite

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


def decoded(outputs: Outputs, decoding: Decoding) -> DecodedBoxes:
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
    left = suppressed(Boxes(corners, best[order], scores[order].argmax(axis=1)), decoding.nms_iou)
    return DecodedBoxes(left.taken(np.arange(min(len(left), MOST))), low, high, bool(sums))


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
