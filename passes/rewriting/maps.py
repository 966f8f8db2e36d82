"""Nodes that select channels of a map, and that interleave maps to a larger one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from npuc.ir import Array, Attr, Node
from npuc.passes.rewriting.rules import Rewriter

R = TypeVar("R")
C = TypeVar("C")


def interleave(rewriter: Rewriter, node: Node, phases: Sequence[str], block: int) -> list[Node]:
    """Concat -> DepthToSpace (DCR) [-> Slice] of block * block maps (N, C, H, W), as a replacement for a node.

    Element (i, j) of phases[row * block + column] becomes element (i * block + row, j * block + column). A single
    tensor already contains all phases. A Slice is added if the output of the node ends within a block.
    """
    height, width = rewriter.shape(node.output)[2:]
    joined, whole = rewriter.fresh(f"{node.output}/phases"), rewriter.fresh(f"{node.output}/whole")
    concat = [Node("Concat", tuple(phases), (joined,), {"axis": 1}, joined, node.sources)]
    if len(phases) == 1:
        concat, joined = [], phases[0]
    attrs: dict[str, Attr] = {"blocksize": block, "mode": "DCR"}
    spread = Node("DepthToSpace", (joined,), (whole,), attrs, node.name, node.sources)
    if height % block == 0 and width % block == 0:
        return [*concat, replace(spread, outputs=node.outputs)]
    cut: dict[str, Attr] = {"axes": (2, 3), "starts": (0, 0), "ends": (height, width), "steps": (1, 1)}
    return [*concat, spread, Node("Slice", (whole,), node.outputs, cut, f"{node.name}/slice", node.sources)]


def phase_nodes(
    rewriter: Rewriter, node: Node, rows: Sequence[R], columns: Sequence[C], made: Callable[[R, C, str], Node]
) -> list[Node]:
    """A node for each phase of rows and columns, and nodes that interleave the results, to replace a node.

    made: makes the node for a row and a column with this output; for a single phase that is the original output.
    """
    if len(rows) == len(columns) == 1:
        return [made(rows[0], columns[0], node.output)]
    names = [
        [rewriter.fresh(f"{node.output}/phase_{row}_{column}") for column in range(len(columns))]
        for row in range(len(rows))
    ]
    convs = [
        made(row, column, name)
        for row, line in zip(rows, names, strict=True)
        for column, name in zip(columns, line, strict=True)
    ]
    return [*convs, *weave(rewriter, node, names)]


def weave(rewriter: Rewriter, node: Node, phases: Sequence[Sequence[str]]) -> list[Node]:
    """Interleave nodes of phases[row][column] as a replacement for a node: first along H, then along W.

    Element (i, j) of a phase becomes element (i * rows + row, j * columns + column). Results of identical phases
    are shared.
    """
    made: dict[tuple[str, ...], Node] = {}
    columns = [tuple(each) for each in zip(*phases, strict=True)]
    for names in columns if len(phases) > 1 else ():
        result = node.output if len(columns) == 1 else rewriter.fresh(f"{node.output}/rows_{len(made)}")
        made.setdefault(names, Node("Interleave", names, (result,), {"axis": 2}, result, node.sources))
    if len(columns) == 1:
        return [replace(each, name=node.name) for each in made.values()]
    names = tuple(made[each].output if made else each[0] for each in columns)
    return [*made.values(), Node("Interleave", names, node.outputs, {"axis": 3}, node.name, node.sources)]


def in_lanes(channels: int, lanes: int) -> int:
    """The number of channels, rounded up to a multiple of the lanes."""
    return -(-channels // lanes) * lanes


def slice_channels(image: str, channels: Array, output: str, name: str, sources: tuple[str, ...]) -> Node:
    """The Slice that selects consecutive channels."""
    cut: dict[str, Attr] = {"axes": (1,), "starts": (int(channels[0]),), "ends": (int(channels[-1]) + 1,)}
    return Node("Slice", (image,), (output,), {**cut, "steps": (1,)}, name, sources)


def kernels_of(rewriter: Rewriter, conv: Node, channels: Array, output: str) -> Node:
    """The Conv with the kernels for some channels of another Conv."""
    parts = [rewriter.constants[name][channels] for name in conv.inputs[1:] if name]
    names = [
        rewriter.constant(each, f"{output}/{key}") for each, key in zip(parts, ("weight", "bias"), strict=False)
    ]
    return replace(conv, inputs=(conv.inputs[0], *names), outputs=(output,), name=output)


def select_channels(
    rewriter: Rewriter, image: str, channels: Array, output: str, name: str, sources: tuple[str, ...]
) -> Node:
    """The 1x1 Conv that selects channels in any order."""
    taps = np.eye(rewriter.shape(image)[1], dtype=np.float32)[channels][..., None, None]
    weight = rewriter.constant(taps, f"{output}/weight")
    return Node("Conv", (image, weight), (output,), {"kernel_shape": (1, 1), "selects": 1}, name, sources)
