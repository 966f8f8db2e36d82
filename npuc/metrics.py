"""How good a program's outputs are beside those of the fp32 model, on samples and their labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npuc.data import Samples
from npuc.frontend.reading import read_model
from npuc.ir import Array
from npuc.reference import session
from npuc.verification import Difference

UNKNOWN: Mapping[str, Any] = dict.fromkeys(("sqnr_db", "exact", "argmax_agreement", "top1"))
"""The scores of what was not run."""


def expected(model: Path, samples: Samples) -> dict[str, Array]:
    """The model's outputs under onnxruntime: (samples, elements) by name.

    Raises ModelError where onnxruntime or npuc cannot read it.
    """
    run = session(read_model(model), optimise=True)
    names = [each.name for each in run.get_outputs()]
    parts = [run.run(names, feed) for feed in samples.feeds()]
    return {name: np.stack([part[at].ravel() for part in parts]) for at, name in enumerate(names)}


def scores(exact: Mapping[str, Array], found: Mapping[str, Array], labels: Array | None) -> dict[str, Any]:
    """How far the outputs are from the exact ones, (samples, elements) each, and what that costs the task.

    sqnr_db: of the worst output, null where all are exact. argmax_agreement: the share of samples whose largest
    element of the first output is the same; top1: the share where it is the label. Both null without classes.
    """
    noise: list[float] = []
    for name, values in exact.items():
        apart = Difference()
        apart.add(values, found[name].reshape(values.shape))
        if apart.sqnr_db is not None:
            noise.append(apart.sqnr_db)
    first = next(iter(exact))
    return {
        "sqnr_db": min(noise, default=None),
        "exact": not noise,
        "argmax_agreement": _share(_classes(exact[first]), _classes(found[first].reshape(exact[first].shape))),
        "top1": _share(labels, _classes(found[first].reshape(exact[first].shape))),
    }


def top1(exact: Mapping[str, Array], labels: Array | None) -> float | None:
    """The share of samples whose largest element of the first output is the label; None where it has none."""
    return _share(labels, _classes(next(iter(exact.values()))))


def _classes(values: Array) -> Array | None:
    return np.argmax(values, axis=1) if values.shape[1] > 1 else None


def _share(wanted: Array | None, found: Array | None) -> float | None:
    return None if wanted is None or found is None else float(np.mean(wanted == found))
