"""Nodes on the host: which are permitted, their form as program steps, and which of them only convert."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from npuc.conditions.constraints import refuse
from npuc.errors import NpucError, Problem
from npuc.host.step import HostStep, computing
from npuc.ir import Graph, Node
from npuc.ops.movement import MOVEMENT
from npuc.ops.quantisation import CONVERSIONS
from npuc.quantize.scales.model_scales import steps_of

BORDER = ("QuantizeLinear", "DequantizeLinear")


def constant_steps(graph: Graph, nodes: Sequence[Node], read: set[str]) -> Iterator[HostStep]:
    """Steps for the constants that host nodes read and that are not in `read` yet; they are added to it."""
    for node in nodes:
        for name in node.inputs[:1] if node.op in BORDER else node.inputs:
            if name in graph.constants and name not in read:
                read.add(name)
                yield HostStep.constant(name, graph.constants[name])


def host_step(graph: Graph, node: Node, reason: str, *, at_border: bool) -> HostStep:
    """A node as a host step; scales and zero points become attributes.

    reason: why the machine does not compute it. at_border: no machine step precedes it, or none follows it.
    """
    attrs: dict[str, Any] = dict(node.attrs)
    inputs = node.inputs
    if node.op in BORDER:
        scale, zero = (graph.constants[name] for name in node.inputs[1:])
        attrs = {"scale": float(scale.flat[0]), "zero_point": int(zero.flat[0]), "dtype": str(zero.dtype)}
        inputs = node.inputs[:1]
    conversion = node.op in BORDER or (at_border and _gives_layout(node))
    if conversion:
        reason = "conversion between the network's and the machine's layout"
    return HostStep(node.source, node.op, inputs, node.outputs, attrs, conversion, reason)


def _gives_layout(node: Node) -> bool:
    """Whether it moves all elements, or selects samples of a batch; cutting feature maps does not count."""
    if node.op in ("Slice", "Split"):
        return node.attrs.get("axes", (node.attrs.get("axis"),)) == (0,)
    return node.op in MOVEMENT


def expect_conversions(steps: Iterable[object]) -> None:
    """For --strict: raises UnsupportedOperator (E203) with every host step that is not a conversion."""
    if found := computing(steps):
        raise NpucError.of(_not_converting(step.node, step.op, step.reason) for step in found)


def _not_converting(node: str, op: str, why: str) -> Problem:
    remedy = "drop --strict, or cut the network before it"
    return Problem("E203", f"it would run on the host: {why}", node=node, op=op, remedy=remedy)


PRODUCTS = ("QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger")
OTHERS = (
    *("QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"),
    *("QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearConcat"),
)


def quantised_forms(convolution: str) -> dict[str, tuple[str, str]]:
    """The replacements of ONNX's integer operators, and their conditions. convolution: how a target runs one."""
    return {
        **dict.fromkeys(PRODUCTS, (convolution, "The weights are constants, and so are scales and zero points.")),
        **dict.fromkeys(OTHERS, ("as without QLinear", "Scales and zero points are constants.")),
    }


def conversion_refusal(graph: Graph, node: Node) -> Problem | None:
    """Why a network's own QuantizeLinear or DequantizeLinear cannot be used as it is, or None if it can."""
    if node.op not in BORDER or steps_of(graph, node) is not None:
        return None
    integers = node.output if node.op == "QuantizeLinear" else node.inputs[0]
    sizes = [graph.tensors[name].size for name in node.inputs[1:]]
    reason = f"to {max(sizes)} scales" if max(sizes) > 1 else f"to {graph.tensors[integers].dtype}"
    limit = "one scale and zero point for a tensor, constant, int8 or uint8"
    remedy = "quantise activations per tensor to 8 bits; weights may have a scale for every channel"
    return refuse(node, f"an activation is quantised {reason}", tensor=integers, limit=limit, remedy=remedy)


Refusal = Callable[[Node], Problem | None]
"""The problem with a node, or None."""


def problems(
    graph: Graph, on_array: set[Node], host: Mapping[str, str], refusal: Refusal, *, strict: bool
) -> list[Problem]:
    """Every node that neither the array nor the host may run, each with the constraint that it violates.

    on_array: the nodes that the array runs. host: the operators that the host may run, and the reasons. refusal:
    for all other operators.
    """
    found = [problem for node in graph.nodes if (problem := emptiness(graph, node)) is not None]
    for node in graph.nodes:
        if node in on_array or (node.op in MOVEMENT and not strict) or node.op in CONVERSIONS:
            continue
        wrong = [conversion_refusal(graph, node)]
        if node.op not in host:
            wrong.append(refusal(node))
        elif strict and not only_converts(graph, node, on_array):
            wrong.append(_not_converting(node.source, node.op, host[node.op]))
        found += [each for each in wrong if each is not None]
    return found


def emptiness(graph: Graph, node: Node) -> Problem | None:
    """Why no machine accepts a node that reads or computes an empty tensor, or None for other nodes."""
    empty = [name for name in (*node.inputs, *node.outputs) if name and not graph.tensors[name].size]
    if not empty:
        return None
    reason = f"a tensor of shape {list(graph.shape(empty[0]))} has no elements"
    limit, remedy = "at least one element", "leave out what is empty"
    return refuse(node, reason, tensor=empty[0], limit=limit, remedy=remedy)


def only_converts(graph: Graph, node: Node, on_array: set[Node]) -> bool:
    """Whether a node only moves data between the network's inputs or outputs and the array."""
    if node.op not in BORDER and not _gives_layout(node):
        return False
    from networkx import ancestors, descendants

    order = {each: position for position, each in enumerate(graph.nodes)}
    view = graph.dataflow
    array = {order[each] for each in on_array}
    at = order[node]
    return not (ancestors(view, at) & array) or not (descendants(view, at) & array)
