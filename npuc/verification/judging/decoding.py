"""How outputs become boxes: layouts of detectors, and what is assumed of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npuc.ir import Array
from npuc.verification.judging.boxes import Boxes, suppressed
from npuc.verification.judging.metric import Outputs, finite

CANDIDATES = 3000
"""Of a sample, those of the highest scores that suppression looks at."""
MOST = 300
"""Of a sample, those of the highest scores that are left in the end."""
SURE = 1e-3
"""What rounding may add to probabilities."""


@dataclass(frozen=True)
class Decoding:
    """What the outputs are."""

    layout: str
    """pair: boxes (N, 4) and scores (N, classes); rows: one output (N, 4 + 1 + classes), whose fifth column says
    whether there is an object at all; columns: one output (4 + classes, N)."""
    boxes: str
    scores: str
    """Names of outputs; the same where there is one."""
    rows: int
    columns: int
    """Of the scores' output, without its batch axis."""
    box_format: str
    """corners (x1, y1, x2, y2) or centre (x, y, width, height)."""
    score_threshold: float = 0.25
    nms_iou: float = 0.45
    background: str = ""
    """Which class is none: first, last or none of them; empty where nothing says it."""
    score_function: str = "identity"
    """What makes probabilities of the scores: identity, sigmoid or softmax."""

    @property
    def classes(self) -> int:
        """How many there are, without the background."""
        return {
            "pair": self.columns - (self.background in ("first", "last")),
            "rows": self.columns - 5,
            "columns": self.rows - 4,
        }[self.layout]


@dataclass(frozen=True)
class Decoded:
    """The detections of a sample, and what shows whether the assumptions hold."""

    boxes: Boxes
    low: float
    high: float
    """The least and the largest probability."""
    distributions: bool
    """Whether the probabilities of each row sum to one, over two or more columns."""


def decoded(outputs: Outputs, decoding: Decoding) -> Decoded:
    """The boxes of one sample: the best class of each, of at least the score threshold, after suppression.

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
    return Decoded(left.taken(np.arange(min(len(left), MOST))), low, high, bool(sums))


def _parts(outputs: Outputs, decoding: Decoding) -> tuple[Array, Array]:
    """Places (N, 4) and scores (N, classes), with that of an object before them in rows."""
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
