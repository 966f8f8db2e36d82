"""Normalisation and attention of tokens (N, T, C) as layers of 8 bits on maps (N, C, T, 1).

Sums over channels are convolutions. A product of two computed matrices multiplies maps (N, channels, M, L), which
have copies of both matrices' elements, and sums the products over channels or over columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import AXES, AXIS, PERM
from npuc.passes.cleanup.clutter import merge_duplicates
from npuc.passes.expansion.images import TIDY, Shape, from_image, to_image
from npuc.passes.fusion import fold_batch_norm
from npuc.passes.recognition.recognise_batch_norm import scale_and_shift
from npuc.passes.rewriting.layout import UNARY
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.targets.bm1684.machine.local_memory import ceil_div
from npuc.targets.bm1684.network.support import MOST_MAP, MOST_WINDOW
from npuc.targets.bm1684.quantisation.steps import NEGLIGIBLE

MOST_WORDS = 96 * 1024
"""Of an NPU's memory for two maps of products and a sum of 32 bits for each of 64 channels."""
HALF_RANGE = NEGLIGIBLE / 2
"""Softmax's exponents end here, not at 0: the factor cancels, and signed integers represent both halves."""
FEWEST_CHANNELS = 16
"""Of normalised tokens: variances of fewer values spread more than 8 bits represent."""
TOKENS = (0, 2, 1)
"""The axes of tokens in a map."""


def tokens_to_maps(graph: Graph) -> Graph:
    """Attention and normalisation of tokens, and what lies between, on maps whose images are the batch."""
    if len({graph.shape(name)[:1] for name in graph.inputs}) != 1 or not all(map(graph.shape, graph.inputs)):
        return graph
    found = rewrite(rewrite(graph, _normalise), _multiply, _softmax)
    if found is graph:
        return graph
    rules = (_fully_connect, _combine, _average, _before_moves, _reshape_first)
    return fold_batch_norm(merge_duplicates(rewrite(found, *rules, *TIDY)))


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

    def conv(
        self, key: str, x: str, taps: Array, bias: Array | None = None, group: int = 1, activation: str = ""
    ) -> str:
        """A convolution without padding."""
        names = [self.constant(f"{key}/weights", taps)]
        names += [] if bias is None else [self.constant(f"{key}/bias", bias)]
        return self.step(key, "Conv", x, *names, group=group, activation=activation)

    def power(self, key: str, x: str, exponent: float) -> str:
        return self.step(key, "Pow", x, self.constant(f"{key}/exponent", np.array([exponent])))

    def constant(self, key: str, value: Array) -> str:
        return self.rewriter.constant(np.ascontiguousarray(value, np.float32), f"{self.node.output}/{key}")

    def finish(self, image: str, perm: Sequence[int]) -> bool:
        after = from_image(self.rewriter, image, perm, self.node.output, self.node.sources)
        self.rewriter.replace(self.node, *self.made, *after)
        return True


def _chain(rewriter: Rewriter, tensor: str, *ops: str) -> list[Node]:
    """The producers of a tensor, the last one first, with Reshapes between; empty if their operators differ."""
    found: list[Node] = []
    for op in ops:
        node = rewriter.producer(tensor)
        while node is not None and node.op == "Reshape":
            node = rewriter.producer(node.inputs[0])
        if node is None or node.op != op:
            return []
        found.append(node)
        tensor = node.inputs[0]
    return found


def _averages(rewriter: Rewriter, tensor: str, pool: Node, x: str) -> bool:
    """Whether a tensor (N, T, 1) has the means that a pool computes of tokens (N, T, C), each alone."""
    rows, (*batch, channels) = rewriter.producer(pool.inputs[0]), rewriter.shape(x)
    alone = prod(rewriter.shape(pool.inputs[0])[2:]) == channels and rewriter.shape(tensor) == (*batch, 1)
    return alone and rows is not None and rows.op == "Reshape" and rows.inputs[0] == x


