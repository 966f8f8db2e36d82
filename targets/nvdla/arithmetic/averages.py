"""The two reciprocals of PDP's average, chosen so that no sum of any elements wraps."""

from __future__ import annotations

import numpy as np

from npuc.targets.nvdla.model.averages import ONE, Widths

LEAST = 64
"""The smallest second reciprocal whose own rounding costs no accuracy."""
GRAIN = 4
"""First reciprocals are multiples of this, so that SDP's 16-bit multipliers can represent them too."""


def reciprocals(ratio: float, taps: int, widths: Widths) -> tuple[int, int] | None:
    """The reciprocals of width and height that multiply sums of `taps` elements by ratio / taps; None if sums can
    wrap.

    The first one keeps as many bits as the unit has, the second one is the rest of the ratio.
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
