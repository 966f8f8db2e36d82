"""The cost of a single node of the float graph, for the report of what the passes did."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Graph, Node
from npuc.ops.movement import MOVEMENT
from npuc.targets.easynpu.layers.kernels import FIELD_CHANNELS, split_kernel
from npuc.targets.easynpu.layers.support import layer_word, refusal
from npuc.targets.easynpu.layers.tiling import best_tile
from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import Followers, is_dense


def cycles(graph: Graph, node: Node, machine: Machine) -> int | None:
    """Cycles of a node's words with its whole map in the DTCM; None for a node that the array cannot run as it is.

    Data movement counts as address arithmetic: 0.
    """
    if node.op in MOVEMENT:
        return 0
    if node.op == "Gemm" or refusal(graph, node, machine) is not None:
        return None
    word = layer_word(graph, node)
    dense = is_dense(word)
    parts = [part.word for part in split_kernel(word, machine, dense=dense)]
    most = min(FIELD_CHANNELS // LANES, machine.weight_pad_entries, machine.psum_entries) if dense else word.Zs
    total = 0
    for first in range(0, word.Zs, most):
        Zs = min(most, word.Zs - first)
        Co = min(word.Co - first * LANES, Zs * LANES)
        chunk = [replace(part, Co=Co, Zs=Zs, **({} if dense else {"Ci": Co})) for part in parts]
        total += best_tile(chunk, machine, Followers())[1].cycles
    return total
