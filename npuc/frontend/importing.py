"""From a parsed model to a graph: node by node in topological order, collecting all problems on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from npuc.custom_ops import STANDARD
from npuc.errors import ModelError, NpucError, Problem, UnsupportedOperator
from npuc.frontend.batches import steps_first
from npuc.frontend.binding import input_types
from npuc.frontend.branches import branch_of, inlined
from npuc.frontend.builder import Builder, LeftWhole, OnnxNode
from npuc.frontend.contrib import is_known, signature_of
from npuc.frontend.dense import with_dense_constants
from npuc.frontend.dynamic import without_dynamic_quantisation
from npuc.frontend.expansion import expect_own_names, expect_small, with_defaults, with_one_opset
from npuc.frontend.folding import can_fold, fold
from npuc.frontend.foreign import captured
from npuc.frontend.importers import IMPORTERS
from npuc.frontend.reading import check_names, opset_of
from npuc.frontend.signatures import attributes_of, check_arity
from npuc.frontend.upgrading import ONNX_DOMAINS, upgraded
from npuc.ir import Graph, Node, topological
from npuc.onnx_files.external_data import array_of
from npuc.onnx_files.subgraphs import subgraphs
from npuc.ops import build
from npuc.system.budget import beyond_limits


def graph_of(
    model: onnx.ModelProto,
    folder: Path | None,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    fold_weights: bool,
    without: LeftWhole | None = None,
) -> Graph:
    """The graph of a model. Raises ModelError or UnsupportedOperator with all problems found."""
    model, opset = importable(model, folder)
    if isinstance(opset, NpucError):
        raise opset
    to = Builder(opset, folder, fold_weights, without)
    constants_into(to, model.graph)
    types = input_types(model.graph, to.constants, shapes)
    to.take_inputs(types)
    to.reserve([name for node in model.graph.node for name in node.output])
    with np.errstate(all="ignore"):
        _import_nodes(ordered(model.graph, to, {*to.constants, *to.types}), to)
    outputs = list(dict.fromkeys(each.name for each in model.graph.output))
    to.check_computed([to.aliases.get(each, each) for each in outputs])
    nodes = _with_output_names(outputs, to, types)
    return build(model.graph.name, nodes, types, outputs, to.constants, reserved=to.names.taken())


def importable(model: onnx.ModelProto, folder: Path | None) -> tuple[onnx.ModelProto, int | NpucError]:
    """The model as nodes are imported from it, and its opset, or the reason why npuc does not know that.

    Raises ModelError for a malformed model.
    """
    model = with_dense_constants(upgraded(model), folder)
    try:
        opset: int | NpucError = opset_of(model)
    except NpucError as error:
        opset = error
    expect_small(model)
    model = steps_first(without_dynamic_quantisation(without_functions(model)))
    check_names(model.graph)
    _expect_names(model.graph)
    return model, opset


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each call of a model-local function replaced by its body.

    Raises ModelError: E103 for a function of another opset, E104 for one with the name of an operator and for what
    ONNX's inliner refuses.
    """
    if not model.functions:
        return model
    from onnx import inliner

    expect_own_names(model)
    try:
        return inliner.inline_local_functions(with_one_opset(with_defaults(model)))
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError("E104", f"the model's functions cannot be inlined: {error}") from error


def constants_into(to: Builder, graph: onnx.GraphProto) -> None:
    """Adds the initialisers. Raises ModelError (E104) for a repeated name."""
    for tensor in graph.initializer:
        if tensor.name in to.constants:
            raise ModelError("E104", "two constants have this name", tensor=tensor.name)
        to.add_constant(tensor.name, array_of(tensor, to.folder))


def _expect_names(graph: onnx.GraphProto) -> None:
    """Checks that every tensor is written once and every output is named; a tensor may be an output twice."""
    inputs, outputs = ([each.name for each in values] for values in (graph.input, graph.output))
    if len(set(inputs)) != len(inputs) or not all((*inputs, *outputs)):
        reason = f"inputs need names of their own and outputs need names, not {inputs} and {outputs}"
        raise ModelError("E104", reason)
    _expect_written_once(graph, frozenset())


def _expect_written_once(graph: onnx.GraphProto, outside: AbstractSet[str]) -> None:
    """Raises ModelError (E104) for a node that writes nothing, or a tensor of its graph or one around it again."""
    written = {*outside, *(each.name for each in (*graph.initializer, *graph.input))}
    for node in graph.node:
        for inner in subgraphs(node):
            _expect_written_once(inner, written)
        if not any(node.output):
            raise ModelError("E104", "no output has a name", node=node.name or None, op=node.op_type)
        for name in filter(None, node.output):
            if name in written:
                raise ModelError("E104", "written twice", node=node.name or None, op=node.op_type, tensor=name)
            written.add(name)


def ordered(graph: onnx.GraphProto, to: Builder, known: AbstractSet[str]) -> list[tuple[str, onnx.NodeProto]]:
    """The nodes with unique names, in topological order. Raises E104 for a cycle or an unwritten tensor.

    known: the tensors that no node writes.
    """
    named = [(to.node_name(node.name or f"{node.op_type}_{at}"), node) for at, node in enumerate(graph.node)]
    plain = [Node(node.op_type, tuple(captured(node)), tuple(node.output), name=name) for name, node in named]
    by_name = dict(named)
    return [(node.name, by_name[node.name]) for node in topological(plain, known)]