def _normalise(rewriter: Rewriter, node: Node) -> bool:
    """d / sqrt(mean(d^2) + e), d = x - mean(x) or any tokens."""
    ops = ("Sqrt", "BatchNormalization", "GlobalAveragePool", "Mul")
    chain, d = _chain(rewriter, node.inputs[1], *ops) if node.op == "Div" else [], node.inputs[0]
    line = scale_and_shift(rewriter, chain[1]) if chain and _are_tokens(rewriter, d, node.output) else None
    if (
        line is None
        or {*chain[3].inputs} != {d}
        or not _averages(rewriter, node.inputs[1], chain[2], chain[3].output)
    ):
        return False
    (factor, shift), channels = (np.unique(each) for each in line), rewriter.shape(d)[2]
    if not len(factor) == len(shift) == 1 or channels < FEWEST_CHANNELS:
        return False
    steps, mean = _Steps(rewriter, node), np.full((channels, channels, 1, 1), 1 / channels)
    less = rewriter.producer(d)
    pool = _chain(rewriter, less.inputs[1], "GlobalAveragePool") if less is not None and less.op == "Sub" else []
    if less is not None and pool and _averages(rewriter, less.inputs[1], pool[0], less.inputs[0]):
        x = steps.tokens(less.inputs[0])
        d = steps.step("centred", "Add", x, steps.conv("mean", x, -mean))
    else:
        d = steps.tokens(d)
    squares = steps.step("squares", "Mul", d, d)
    variance = steps.conv("variance", squares, mean * factor, np.repeat(shift, channels), activation="Relu")
    return steps.finish(steps.step("normal", "Mul", d, steps.power("deviation", variance, -0.5)), TOKENS)


def _is_small_product(rewriter: Rewriter, node: Node) -> bool:
    """Whether a node multiplies computed matrices (N, .., M, K) and (N, .., K, L) that fit local memory."""
    if node.op != "MatMul" or not rewriter.constants.keys().isdisjoint(node.inputs):
        return False
    (*lead, M, K), (*other, _, L) = (rewriter.shape(name) for name in node.inputs)
    words = (2 * ceil_div(prod(lead[1:]) * min(K, L), 64) + 4) * M * max(K, L)
    alike = bool(lead) and lead == other and lead[0] == _batch(rewriter) and only_float(rewriter, *node.inputs)
    return alike and 0 < words <= MOST_WORDS and max(K, L) <= MOST_WINDOW


def _multiply(rewriter: Rewriter, node: Node) -> bool:
    """MatMul of computed matrices: along the sums that are longer, columns are added, else channels."""
    if not _is_small_product(rewriter, node):
        return False
    (a, b), (n, *lead, M, K), L = node.inputs, rewriter.shape(node.inputs[0]), rewriter.shape(node.output)[-1]
    steps, count, rank = _Steps(rewriter, node), prod(lead), len(lead) + 3
    same, swapped = tuple(range(rank)), (*range(rank - 2), rank - 1, rank - 2)
    if K <= L:
        columns = steps.map(a, swapped, (n, count * K, M, 1))
        row = steps.map(b, same, (n, count * K, 1, L))
        rows = steps.step("rows", "Expand", row, shape=(n, count * K, M, L))
        products = steps.step("products", "Mul", rows, columns)
        return steps.finish(steps.conv("sum", products, np.ones((count, K, 1, 1)), group=count), same)
    taps = np.ones((count * L, 1, 1, K))
    copies = steps.conv("copies", steps.map(a, same, (n, count, M, K)), taps[..., :1], group=count)
    products = steps.step("products", "Mul", copies, steps.map(b, swapped, (n, count * L, 1, K)))
    return steps.finish(steps.conv("sum", products, taps, group=count * L), swapped)


