"""Maps interleaved into a larger one: the only form in which passes for the array enlarge an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npuc.ir import Attr, Node
from npuc.passes.rewriting import Draft


def interleaved(draft: Draft, node: Node, phases: Sequence[str], block: int) -> list[Node]:
    """Concat -> DepthToSpace (DCR) [-> Slice] of block * block maps (N, C, H, W), to stand in place of a node.

    Element (i, j) of phases[row * block + column] becomes element (i * block + row, j * block + column). A single
    tensor has all phases already. The Slice is there where the output of the node ends within a block.
    """
    height, width = draft.shape(node.output)[2:]
    joined, whole = draft.fresh(f"{node.output}/phases"), draft.fresh(f"{node.output}/whole")
    concat = [Node("Concat", tuple(phases), (joined,), {"axis": 1}, joined, node.sources)]
    if len(phases) == 1:
        concat, joined = [], phases[0]
    attrs: dict[str, Attr] = {"blocksize": block, "mode": "DCR"}
    spread = Node("DepthToSpace", (joined,), (whole,), attrs, node.name, node.sources)
    if height % block == 0 and width % block == 0:
        return [*concat, replace(spread, outputs=node.outputs)]
    cut: dict[str, Attr] = {"axes": (2, 3), "starts": (0, 0), "ends": (height, width), "steps": (1, 1)}
    return [*concat, spread, Node("Slice", (whole,), node.outputs, cut, f"{node.name}/slice", node.sources)]
