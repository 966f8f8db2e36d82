"""Normalisation and attention of tokens (N, T, C) as layers of 8 bits on maps (N, C, T, 1).

Sums over channels are convolutions. A product of two computed matrices multiplies maps (N, channels, M, L), which
have copies of both matrices' elements, and sums the products over channels or over columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import AXES, AXIS, PERM
from npuc.passes.cleanup.clutter import merge_duplicates
from npuc.passes.expansion.images import TIDY, Shape, from_image, to_image
from npuc.passes.fusion import fold_batch_norm
from npuc.passes.recognition.recognise_batch_norm import scale_and_shift
from npuc.passes.rewriting.layout import UNARY
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.targets.bm1684.network.support import MOST_WINDOW

MOST_PIXELS = 1 << 14
"""Of a map of products: more would not fit local memory."""
HALF_RANGE = 3.0
"""Softmax's exponents end here, not at 0: factors cancel, and signed integers represent both halves."""
TOKENS = (0, 2, 1)
"""The axes of tokens in a map."""


def tokens_to_maps(graph: Graph) -> Graph:
    """Attention and normalisation of tokens, and what lies between, on maps whose images are the batch."""
    batches = {graph.shape(name)[:1] for name in graph.inputs}
    computed = {node.op for node in graph.nodes if graph.constants.keys().isdisjoint(node.inputs)}
    if len(batches) != 1 or computed.isdisjoint(("MatMul", "Div")):
        return graph
    rules = (_multiply, _softmax, _fully_connect, _combine, _average, _before_moves, _reshape_first)
    return fold_batch_norm(merge_duplicates(rewrite(rewrite(graph, _normalise), *rules, *TIDY)))


def _batch(rewriter: Rewriter) -> int:
    return rewriter.shape(rewriter.graph.inputs[0])[0]


def _are_tokens(rewriter: Rewriter, *names: str) -> bool:
    """Whether they are float tensors (N, T, C) of one shape."""
    shape = rewriter.shape(names[0])
    alike = all(rewriter.shape(name) == shape for name in names) and only_float(rewriter, *names)
    return len(shape) == 3 and shape[0] == _batch(rewriter) and alike and prod(shape) > 0


class _Steps:
    """Nodes in place of one, named after its result."""

    def __init__(self, rewriter: Rewriter, node: Node) -> None:
        self.rewriter, self.node, self.made = rewriter, node, list[Node]()

    def map(self, tensor: str, perm: Sequence[int], shape: Shape) -> str:
        name, nodes = to_image(self.rewriter, tensor, perm, shape, self.node.sources)
        self.made += nodes
        return name

    def tokens(self, tensor: str) -> str:
        """Tokens (N, T, C) as a map."""
        n, t, c = self.rewriter.shape(tensor)
        return self.map(tensor, TOKENS, (n, c, t, 1))

    def step(self, key: str, op: str, *inputs: str, **attrs: Attr) -> str:
        self.made.append(self.rewriter.part(self.node, op, inputs, f"{self.node.output}/{key}", **attrs))
        return self.made[-1].output

    def conv(self, key: str, x: str, taps: np.ndarray, bias: np.ndarray | None = None, group: int = 1) -> str:
        """A convolution without padding."""
        given = [(taps, "weights")] + ([] if bias is None else [(bias, "bias")])
        names = [
            self.rewriter.constant(each.astype(np.float32), f"{self.node.output}/{key}/{stem}")
            for each, stem in given
        ]
        return self.step(key, "Conv", x, *names, group=group)

    def finish(self, image: str, perm: Sequence[int]) -> bool:
        after = from_image(self.rewriter, image, perm, self.node.output, self.node.sources)
        self.rewriter.replace(self.node, *self.made, *after)
        return True


def _behind(rewriter: Rewriter, tensor: str, *ops: str) -> Node | None:
    """The producer of a tensor, or that before Reshapes, if it is one of these operators."""
    node = rewriter.producer(tensor)
    while node is not None and node.op == "Reshape" and "Reshape" not in ops:
        node = rewriter.producer(node.inputs[0])
    return node if node is not None and node.op in ops else None


def _averaged(rewriter: Rewriter, tensor: str) -> str | None:
    """The tokens of which a tensor has the mean of each."""
    pool = _behind(rewriter, tensor, "GlobalAveragePool")
    rows = rewriter.producer(pool.inputs[0]) if pool is not None else None
    if pool is None or rows is None or rows.op != "Reshape" or len(rewriter.shape(rows.inputs[0])) != 3:
        return None
    whole = prod(rewriter.shape(pool.inputs[0])[2:]) == rewriter.shape(rows.inputs[0])[-1]
    return rows.inputs[0] if whole else None


