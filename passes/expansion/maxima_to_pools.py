"""Maximum and minimum of two tensors, by pooling and by ReLU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import ACTIVATION
from npuc.passes.expansion.images import TIDY, ImageLimits
from npuc.passes.rewriting.patterns import constant_operand, only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite


@frozen
class MaximaToPools:
    """Max and Min of two tensors become operators with one input.

    Two computed tensors become the two rows of an image, (1, C, 2, W), and MaxPool takes the larger row; a
    broadcast operand is expanded first. With a constant: max(x, c) = c + relu(x - c). The minimum is -max(-x, -y).

    limits: of the images, which may be a batch.
    """

    limits: ImageLimits
    __name__ = "maxima_to_pools"

    def __call__(self, graph: Graph) -> Graph:
        """The graph without such operators."""
        return rewrite(graph, _least, partial(_pooled, self.limits), _with_constant, *TIDY)


def _applies(rewriter: Rewriter, node: Node, op: str) -> bool:
    plain = node.op == op and not ACTIVATION(node)
    return plain and only_float(rewriter, *node.inputs) and rewriter.types[node.output].size > 0


def _least(rewriter: Rewriter, node: Node) -> bool:
    if not _applies(rewriter, node, "Min"):
        return False
    names: list[str] = []
    nodes: list[Node] = []
    for name in node.inputs:
        if name in rewriter.constants:
            names.append(rewriter.constant(-rewriter.constants[name], f"{node.output}/negative"))
        else:
            nodes.append(rewriter.part(node, "Neg", (name,), f"{name}/negative"))
            names.append(nodes[-1].output)
    largest = rewriter.fresh(f"{node.output}/negative")
    inner = replace(node, op="Max", inputs=tuple(names), outputs=(largest,))
    rewriter.replace(node, *nodes, inner, Node("Neg", (largest,), node.outputs, {}, node.name, node.sources))
    return True


def _pooled(limits: ImageLimits, rewriter: Rewriter, node: Node) -> bool:
    if not _applies(rewriter, node, "Max") or any(name in rewriter.constants for name in node.inputs):
        return False
    shape = rewriter.shape(node.output)
    images = shape[0] if limits.batches and shape else 1
    _, channels, height, width = limits.image_shape(rewriter.types[node.output].size // images)
    rows: list[str] = []
    nodes: list[Node] = []

    def step(op: str, inputs: tuple[str, ...], stem: str, **attrs: Attr) -> str:
        nodes.append(rewriter.part(node, op, inputs, f"{node.output}/{stem}", **attrs))
        return nodes[-1].output

    for name in node.inputs:
        full = name if rewriter.shape(name) == shape else step("Expand", (name,), "full", shape=shape)
        rows.append(step("Reshape", (full,), "row", shape=(images, channels * height, 1, width)))
    both = step("Concat", tuple(rows), "both", axis=2)
    larger = step("MaxPool", (both,), "larger", kernel_shape=(2, 1))
    back = Node("Reshape", (larger,), node.outputs, {"shape": shape}, node.name, node.sources)
    rewriter.replace(node, *nodes, back)
    return True


def _with_constant(rewriter: Rewriter, node: Node) -> bool:
    found = constant_operand(rewriter, node) if _applies(rewriter, node, "Max") else None
    if found is None or not np.isfinite(rewriter.constants[found[1]]).all():
        return False
    x, c = found
    above = rewriter.part(node, "Sub", (x, c), f"{node.output}/above")
    rectified = rewriter.part(node, "Relu", above.outputs, f"{node.output}/rectified")
    result = Node("Add", (rectified.output, c), node.outputs, {}, node.name, node.sources)
    rewriter.replace(node, above, rectified, result)
    return True