class _Damage:
    """Tensors without a type because their node failed; `undecided` ones might have been shapes."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.undecided: set[str] = set()

    def touches(self, names: Sequence[str]) -> bool:
        """Whether any of the tensors has no type."""
        return not self.broken.isdisjoint(names) or not self.undecided.isdisjoint(names)

    def spread(self, proto: onnx.NodeProto, constant: bool) -> None:
        """Marks the outputs of a node that could not be imported."""
        (self.undecided if constant else self.broken).update(proto.output)


def _import_nodes(nodes: Sequence[tuple[str, onnx.NodeProto]], to: Builder) -> None:
    """Imports as many nodes as possible and raises all problems together.

    Nothing after a failed node has a type: there only unknown operators are reported, except those that may have
    been arithmetic on constant shapes.
    """
    problems: list[Problem] = []
    errors: list[NpucError] = []
    damage = _Damage()
    for name, proto in nodes:
        if damage.touches(list(captured(proto))):
            shape_like = proto.op_type in ("Shape", "Size")
            constant = shape_like or all(
                each in to.constants or each in damage.undecided for each in proto.input if each
            )
            if not constant and not _is_known(proto):
                problems.extend(_unknown(name, proto).problems)
            damage.spread(proto, constant)
            continue
        try:
            import_node(name, proto, to)
        except NpucError as error:
            errors.append(error)
            problems.extend(error.problems)
            damage.spread(proto, constant=False)
    if problems:
        kind = UnsupportedOperator if all(each.code.startswith("E2") for each in problems) else ModelError
        raise kind.of(problems) from errors[0]


def _is_known(proto: onnx.NodeProto) -> bool:
    return is_known(proto) or (
        proto.domain in ONNX_DOMAINS and (proto.op_type in IMPORTERS or proto.op_type == "If")
    )


def _unknown(name: str, proto: onnx.NodeProto) -> UnsupportedOperator:
    own = proto.domain in ONNX_DOMAINS
    reason = "the operator is not known" if own else f"an operator of the domain {proto.domain!r} is not known"
    remedy = "`npuc operators --target TARGET` lists the known ones; rewrite the model with these"
    if proto.domain not in STANDARD:
        remedy = "if a library has it, the host runs it: --custom-ops FILE.so"
    return UnsupportedOperator("E201", reason, node=name, op=proto.op_type, remedy=remedy)


def import_node(name: str, proto: onnx.NodeProto, to: Builder) -> None:
    """Imports one node; raises NpucError for any problem with it."""
    found = signature_of(proto, to.opset)
    if found is None:
        raise _unknown(name, proto)
    if found.deprecated:
        reason = f"the operator is not part of opset {to.opset}"
        raise ModelError("E105", reason, node=name, op=proto.op_type)
    check_arity(proto, name, found)
    try:
        attrs = attributes_of(proto, name, found, to.folder)
        inputs = tuple(to.aliases.get(each, each) for each in proto.input)
        node = OnnxNode(name, proto.op_type, inputs, tuple(proto.output), attrs, to.opset)
        to.check_computed(inputs)
        _dispatch(node, proto, to)
        to.note_absent(node)
    except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
        reason = f"the node is malformed ({type(error).__name__}: {error})"
        raise ModelError("E105", reason, node=name, op=proto.op_type) from error


def _dispatch(node: OnnxNode, proto: onnx.NodeProto, to: Builder) -> None:
    if node.op == "If":
        _import_nodes(list(inlined(node, branch_of(node, to), to)), to)
        return
    whole = to.left_whole(node)
    if whole is not None:
        raise UnsupportedOperator.of([replace(whole, node=node.name, op=node.op)])
    importer, foldable = IMPORTERS.get(node.op), can_fold(node, proto, to)
    if importer is None:
        if not foldable:
            raise _unknown(node.name, proto)
        fold(node, proto, to)
        return
    try:
        importer(node, to)
    except NpucError as error:
        # A constant of a type or form that the table lacks (double, strings) can still be evaluated.
        if not foldable or beyond_limits(error):
            raise
        fold(node, proto, to)


def _with_output_names(outputs: Sequence[str], to: Builder, types: Mapping[str, object]) -> list[Node]:
    """The nodes, with every output under its own name even if an Identity was left out.

    The tensor before such an output is renamed; if it is an input or an output itself, the Identity stays.
    """
    renamed: dict[str, str] = {}
    extra: list[Node] = []
    for name in outputs:
        source = to.aliases.get(name)
        if source is None:
            continue
        if source in to.constants:
            to.constants[name] = to.constants[source]
        elif source in types or source in outputs or source in renamed:
            extra.append(Node("Identity", (source,), (name,), {}, to.node_name(f"{name}/Identity")))
        else:
            renamed[source] = name
    return [
        replace(
            node,
            inputs=tuple(renamed.get(each, each) for each in node.inputs),
            outputs=tuple(renamed.get(each, each) for each in node.outputs),
        )
        for node in (*to.nodes, *extra)
    ]
