"""CDP: local response normalisation."""

from __future__ import annotations

from npuc.ir import Node
from npuc.ops.attributes import SIZE
from npuc.targets.nvdla.arithmetic.attributes import ZERO
from npuc.targets.nvdla.arithmetic.integer import converter, tables
from npuc.targets.nvdla.operations.operation import Normalisation, OperationTables
from npuc.targets.nvdla.selection.context import Context
from npuc.targets.nvdla.selection.sdp import ramp


def select_normalisation(context: Context, node: Node) -> Normalisation:
    """CDP on a map in memory whose channels are contiguous."""
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    placed = tables(node)
    assert placed is not None
    le, lo = (
        ramp(table, context.graph.constants[name]) for table, name in zip(placed, node.inputs[1:3], strict=True)
    )
    size, zero = SIZE(node), ZERO(node)
    return Normalisation(x.surface(), size, zero, OperationTables(lo, le), converter(node), y.surface())