def _softmax(rewriter: Rewriter, node: Node) -> bool:
    """Softmax along the last axis (N, .., M, L) in front of such a product, on maps (N, M, .., L)."""
    reader = rewriter.only_reader(node.output) if node.op == "Softmax" else None
    if reader is None or node.output != reader.inputs[0] or not _is_small_product(rewriter, reader):
        return False
    n, *lead, rows, columns = rewriter.shape(node.output)
    rank, heads = len(lead) + 3, prod(lead)
    if AXIS(node) != rank - 1:
        return False
    steps, perm = _Steps(rewriter, node), (0, rank - 2, *range(1, rank - 2), rank - 1)
    x, taps = steps.map(node.inputs[0], perm, (n, rows, heads, columns)), np.ones((rows, 1, 1, columns))
    largest = steps.step("largest", "MaxPool", x, kernel_shape=(1, columns))
    down = steps.conv("down", largest, -taps[..., :1], np.full(rows, HALF_RANGE), group=rows)
    moved = steps.step("moved", "Add", x, steps.step("copies", "Expand", down, shape=(n, rows, heads, columns)))
    powers = steps.step("powers", "Exp", moved)
    inverse = steps.power("inverse", steps.conv("total", powers, taps, None, rows, "Relu"), -1.0)
    return steps.finish(steps.step("shares", "Mul", powers, inverse), perm)


def _fully_connect(rewriter: Rewriter, node: Node) -> bool:
    """Gemm on rows of which a batch has several."""
    n, (rows, *_) = _batch(rewriter), rewriter.shape(node.output)
    fits = node.op == "Gemm" and node.inputs[1] in rewriter.constants and only_float(rewriter, node.inputs[0])
    if not fits or rows % n or not n < rows <= n * MOST_MAP[-1]:
        return False
    weights, steps = rewriter.constants[node.inputs[1]], _Steps(rewriter, node)
    x = steps.step("tokens", "Reshape", node.inputs[0], shape=(n, rows // n, weights.shape[1]))
    x = steps.step("turned", "Transpose", x, perm=TOKENS)
    x = steps.step("map", "Reshape", x, shape=(n, weights.shape[1], rows // n, 1))
    kernel = steps.constant("kernel", weights[:, :, None, None])
    y = steps.step("image", "Conv", x, kernel, *node.inputs[2:], **node.attrs)
    y = steps.step("columns", "Reshape", y, shape=(n, len(weights), rows // n))
    y = steps.step("back", "Transpose", y, perm=TOKENS)
    rewriter.replace(node, *steps.made, rewriter.back(node, y))
    return True


def _combine(rewriter: Rewriter, node: Node) -> bool:
    """Add or Mul of tokens (N, T, C), or of tokens and numbers: one for each element becomes one of a channel."""
    computed = [name for name in node.inputs if name not in rewriter.constants]
    if node.op not in ("Add", "Mul") or not computed or not _are_tokens(rewriter, node.output, *computed):
        return False
    (n, t, c), steps = rewriter.shape(node.output), _Steps(rewriter, node)
    numbers = [rewriter.constants[name] for name in node.inputs if name in rewriter.constants]
    if any(each.ndim > 2 and len(each) > 1 for each in numbers):
        return False
    names, whole = [steps.tokens(name) for name in computed], any(each.shape[-2:-1] == (t,) for each in numbers)
    if whole:
        names = [steps.step("elements", "Reshape", *names, shape=(n, c * t, 1, 1))]
    for each in numbers:
        turned = np.broadcast_to(each, (1, t if whole else 1, c)).transpose(TOKENS).reshape(1, -1, 1, 1)
        names.append(steps.constant("numbers", turned))
    y = steps.step("map", node.op, *names, **node.attrs)
    return steps.finish(steps.step("whole", "Reshape", y, shape=(n, c, t, 1)) if whole else y, TOKENS)


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
    """A Reshape that splits or joins channels (N, T, ..), which were behind in (N, .., T): the move comes last."""
    move, after = rewriter.producer(node.inputs[0]), rewriter.shape(node.output)
    if node.op != "Reshape" or move is None or move.op != "Transpose" or len(after) < 3:
        return False
    before = rewriter.shape(move.output)
    if before[:2] != after[:2] or 1 in after[2:] or PERM(move) != _tokens_first(len(before)):
        return False
    shape = (after[0], *after[2:], after[1])
    inner = rewriter.part(node, "Reshape", move.inputs, f"{node.output}/channels", shape=shape)
    perm = {"perm": _tokens_first(len(after))}
    rewriter.replace(node, inner, replace(node, op="Transpose", inputs=inner.outputs, attrs=perm))
    return True


def _tokens_first(rank: int) -> Shape:
    return (0, rank - 1, *range(1, rank - 1))
