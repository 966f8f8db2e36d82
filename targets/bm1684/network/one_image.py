"""Rewrites of 8-bit networks that may move the first axis; four images share a word, so there must be only one."""

from __future__ import annotations

from npuc.ir import Graph, Node
from npuc.ops.attributes import PERM
from npuc.passes.expansion.as_images import AsImages
from npuc.passes.expansion.images import TIDY
from npuc.passes.expansion.products_to_convs import products_to_convs
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.targets.bm1684.network.limits import IMAGES


def rows_to_pixels(graph: Graph) -> Graph:
    """Products with constant matrices become convolutions whose pixels are the rows."""
    return products_to_convs(graph) if _one_image(graph) else graph


def tensors_to_images(graph: Graph) -> Graph:
    """Elementwise operators on any tensors become ones on images, and no Transpose moves the first axis."""
    return rewrite(AsImages(IMAGES)(graph), _behind_one, *TIDY) if _one_image(graph) else graph


def _behind_one(rewriter: Rewriter, node: Node) -> bool:
    """A Transpose whose first axis moves, or is not the image, gets an axis of 1 before it."""
    if node.op != "Transpose":
        return False
    shape, perm = rewriter.shape(node.inputs[0]), PERM(node)
    if shape[:1] == (1,) and perm[0] == 0:
        return False
    image = rewriter.part(node, "Reshape", node.inputs, f"{node.inputs[0]}/image", shape=(1, *shape))
    moved = (0, *(axis + 1 for axis in perm))
    result = rewriter.part(node, "Transpose", image.outputs, f"{node.output}/image", perm=moved)
    rewriter.replace(node, image, result, rewriter.back(node, result.output))
    return True


def _one_image(graph: Graph) -> bool:
    """Whether the first axis of every input is 1."""
    return all(graph.shape(name)[:1] == (1,) for name in graph.inputs)
