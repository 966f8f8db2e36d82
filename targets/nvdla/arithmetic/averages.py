"""The two reciprocals of PDP's average with which no sum of any elements wraps."""

from __future__ import annotations

import numpy as np

from npuc.targets.nvdla.model.averages import ONE, Widths

LEAST = 64
"""The least second reciprocal whose own rounding costs no accuracy."""
GRAIN = 4
"""First reciprocals are multiples of this: so SDP's multipliers of 16 bits can stand for them, too."""


def reciprocals(ratio: float, taps: int, widths: Widths) -> tuple[int, int] | None:
    """Those of width and height that give sums of so many elements times ratio / taps, if no sum can wrap.

    The first one keeps as many bits as there are, the second one has the rest of the ratio.
    """
    first = ONE if taps <= widths.room else ONE * widths.room // taps // GRAIN * GRAIN
    wanted = ratio * ONE / (taps * first / ONE)
    most = 1 << (widths.element - 1)
    for second in (round(wanted), round(wanted) - 1):
        second -= second % GRAIN if second >= ONE // 2 else 0
        ends = np.array([-most * taps, (most - 1) * taps])
        inside = np.abs((ends * first / ONE) * (second / ONE)) < (most + 0.5, most - 0.5)
        if LEAST <= second <= ONE and inside.all():
            return first, second
    return None
