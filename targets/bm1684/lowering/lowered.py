"""What lowering gives to the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from npuc.storage.pieces import Content
from npuc.targets.bm1684.lowering.kernel import Load, Step
from npuc.targets.bm1684.lowering.tensors import Tensor


@dataclass(frozen=True)
class Lowered:
    """Steps in order, the loads that fill buffers beforehand, and what lies in system memory."""

    steps: tuple[Step, ...]
    loads: Mapping[str, tuple[Load, ...]]
    """By buffer, in the order of their columns."""
    buffers: Mapping[str, int]
    """Bytes of each NPU."""
    weights: Content
    scratch_bytes: int
    inputs: Mapping[str, str]
    """Region of every input of the network."""
    outputs: Mapping[str, str]
    tensors: Mapping[str, Tensor]
    """Where tensors of the graph lie when they have been computed."""
