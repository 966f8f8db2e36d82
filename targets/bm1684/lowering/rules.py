"""The table of lowering rules, and the order in which a graph's nodes are lowered."""

from __future__ import annotations

from collections.abc import Mapping

from npuc.ir import Graph, Node
from npuc.ops.attributes import AXIS, FUSED_INPUT
from npuc.targets.bm1684.lowering import (
    convolutions,
    elementwise,
    functions,
    pools,
    products,
    rearrangements,
    resizing,
)
from npuc.targets.bm1684.lowering.context import Lowering, Rule
from npuc.targets.bm1684.lowering.functions import RECIPES
from npuc.targets.bm1684.lowering.tensors import Lowered
from npuc.targets.bm1684.machine.parameters import Machine


def add(lo: Lowering, node: Node) -> None:
    """Add: a convolution that computes one operand accumulates onto the other one if nothing else reads that.

    The convolution must not read the buffer that it accumulates onto.
    """
    producer, index = fused_producer(lo.graph, node), FUSED_INPUT(node)
    if producer is None or index is None:
        elementwise.binary(lo, node)
        return
    other = node.inputs[1 - index]
    onto = lo.load(other)
    if lo.may_overwrite(onto) and lo.load(producer.inputs[0]).at.buffer != onto.at.buffer:
        convolutions.conv_onto(lo, producer, onto, node)
        return
    convolutions.conv(lo, producer)
    elementwise.binary(lo, node)


def fused_producer(graph: Graph, node: Node) -> Node | None:
    """The convolution marked on an Add for fusion, if it can accumulate onto its output; else None."""
    index = FUSED_INPUT(node)
    if node.op != "Add" or index is None:
        return None
    producer = graph.producers[node.inputs[index]]
    same = graph.shape(node.inputs[0]) == graph.shape(node.inputs[1])
    fits = same and convolutions.takes_sum(producer, graph.shape(producer.inputs[0])[1])
    return producer if fits and len(graph.shape(node.output)) == 4 else None


REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")

RULES: Mapping[str, Rule] = {
    "Conv": convolutions.conv,
    "ConvTranspose": convolutions.conv_transpose,
    "Gemm": products.gemm,
    "MatMul": products.matmul,
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), pools.pool),
    "BatchNormalization": pools.batch_norm,
    "LRN": pools.lrn,
    "InstanceNormalization": pools.instance_norm,
    "Softmax": pools.softmax,
    **dict.fromkeys(REDUCTIONS, pools.reduction),
    "Pow": functions.power,
    "Gather": rearrangements.gather,
    "PRelu": pools.prelu,
    **dict.fromkeys(elementwise.BINARY, elementwise.binary),
    "Add": add,
    **{op: elementwise.unary(recipe) for op, recipe in RECIPES.items()},
    "QuantizeLinear": functions.quantize_linear,
    "DequantizeLinear": functions.dequantize_linear,
    "Concat": rearrangements.concat,
    "Interleave": rearrangements.interleave,
    "Split": rearrangements.split,
    "Slice": rearrangements.slice_,
    "Pad": rearrangements.pad,
    "Resize": resizing.resize,
    "Reshape": rearrangements.reshape,
    **dict.fromkeys(("Identity", "Rescale"), rearrangements.identity),
    "Expand": rearrangements.expand,
    "Transpose": rearrangements.transpose,
    "DepthToSpace": rearrangements.depth_to_space,
    "SpaceToDepth": rearrangements.space_to_depth,
}


def _join(lowering: Lowering, graph: Graph, node: Node) -> None:
    """Marks the operands of a Concat that nothing else reads, to be stored as soon as they are computed."""
    axis, first = AXIS(node), 0
    for name in node.inputs:
        if graph.only_reader(name) is not None and node.inputs.count(name) == 1:
            lowering.join(name, node.output, axis, first)
        first += graph.shape(name)[axis]


def lower(graph: Graph, machine: Machine, rules: Mapping[str, Rule] = RULES, *, inside: bool = False) -> Lowered:
    """The steps of a graph that `support` accepts. inside: as for Lowering."""
    lowering = Lowering(graph, machine, inside=inside)
    for node in graph.nodes:
        if node.op == "Concat" and rearrangements.joins_channels(graph.shape(node.output), AXIS(node)):
            first = 0
            for name in node.inputs:
                lowering.place(name, node.output, first)
                first += graph.shape(name)[1]
        elif node.op == "Concat" and not (
            inside and rearrangements.of_pixels(graph.shape(node.output), AXIS(node))
        ):
            _join(lowering, graph, node)
    fused = (fused_producer(graph, node) for node in graph.nodes)
    return lowering.run(rules, frozenset(each.output for each in fused if each is not None))
