"""CDP."""

from __future__ import annotations

from npuc.ir import Node
from npuc.targets.nvdla.integer import converter, lrn_tables
from npuc.targets.nvdla.operations import Normalisation
from npuc.targets.nvdla.selection.context import Context


def select_normalisation(context: Context, node: Node) -> Normalisation:
    """CDP on a map in memory, whose channels lie one behind the other."""
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    tables = lrn_tables(node, *(context.graph.constants[name] for name in node.inputs[1:3]))
    size, zero = node.integer("size"), node.integer("zero")
    return Normalisation(x.surface(), size, zero, tables, converter(node), y.surface())
