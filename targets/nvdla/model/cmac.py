"""CMAC_A and CMAC_B, the multipliers. Each has half of the kernels of a group; modelled as one product."""

from __future__ import annotations

import numpy as np

from npuc.ir import Array
from npuc.targets.nvdla.model.csc import Step


def multiply(step: Step, dtype: type[np.floating]) -> Array:
    """Products of data and weights summed over channels (..., positions, kernels), in a type that is exact."""
    data, weights = step
    return np.matmul(data.astype(dtype, copy=False), weights.astype(dtype, copy=False))
