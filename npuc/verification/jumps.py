"""The elements of a model's outputs that jump: at a threshold or a tie, where rounding decides what they are.

A comparison, a choice of the largest, or a rounding to steps turns an error in the last bit into any other value.
How many elements of a few samples meet that is chance, and tells nothing about accuracy. The model itself shows
them: all its results are moved by random parts of their values, and by the same parts a FINER-th as large. What
depends smoothly on them moves that much less, what jumps does not.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npuc.ir import Array
from npuc.verification.original import MOVED, OF_LARGEST, STEPS, JudgedModel

PARTS = {"fp16": 2.0**-9, "fp32": 2.0**-14}
"""How far results are moved, by the program's format: 4 times what fp16 rounds, 1,000 times what fp32 does."""
FINER = 16.0
DRAWS = 16
"""The number of random movements: an element that one in two moves jumps in all but 2^-16 of the cases."""
SMOOTH = 2.0
"""How far the two movements of an element that does not jump may be from proportional."""
FACTOR = 1.5
"""Permitted error of an element, as a multiple of its largest jump."""


def jumping(
    form: JudgedModel,
    precision: str,
    feed: Mapping[str, Array],
    wanted: Mapping[str, Array],
    found: Mapping[str, Array],
) -> dict[str, Array]:
    """The elements of outputs whose difference is a jump, as a mask each.

    precision: of the program, which is a key of PARTS. wanted, found: tensors of numbers in one shape each. Raises
    ModelError (E105) if onnxruntime cannot run the model with its results moved.
    """
    names = [*wanted]
    jumps = {name: np.zeros(each.shape) for name, each in wanted.items()}
    parts = dict.fromkeys(MOVED, PARTS[precision]) | {STEPS: MOVED[STEPS]}
    coarse, fine = (form.moved(names, {kind: each / by for kind, each in parts.items()}) for by in (1.0, FINER))
    for draw in range(DRAWS):
        far, near = (_apart(moved(feed, draw), wanted) for moved in (coarse, fine))
        for name in names:
            jumps[name] = np.maximum(jumps[name], _jump(far[name], near[name], wanted[name]))
    apart = _apart(found, wanted)
    return {name: (apart[name] > 0) & (apart[name] <= FACTOR * jumps[name]) for name in names}


def _jump(far: Array, near: Array, exact: Array) -> Array:
    """How far each element jumps, given how far both movements move it; 0 where these are proportional."""
    least = OF_LARGEST * np.abs(exact).max(initial=0)
    smooth = np.isfinite(far) & (far <= SMOOTH * FINER * near) & (FINER * near <= SMOOTH * far)
    return np.where(smooth | (far <= least), 0.0, far)


def _apart(one: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, Array]:
    """How far each element is; infinitely, where a tensor has another shape, so that no element is the same."""
    with np.errstate(all="ignore"):
        return {
            name: np.abs(one[name].astype(np.float64) - each)
            if one[name].shape == each.shape
            else np.full(each.shape, np.inf)
            for name, each in other.items()
        }
