"""Convolutions with dilations beyond a machine's limit, as convolutions of the phases of the map."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from npuc.frozen import frozen
from npuc.ir import Attr, Graph, Node
from npuc.ops.windows import Window, window_of
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite


@frozen
class WideDilations:
    """A Conv of stride 1 with a dilation d = f * e beyond the limit, on (N, C, H, W), becomes one with dilation e.

    Its taps only meet pixels whose rows are equal modulo f. These are an image of their own: the padded map
    becomes N * f * f images (H / f, W / f), and their results are interleaved again. f is the smallest factor that
    leaves a permitted dilation.
    """

    most: int
    __name__ = "wide_dilations"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with permitted dilations."""
        return rewrite(graph, partial(_phases, self.most))


def _phases(most: int, rewriter: Rewriter, node: Node) -> bool:
    if node.op != "Conv" or len(rewriter.shape(node.inputs[0])) != 4 or not only_float(rewriter, node.inputs[0]):
        return False
    window = window_of(node, rewriter.shape(node.inputs[1])[2:])
    if max(window.dilations) <= most or max(window.strides) > 1:
        return False
    fy, fx = (_factor(each, most) for each in window.dilations)
    (N, C, *_), (_, Co, Ho, Wo) = rewriter.shape(node.inputs[0]), rewriter.shape(node.output)
    padded, height, width = _padded(rewriter, node, window, (fy, fx))
    dy, dx = window.dilations[0] // fy, window.dilations[1] // fx
    rows, columns = height // fy, width // fx
    high, wide = rows - dy * (window.kernel[0] - 1), columns - dx * (window.kernel[1] - 1)
    attrs: dict[str, Attr] = {**node.attrs, "dilations": (dy, dx), "pads": (0, 0, 0, 0)}
    apart = _moved(
        rewriter,
        node,
        padded.output,
        (N, C, rows, fy, columns, fx),
        (0, 3, 5, 1, 2, 4),
        (N * fy * fx, C, rows, columns),
    )
    y = rewriter.fresh(f"{node.output}/phases")
    conv = replace(node, inputs=(apart[-1].output, *node.inputs[1:]), outputs=(y,), attrs=attrs)
    whole = (N, Co, high * fy, wide * fx)
    joined = _moved(rewriter, node, y, (N, fy, fx, Co, high, wide), (0, 3, 4, 1, 5, 2), whole)
    ends: dict[str, Attr] = {"axes": (2, 3), "starts": (0, 0), "ends": (Ho, Wo), "steps": (1, 1)}
    cut = Node("Slice", (joined[-1].output,), node.outputs, ends, f"{node.name}/slice", node.sources)
    rewriter.replace(node, padded, *apart, conv, *joined, cut)
    return True


def _factor(dilation: int, most: int) -> int:
    return next(each for each in range(1, dilation + 1) if dilation % each == 0 and dilation // each <= most)


def _padded(rewriter: Rewriter, node: Node, window: Window, factors: tuple[int, int]) -> tuple[Node, int, int]:
    """The Pad to whole blocks of phases, and the rows and columns of its result."""
    x = node.inputs[0]
    extents = [
        each + begin + end
        for each, begin, end in zip(rewriter.shape(x)[2:], window.begins, window.ends, strict=True)
    ]
    more = [-each % factor for each, factor in zip(extents, factors, strict=True)]
    behind = [end + each for end, each in zip(window.ends, more, strict=True)]
    pad = rewriter.part(node, "Pad", (x,), f"{x}/padded", pads=(0, 0, *window.begins, 0, 0, *behind))
    return pad, extents[0] + more[0], extents[1] + more[1]


def _moved(
    rewriter: Rewriter, node: Node, x: str, inner: tuple[int, ...], perm: tuple[int, ...], shape: tuple[int, ...]
) -> list[Node]:
    """Reshape -> Transpose -> Reshape."""
    split = rewriter.part(node, "Reshape", (x,), f"{x}/split", shape=inner)
    turned = rewriter.part(node, "Transpose", split.outputs, f"{x}/turned", perm=perm)
    return [split, turned, rewriter.part(node, "Reshape", turned.outputs, f"{x}/moved", shape=shape)]
