"""The parts of a surveyed model: as graphs for the target, as ONNX models for the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, prod

import onnx
from onnx import helper, numpy_helper

from npuc.errors import Problem, UnsupportedOperator
from npuc.frontend.foreign import is_static
from npuc.frontend.model import ImportedModel, ImportedNode
from npuc.ir import Array, Graph, Node
from npuc.onnx_files.subgraphs import nodes_in, subgraphs
from npuc.ops import build
from npuc.ops.products import macs
from npuc.quantize.scales.model_scales import steps_of
from npuc.quantize.scales.spans import spans
from npuc.reference import STANDARD
from npuc.regions import partition
from npuc.target import RECURRENT


def part_graph(network: ImportedModel, nodes: Sequence[ImportedNode], outside: Iterable[str], name: str) -> Graph:
    """The target's graph of these nodes. outside: the tensors that anything else reads."""
    canonical = [each for node in nodes for each in node.nodes]
    if len(nodes) == len(network.nodes) and all(name in network.types for name in network.inputs):
        whole = {each: network.types[each] for each in network.inputs}
        return build(name, canonical, whole, network.outputs, network.constants, reserved=network.reserved)
    written = {name for each in canonical for name in each.outputs}
    read = dict.fromkeys(name for each in canonical for name in each.inputs if name and name not in written)
    inputs = {each: network.types[each] for each in read if each not in network.constants}
    wanted = set(outside)
    outputs = [name for each in canonical for name in each.outputs if name in wanted]
    constants = {each: network.constants[each] for each in read if each in network.constants}
    return build(name, canonical, inputs, outputs, constants, reserved=network.reserved)


def region_model(network: ImportedModel, nodes: Sequence[ImportedNode], outputs: Sequence[str]) -> onnx.ModelProto:
    """The nodes as an ONNX model of their own, with constants.

    Raises UnsupportedOperator (E201) if the type of an input is unknown.
    """
    written = {name for node in nodes for name in node.writes}
    read = list(dict.fromkeys(name for node in nodes for name in node.reads if name not in written))
    constants = [name for name in read if name in network.constants]
    given = [name for name in read if name not in network.constants]
    known = network.protos
    for name in given:
        if name not in known:
            reason, limit = "the type of what the host reads is not known", "tensors with an element type"
            raise UnsupportedOperator("E201", reason, tensor=name, limit=limit)
    graph = helper.make_graph(
        [_with_name(node) for node in nodes],
        network.name or "region",
        [helper.make_value_info(name, known[name]) for name in given],
        [onnx.ValueInfoProto(name=name, type=known.get(name)) for name in outputs],
    )
    graph.initializer.extend(numpy_helper.from_array(network.constants[name], name) for name in constants)
    return helper.make_model(
        graph, opset_imports=list(network.opsets), ir_version=network.ir_version, producer_name="npuc"
    )


def model_ranges(network: ImportedModel) -> dict[str, tuple[float, float]]:
    """The ranges of tensors that follow from the 8 bits to which the model rounds some of them, with one scale."""
    known, nodes = {*network.types, *network.constants}, list[Node]()
    for each in (each for node in network.nodes for each in node.nodes):
        if known.issuperset(filter(None, each.inputs)):
            nodes.append(each)
            known.update(each.outputs)
    made = {name for each in nodes for name in each.outputs if name}
    read = {name for each in nodes for name in each.inputs if name} - made - network.constants.keys()
    types = {name: network.types[name] for name in sorted(read)}
    graph = build("ranges", nodes, types, sorted(made), network.constants)
    found: dict[str, tuple[float, float]] = {}
    for node in nodes:
        steps, name = steps_of(graph, node), node.inputs[0] if node.op == "QuantizeLinear" else node.output
        if steps is not None:
            low, high = found.get(name, steps.limits)
            found[name] = min(low, steps.limits[0]), max(high, steps.limits[1])
    return {name: each for name, each in spans(graph, found).items() if isfinite(sum(each))}


def _with_name(node: ImportedNode) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node.proto)
    copy.name = node.name
    return copy


def nodes_behind(network: ImportedModel, names: Iterable[str]) -> list[ImportedNode]:
    """The nodes that tensors depend on, in order."""
    wanted, found = set(names), list[ImportedNode]()
    for node in reversed(network.nodes):
        if wanted.intersection(node.writes):
            wanted.update(node.reads)
            found.append(node)
    return found[::-1]


def custom_operators(nodes: Iterable[ImportedNode]) -> Iterator[str]:
    """Operators that onnxruntime has only with a library from the user, including those in subgraphs."""
    for proto in nodes_in(node.proto for node in nodes):
        if proto.domain not in STANDARD:
            yield f"{proto.domain}::{proto.op_type}"


def crossing_inputs(network: ImportedModel, nodes: Sequence[ImportedNode], *, on_npu: bool) -> list[str]:
    """The tensors that a part reads and does not compute, without constants, in order."""
    inside = {name for node in nodes for name in node.writes}
    inside |= {name for node in nodes for name in node.made}
    read = (name for node in nodes for name in (node.imported if on_npu else node.reads))
    return [name for name in dict.fromkeys(read) if name not in inside and name not in network.constants]