def _normalise(rewriter: Rewriter, node: Node) -> bool:
    """d / sqrt(mean(d^2) + e), d = x - mean(x) or any tokens."""
    root = _behind(rewriter, node.inputs[1], "Sqrt") if node.op == "Div" else None
    norm = _behind(rewriter, root.inputs[0], "BatchNormalization") if root is not None else None
    line = scale_and_shift(rewriter, norm) if norm is not None else None
    squares = _averaged(rewriter, norm.inputs[0]) if norm is not None else None
    square = rewriter.producer(squares) if squares is not None else None
    d = node.inputs[0]
    if square is None or line is None or square.op != "Mul" or set(square.inputs) != {d}:
        return False
    factor, shift = (each.reshape(-1) for each in line)
    if not _are_tokens(rewriter, d, node.output) or (factor != factor[0]).any() or (shift != shift[0]).any():
        return False
    steps, channels = _Steps(rewriter, node), rewriter.shape(d)[2]
    mean, zeros = np.full((channels, channels, 1, 1), 1 / channels), np.zeros(channels)
    less = rewriter.producer(d)
    if less is not None and less.op == "Sub" and _averaged(rewriter, less.inputs[1]) == less.inputs[0]:
        x = steps.tokens(less.inputs[0])
        d = steps.step("centred", "Add", x, steps.conv("mean", x, -mean))
    else:
        d = steps.tokens(d)
    variance = steps.conv("variance", steps.step("squares", "Mul", d, d), mean * factor[0], zeros + shift[0])
    deviation = steps.step("deviation", "Sqrt", variance)
    return steps.finish(steps.step("normal", "Mul", d, steps.step("inverse", "Reciprocal", deviation)), TOKENS)


def _multiply(rewriter: Rewriter, node: Node) -> bool:
    """MatMul of computed matrices (N, .., M, K) and (N, .., K, L)."""
    if node.op != "MatMul" or not rewriter.constants.keys().isdisjoint(node.inputs):
        return False
    (*lead, M, K), (*other, _, L) = (rewriter.shape(name) for name in node.inputs)
    rank, count = len(lead) + 2, prod(lead[1:])
    fits = lead == other and rank > 2 and lead[0] == _batch(rewriter) and only_float(rewriter, *node.inputs)
    small = min(K, L) * count <= 1024 and M * max(K, L) <= MOST_PIXELS and max(K, L) <= MOST_WINDOW
    if not (fits and small and rewriter.types[node.output].size):
        return False
    steps, n = _Steps(rewriter, node), lead[0]
    same, swapped = tuple(range(rank)), (*range(rank - 2), rank - 1, rank - 2)
    a, b = node.inputs
    if K <= L:
        columns = steps.map(a, swapped, (n, count * K, M, 1))
        row = steps.map(b, same, (n, count * K, 1, L))
        rows = steps.step("rows", "Expand", row, shape=(n, count * K, M, L))
        products = steps.step("products", "Mul", rows, columns)
        return steps.finish(steps.conv("sum", products, np.ones((count, K, 1, 1)), group=count), same)
    copies = steps.conv("copies", steps.map(a, same, (n, count, M, K)), np.ones((count * L, 1, 1, 1)), group=count)
    products = steps.step("products", "Mul", copies, steps.map(b, swapped, (n, count * L, 1, K)))
    taps = np.ones((count * L, 1, 1, K))
    return steps.finish(steps.conv("sum", products, taps, group=count * L), swapped)


def _softmax(rewriter: Rewriter, node: Node) -> bool:
    """Softmax along the last axis (N, h, M, L), unless it ends the network, on maps (N, M, h, L)."""
    shape = rewriter.shape(node.inputs[0]) if node.op == "Softmax" else ()
    ends = node.output in rewriter.outputs or len(shape) != 4 or AXIS(node) != 3 or shape[3] > MOST_WINDOW
    if ends or shape[0] != _batch(rewriter) or not only_float(rewriter, node.inputs[0]):
        return False
    n, heads, rows, columns = shape
    steps, perm = _Steps(rewriter, node), (0, 2, 1, 3)
    x = steps.map(node.inputs[0], perm, (n, rows, heads, columns))
    one = np.ones((rows, 1, 1, 1))
    largest = steps.step("largest", "MaxPool", x, kernel_shape=(1, columns))
    down = steps.conv("down", largest, -one, np.full(rows, HALF_RANGE), rows)
    moved = steps.step("moved", "Add", x, steps.step("copies", "Expand", down, shape=(n, rows, heads, columns)))
    powers = steps.step("powers", "Exp", moved)
    total = steps.conv("total", powers, np.ones((rows, 1, 1, columns)), group=rows)
    return steps.finish(
        steps.step("shares", "Mul", powers, steps.step("inverse", "Reciprocal", total)), perm
    )


