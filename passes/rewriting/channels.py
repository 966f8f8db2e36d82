"""Nodes that select channels of a map."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Array, Attr, Node
from npuc.passes.rewriting.rules import Rewriter


def in_lanes(channels: int, lanes: int) -> int:
    """The number of channels, rounded up to a multiple of the lanes."""
    return -(-channels // lanes) * lanes


def sliced(image: str, channels: Array, output: str, name: str, sources: tuple[str, ...]) -> Node:
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


def selected(
    rewriter: Rewriter, image: str, channels: Array, output: str, name: str, sources: tuple[str, ...]
) -> Node:
    """The 1x1 Conv that selects channels in any order."""
    taps = np.eye(rewriter.shape(image)[1], dtype=np.float32)[channels][..., None, None]
    weight = rewriter.constant(taps, f"{output}/weight")
    return Node("Conv", (image, weight), (output,), {"kernel_shape": (1, 1), "selects": 1}, name, sources)
