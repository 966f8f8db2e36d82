"""Selection: the hardware operations for each node of the integer graph, given where its tensors are placed.

Grouped and depthwise convolutions become dense ones with zero weights. Lanes without a channel have zero weights
and zero operands as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npuc.errors import UnsupportedOperator
from npuc.targets.nvdla.operations import timing
from npuc.targets.nvdla.operations.operation import Contraction, Elementwise, Operation
from npuc.targets.nvdla.operations.surfaces import converts
from npuc.targets.nvdla.selection.choice import Alternative, Choices, FormChoice, choose
from npuc.targets.nvdla.selection.context import (
    Constants,
    Context,
    ConvolutionPart,
    Placed,
    PlannedLayer,
    computed_lanes,
    needs_batches,
)
from npuc.targets.nvdla.selection.convolution import (
    largest_tile,
    likeness,
    needed_lines,
    passes,
    select_convolutions,
    transfers,
)
from npuc.targets.nvdla.selection.interleaving import select_interleaving
from npuc.targets.nvdla.selection.pooling import can_pool, pooled_rows, pooling_behind, select_pooling
from npuc.targets.nvdla.selection.sdp import as_column, is_misplaced, select_normalisation, select_sdp

COMPUTED = ("NvConv", "NvElementwise", "NvAveragePool", "MaxPool", "NvLrn", "Interleave")
"""Operators of the integer graph that NVDLA computes, or that need no operation because strides do the work."""


def select(context: Context, layer: PlannedLayer, edges: Sequence[int] = ()) -> list[Operation]:
    """The operations that compute a layer, followed by the weight copies scheduled behind it.

    edges: the first row of each tile, then the height of the layer's result.
    """
    return [*_operations_of(context, layer, edges), *transfers(context, layer)]


def _operations_of(context: Context, layer: PlannedLayer, edges: Sequence[int]) -> list[Operation]:
    node = layer.node
    match node.op:
        case "NvConv":
            return list(select_convolutions(context, layer, edges))
        case "NvElementwise":
            return [_avoid_misplacement(context, _elementwise(context, layer))]
        case "Interleave":
            return [_avoid_misplacement(context, each) for each in select_interleaving(context, node)]
        case "NvLrn":
            return [select_normalisation(context, node)]
        case _:
            return list(select_pooling(context, node))


def _avoid_misplacement(context: Context, operation: Elementwise | Contraction) -> Elementwise | Contraction:
    """The operation, rewritten as a column if SDP would not find its maps where their strides say."""
    if isinstance(operation, Contraction) or not is_misplaced(operation, context.machine):
        return operation
    if operation.source.precision != operation.destination.precision:
        reason = f"a pixel of a larger map is converted to {operation.destination.precision}"
        raise UnsupportedOperator("E202", reason, limit="maps of their own", remedy="another --layer")
    return as_column(operation, context.machine)


def _elementwise(context: Context, layer: PlannedLayer) -> Elementwise:
    """SDP on a map in memory, with PDP behind it if the layer has a pool."""
    x, y = context.placed[layer.node.inputs[0]], context.placed[layer.node.output]
    sdp = select_sdp(context, layer.node, y, 0, y.view.extent)
    whole = ConvolutionPart(0, y.view.extent, 0, x.view.extent)
    pooling = None
    if layer.pool:
        rows = 0, context.placed[layer.pool.output].view.height
        pooling = pooling_behind(context, layer.pool, whole, rows)
    return Elementwise(x.surface(), sdp, y.surface(), pooling)


def fuses_pool(context: Context, layer: PlannedLayer) -> bool:
    """Whether to fuse the layer's pool behind SDP: if possible, and no slower than through memory."""
    if layer.pool is None or layer.form.kind == "winograd" or not can_pool(context, layer.pool):
        return False  # Winograd writes whole tiles, more than PDP takes
    if layer.node.op == "NvConv" and needs_batches(layer.node):
        return False  # PDP takes one batch
    view = context.placed[layer.node.output].view
    if layer.node.op == "NvElementwise" and (view.width, view.height) == (1, 1):
        return False  # such a map may have to go through SDP as a column
    if converts(context.graph, layer.node):
        return False  # PDP takes what SDP processes
    if pooled_rows(context, layer.pool, 0, context.placed[layer.name].view.height) != (
        0,
        context.placed[layer.node.output].view.height,
    ):
        return False
    if layer.node.op == "NvConv" and not largest_tile(context, layer):
        return False
    apart = [*select(context, replace(layer, pool=None)), *select(context, PlannedLayer(layer.pool))]
    together = select(context, layer)
    alone = [sum(timing.cycles(each, context.machine) for each in which) for which in (together, apart)]
    return alone[0] <= alone[1]


__all__ = [
    "COMPUTED",
    "Alternative",
    "Choices",
    "Constants",
    "Context",
    "FormChoice",
    "Placed",
    "PlannedLayer",
    "choose",
    "computed_lanes",
    "fuses_pool",
    "largest_tile",
    "likeness",
    "needed_lines",
    "passes",
    "select",
]