def _fully_connect(rewriter: Rewriter, node: Node) -> bool:
    """Gemm on rows of which a batch has several."""
    n, (rows, *_) = _batch(rewriter), rewriter.shape(node.output)
    if node.op != "Gemm" or node.inputs[1] not in rewriter.constants or rows % n or rows == n:
        return False
    weights = rewriter.constants[node.inputs[1]]
    outputs, inputs = weights.shape
    steps = _Steps(rewriter, node)
    tokens = steps.step("tokens", "Reshape", node.inputs[0], shape=(n, rows // n, inputs))
    x = steps.step("turned", "Transpose", tokens, perm=TOKENS)
    x = steps.step("map", "Reshape", x, shape=(n, inputs, rows // n, 1))
    kernel = rewriter.constant(weights[:, :, None, None], f"{node.output}/kernel")
    y = steps.step("image", "Conv", x, kernel, *node.inputs[2:], **node.attrs)
    y = steps.step("columns", "Reshape", y, shape=(n, outputs, rows // n))
    y = steps.step("back", "Transpose", y, perm=TOKENS)
    rewriter.replace(node, *steps.made, rewriter.back(node, y))
    return True


def _combine(rewriter: Rewriter, node: Node) -> bool:
    """Add or Mul of tokens (N, T, C), or of tokens and numbers for each."""
    if node.op not in ("Add", "Mul") or len(rewriter.shape(node.output)) != 3:
        return False
    *_, t, c = rewriter.shape(node.output)
    computed = [name for name in node.inputs if name not in rewriter.constants]
    numbers = [rewriter.constants[name] for name in node.inputs if name in rewriter.constants]
    if not _are_tokens(rewriter, node.output, *computed) or any(each.size not in (c, t * c) for each in numbers):
        return False
    steps = _Steps(rewriter, node)
    names = [steps.tokens(name) for name in computed]
    turned = [np.ascontiguousarray(each.reshape(1, -1, c).transpose(TOKENS)[..., None]) for each in numbers]
    names += [rewriter.constant(each, f"{node.output}/numbers") for each in turned]
    return steps.finish(steps.step("map", node.op, *names, **node.attrs), TOKENS)


def _average(rewriter: Rewriter, node: Node) -> bool:
    """The mean over all tokens."""
    x = node.inputs[0] if node.op == "ReduceMean" and AXES(node) == (1,) else ""
    if not x or not _are_tokens(rewriter, x) or rewriter.shape(x)[1] > MOST_WINDOW:
        return False
    steps = _Steps(rewriter, node)
    mean = steps.step("pooled", "GlobalAveragePool", steps.tokens(x))
    rewriter.replace(node, *steps.made, rewriter.back(node, mean))
    return True


def _before_moves(rewriter: Rewriter, node: Node) -> bool:
    """A function of moved elements moves its results instead."""
    move = rewriter.private(node.inputs[0]) if node.op in UNARY else None
    if move is None or move.op not in ("Reshape", "Transpose") or len(rewriter.shape(node.output)) == 4:
        return False
    inner = rewriter.fresh(f"{node.output}/before")
    function = replace(node, inputs=move.inputs[:1], outputs=(inner,))
    rewriter.replace(node, function, replace(move, inputs=(inner,), outputs=node.outputs))
    return True


def _reshape_first(rewriter: Rewriter, node: Node) -> bool:
    """A Reshape that splits or joins axes which a Transpose keeps together: the Transpose comes last."""
    move = rewriter.producer(node.inputs[0]) if node.op == "Reshape" else None
    if move is None or move.op != "Transpose":
        return False
    perm, before = PERM(move), rewriter.shape(node.inputs[0])
    groups = _groups(before, rewriter.shape(node.output))
    if groups is None or any(perm[a + 1 : b] != tuple(range(perm[a] + 1, perm[a] + b - a)) for a, b, _ in groups):
        return False
    order = sorted(range(len(groups)), key=lambda each: perm[groups[each][0]])
    ends = np.cumsum([0, *(len(groups[each][2]) for each in order)]).tolist()
    places = {each: tuple(range(*span)) for each, span in zip(order, pairwise(ends), strict=True)}
    shape = tuple(extent for each in order for extent in groups[each][2])
    after = tuple(axis for each in range(len(groups)) for axis in places[each])
    inner = rewriter.part(node, "Reshape", move.inputs[:1], f"{node.output}/unturned", shape=shape)
    rewriter.replace(node, inner, replace(node, op="Transpose", inputs=inner.outputs, attrs={"perm": after}))
    return True


def _groups(before: Shape, after: Shape) -> list[tuple[int, int, Shape]] | None:
    """The axes [a, b) of a shape and the extents that they become; None if one of them is 1."""
    if 1 in before[1:] or 1 in after[1:]:
        return None
    found, a, b, c, d = list[tuple[int, int, Shape]](), 0, 1, 0, 1
    while a < len(before):
        have, want = prod(before[a:b]), prod(after[c:d])
        if have == want:
            found.append((a, b, after[c:d]))
            a, b, c, d = b, b + 1, d, d + 1
        else:
            b, d = (b + 1, d) if have < want else (b, d + 1)
    return found
