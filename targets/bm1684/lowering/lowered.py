"""The result of lowering, from which the planner starts."""

from __future__ import annotations

from collections.abc import Mapping

from npuc.frozen import frozen
from npuc.storage.mapped import Content
from npuc.targets.bm1684.lowering.kernel import Load, Step
from npuc.targets.bm1684.lowering.tensors import Tensor


@frozen
class Lowered:
    """Steps in order, the loads that fill buffers before use, and the content of system memory."""

    steps: tuple[Step, ...]
    loads: Mapping[str, tuple[Load, ...]]
    """By buffer, in column order."""
    buffers: Mapping[str, int]
    """Bytes per NPU."""
    weights: Content
    scratch_bytes: int
    inputs: Mapping[str, str]
    """The region of every input of the network."""
    outputs: Mapping[str, str]
    tensors: Mapping[str, Tensor]
    """Where tensors of the graph are after they have been computed."""