def blocks(network: ImportedModel, denied: Mapping[str, Problem]) -> partition.PartitionGraph:
    """The network as the partitioner sees it. denied: the nodes that the target does not run, and why."""
    made: list[partition.PartitionNode] = []
    for node in network.nodes:
        on_npu = bool(node.nodes) and node.name not in denied
        read = (*(node.imported if on_npu else ()), *node.reads)
        inside = {*node.made} if on_npu else set[str]()
        reads = tuple(name for name in dict.fromkeys(read) if name not in network.constants)
        writes = tuple(dict.fromkeys((*node.writes, *sorted(inside))))
        made.append(partition.PartitionNode(node.name, reads, writes, node_macs(network, node), on_npu))
    outputs = frozenset(network.outputs)
    return partition.PartitionGraph(
        tuple(made), {name: size_bytes(network, name) for name in network.types}, outputs
    )


def size_bytes(network: ImportedModel, tensor: str) -> int:
    """Bytes of a tensor; 0 if its size is unknown."""
    return network.types[tensor].bytes if tensor in network.types else 0


def node_macs(network: ImportedModel, node: ImportedNode) -> int:
    """The multiply-accumulates of a node of the model: products with weights, and matrix products."""
    if node.nodes and node.op not in RECURRENT:  # the first step of these may have no state to multiply
        return sum(macs(each, network.types) for each in node.nodes)
    return _foreign_macs(network, node)


Shapes = Mapping[str, tuple[int, ...]]
PRODUCTS = (
    "MatMul", "MatMulInteger", "QLinearMatMul", "MatMulNBits", "MatMulIntegerToFloat", "DynamicQuantizeMatMul",
)  # fmt: skip
"""Products of matrices whose first input is the left one, in its usual order."""


def _foreign_macs(network: ImportedModel, node: ImportedNode) -> int:
    if not any(subgraphs(node.proto)):
        read = {*node.proto.input, *node.proto.output} & network.types.keys()
        return _proto_macs(node.proto, {name: network.types[name].shape for name in read}, {})
    try:
        model = region_model(network, [node], node.writes)
        graph = onnx.shape_inference.infer_shapes(model).graph
    except (UnsupportedOperator, onnx.shape_inference.InferenceError):  # a body of unknown shapes counts nothing
        return 0
    return sum(_proto_macs(each, _shapes(graph), network.constants) for each in graph.node)


def _shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """The shapes of a graph's tensors; those with a dimension that is not known are left out."""
    found = {each.name: tuple(each.dims) for each in graph.initializer}
    for each in (*graph.input, *graph.value_info, *graph.output):
        if is_static(each.type):
            found[each.name] = tuple(dim.dim_value for dim in each.type.tensor_type.shape.dim)
    return found


def _inner_macs(node: onnx.NodeProto, shapes: Shapes, constants: Mapping[str, Array]) -> int:
    """Those of the costliest branch of an If; those of a body for every pass, one if the number is not known."""
    inside = max(
        sum(_proto_macs(each, {**shapes, **_shapes(graph)}, constants) for each in graph.node)
        for graph in subgraphs(node)
    )
    if node.op_type == "Loop":
        passes = constants.get(node.input[0])
        return inside * (1 if passes is None else max(0, int(passes.item())))
    scanned = next((each.i for each in node.attribute if each.name == "num_scan_inputs"), 0)
    sequence = shapes.get(node.input[-1]) if scanned else None
    return inside * (sequence[0] if sequence else 1)


def _proto_macs(node: onnx.NodeProto, shapes: Shapes, constants: Mapping[str, Array]) -> int:
    """constants: known values of tensors, such as a loop's number of passes."""
    if any(subgraphs(node)):
        return _inner_macs(node, shapes, constants)
    inputs, out = [shapes.get(name) for name in node.input], [shapes.get(name) for name in node.output]
    match node.op_type, inputs, out:
        case op, [x, w, r, *_], _ if op in (*RECURRENT, "DynamicQuantizeLSTM") and x and w and r:
            return x[0] * x[1] * (prod(w) + prod(r))
        case (("Conv" | "ConvInteger" | "FusedConv"), [_, w, *_], [y]) if w and y:
            return prod(y) * prod(w[1:])
        case "Attention", [q, k, *_], [y, *_] if q and k and y:
            return (prod(q) + prod(y)) * k[-2]
        case "QLinearConv", [_, _, _, w, *_], [y] if w and y:
            return prod(y) * prod(w[1:])
        case "ConvTranspose", [x, w, *_], _ if x and w:
            return prod(x) * prod(w[1:])
        case op, [x, *_], [y] if op in PRODUCTS and x and y:
            return prod(y) * x[-1]
        case (("Gemm" | "FusedGemm" | "QGemm" | "FusedMatMul"), [x, *_], [y]) if x and y:
            transposed = any(each.name == "transA" and each.i for each in node.attribute)
            return prod(y) * x[-2 if transposed else -1]
        case _:
            return 0
