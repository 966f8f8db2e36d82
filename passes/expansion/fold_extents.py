"""Maps with too many rows or columns, reshaped towards squares for operators to which places do not matter."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops.windows import window_of
from npuc.passes.expansion.images import TIDY, sides
from npuc.passes.rewriting.layout import UNARY
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite

FUNCTIONS = UNARY - {"Cast", "Identity"}
PAIRS = ("Add", "Sub", "Mul", "Max", "Min")


@frozen
class FoldExtents:
    """A 1x1 Conv, a function, an instance normalisation, the sum or product of two maps: in another shape.

    Exact: the elements are the same, and no operator depends on which pixels are neighbours. The map has as many
    pixels, in the shape nearest to a square. It is left unchanged if it has no more than the permitted rows and
    columns, and if the square also exceeds them (a prime number of pixels).
    """

    most_extent: int
    __name__ = "fold_extents"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with such maps folded."""
        return rewrite(graph, partial(_fold, self.most_extent), *TIDY)


def _fold(most: int, rewriter: Rewriter, node: Node) -> bool:
    maps = _maps(rewriter, node)
    if not maps or len(rewriter.shape(maps[0])) != 4 or not only_float(rewriter, *maps, node.output):
        return False
    N, _, height, width = rewriter.shape(maps[0])
    rows, columns = sides(height * width) if height * width else (0, 0)
    if max(height, width) <= most or not 0 < columns <= most:
        return False
    folded: dict[str, str] = {}
    nodes: list[Node] = []
    for name in dict.fromkeys(maps):
        shape = (N, rewriter.shape(name)[1], rows, columns)
        nodes.append(rewriter.part(node, "Reshape", (name,), f"{name}/folded", shape=shape))
        folded[name] = nodes[-1].output
    y = rewriter.fresh(f"{node.output}/folded")
    inputs = tuple(folded.get(name, name) for name in node.inputs)
    rewriter.replace(node, *nodes, replace(node, inputs=inputs, outputs=(y,)), rewriter.back(node, y))
    return True


def _maps(rewriter: Rewriter, node: Node) -> tuple[str, ...]:
    """The inputs that are maps; none if the node combines pixels or is of another kind."""
    if node.op == "Conv":
        kernel = rewriter.shape(node.inputs[1])[2:]
        if set(kernel) != {1}:
            return ()
        window = window_of(node, kernel)
        plain = set(window.strides) == {1} and not any((*window.begins, *window.ends))
        return node.inputs[:1] if plain and not set(node.inputs[1:]) - {"", *rewriter.constants} else ()
    if node.op == "InstanceNormalization":
        return node.inputs[:1] if rewriter.constants.keys() >= {*node.inputs[1:]} else ()
    if node.op in FUNCTIONS and len(node.inputs) == 1:
        return node.inputs
    alike = len({rewriter.shape(name) for name in node.inputs}) == 1
    return node.inputs if node.op in PAIRS and alike and not rewriter.constants.keys() & {*node.inputs} else ()
