"""From nodes of the integer graph to hardware operations, given where tensors lie.

Grouped and depthwise convolutions are dense ones with zero weights. Lanes that hold no channel have zero weights
too, and operands of zero.
"""

from __future__ import annotations

from npuc.ir import Node
from npuc.targets.nvdla.operations import Elementwise, Operation
from npuc.targets.nvdla.selection.choice import Alternative, Choice, Choices, choose
from npuc.targets.nvdla.selection.context import Constants, Context, Placed
from npuc.targets.nvdla.selection.convolution import select_convolutions
from npuc.targets.nvdla.selection.normalisation import select_normalisation
from npuc.targets.nvdla.selection.parts import computed_lanes
from npuc.targets.nvdla.selection.pooling import select_pooling
from npuc.targets.nvdla.selection.sdp import select_sdp
from npuc.targets.nvdla.weight_form import DIRECT, WeightForm

COMPUTED = ("NvConv", "NvElementwise", "NvAveragePool", "MaxPool", "NvLrn")
"""Operators of the integer graph that NVDLA computes."""


def select(context: Context, node: Node, tiles: int = 0, form: WeightForm = DIRECT) -> list[Operation]:
    """The operations that compute a node; tiles: of rows, 0 for as few as the CBUF allows."""
    match node.op:
        case "NvConv":
            return list(select_convolutions(context, node, tiles, form))
        case "NvElementwise":
            x, y = context.placed[node.inputs[0]], context.placed[node.output]
            return [Elementwise(x.surface(), select_sdp(context, node, y, 0, y.view.extent), y.surface())]
        case "NvLrn":
            return [select_normalisation(context, node)]
        case _:
            return [select_pooling(context, node)]


__all__ = [
    "COMPUTED",
    "Alternative",
    "Choice",
    "Choices",
    "Constants",
    "Context",
    "Placed",
    "choose",
    "computed_lanes",
    "select",
]
