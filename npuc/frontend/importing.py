"""From a parsed model to its nodes, one by one in topological order.

Where a node cannot be imported, the import goes on: the node is kept as it is, and so are nodes that read a tensor
without a static type. Constants are folded, constant branches inlined and identities left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, TypeProto, helper

from npuc.errors import Defect, ModelError, NpucError, Problem, UnsupportedOperator
from npuc.frontend.binding import INPUT_TYPES, input_types
from npuc.frontend.builder import NodeBuilder, OnnxNode, UndefinedConstants
from npuc.frontend.dynamic import without_dynamic_quantisation
from npuc.frontend.folding import can_fold, fold
from npuc.frontend.foreign import (
    all_inputs,
    infer_types,
    node_fault,
    proto_of,
    rename_inputs,
    static,
    types_by_onnxruntime,
)
from npuc.frontend.importers import IMPORTERS
from npuc.frontend.importers.attention import prepare_mask
from npuc.frontend.inlining import (
    branch_of,
    expect_own_names,
    expect_small,
    inline_branch,
    with_defaults,
    with_one_opset,
)
from npuc.frontend.model import FileNode, ImportedModel, ImportedNode, file_nodes, live, origins
from npuc.frontend.plain_forms import steps_first, with_activations_apart, with_dense_constants
from npuc.frontend.reading import check_names, opset_of
from npuc.frontend.signatures import attributes_of, check_arity, is_known, signature_of
from npuc.frontend.upgrading import OLDEST_OPSET, ONNX_DOMAINS, upgrade
from npuc.ir import Array, Node, TensorType, topological
from npuc.onnx_files.external_data import array_of
from npuc.onnx_files.subgraphs import nodes_in, subgraphs
from npuc.reference import STANDARD
from npuc.system.budget import beyond_limits

HOST_TYPES: Mapping[int, str] = {
    **INPUT_TYPES,
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
}
"""Element types of inputs that the host accepts."""


def importable(model: onnx.ModelProto, folder: Path | None) -> tuple[onnx.ModelProto, int | NpucError]:
    """The model as nodes are imported from it, and its opset, or the reason why npuc does not know that.

    Raises ModelError for a malformed model.
    """
    model = with_dense_constants(upgrade(model), folder)
    try:
        opset: int | NpucError = opset_of(model)
    except NpucError as error:
        opset = error
    expect_small(model)
    model = steps_first(with_activations_apart(without_dynamic_quantisation(without_functions(model))))
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


def constants_into(to: NodeBuilder, graph: onnx.GraphProto) -> None:
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


def order_nodes(
    graph: onnx.GraphProto, to: NodeBuilder, known: AbstractSet[str], sources: Sequence[str]
) -> list[tuple[str, str, onnx.NodeProto]]:
    """The nodes with unique names and sources, in topological order.

    known: the tensors that no node writes. sources: of each node, the file's node that it belongs to. Raises
    ModelError (E104) for a cycle or an unwritten tensor.
    """
    named = [
        (to.node_name(node.name or f"{node.op_type}_{at}"), source, node)
        for at, (node, source) in enumerate(zip(graph.node, sources, strict=True))
    ]
    plain = [
        Node(node.op_type, tuple(all_inputs(node)), tuple(node.output), name=name, sources=(source,))
        for name, source, node in named
    ]
    by_name = {name: node for name, _, node in named}
    return [(node.name, node.source, by_name[node.name]) for node in topological(plain, known)]


def _unknown(name: str, proto: onnx.NodeProto) -> UnsupportedOperator:
    own = proto.domain in ONNX_DOMAINS
    reason = "the operator is not known" if own else f"an operator of the domain {proto.domain!r} is not known"
    remedy = "`npuc operators --target TARGET` lists the known ones; rewrite the model with these"
    if proto.domain not in STANDARD:
        remedy = "if a library has it, the host runs it: NPUC_CUSTOM_OPS=FILE.so"
    return UnsupportedOperator("E201", reason, node=name, op=proto.op_type, remedy=remedy)


def is_importable(proto: onnx.NodeProto) -> bool:
    """Whether npuc has an importer for a node's operator."""
    return is_known(proto) or (
        proto.domain in ONNX_DOMAINS and (proto.op_type in IMPORTERS or proto.op_type == "If")
    )


def import_node(
    name: str, source: str, proto: onnx.NodeProto, to: NodeBuilder, opsets: list[onnx.OperatorSetIdProto]
) -> None:
    """Imports one node. source: the file's node that it belongs to.

    Raises NpucError for any problem with it, and Defect for an importer that fails although ONNX and onnxruntime
    accept the node.
    """
    found = signature_of(proto, to.opset)
    if found is None:
        raise _unknown(source, proto)
    if found.deprecated:
        reason = f"the operator is not part of opset {to.opset}"
        raise ModelError("E105", reason, node=source, op=proto.op_type)
    check_arity(proto, source, found)
    attrs = attributes_of(proto, source, found, to.folder)
    inputs = tuple(to.aliases.get(each, each) for each in proto.input)
    node = OnnxNode(name, proto.op_type, inputs, tuple(proto.output), attrs, to.opset, source)
    to.check_computed(inputs)
    try:
        _dispatch(node, proto, to)
    except NpucError:
        raise
    except Exception as error:
        if (said := node_fault(proto, to.types, to.constants, opsets)) is None:
            raise Defect.of(error, "importing the node", source, proto.op_type) from error
        raise ModelError("E105", f"the node is malformed: {said}", node=source, op=proto.op_type) from error
    to.note_absent(node)


def _dispatch(node: OnnxNode, proto: onnx.NodeProto, to: NodeBuilder) -> None:
    if node.op == "If":
        branch_of(node, to)  # raises: a constant condition has chosen its branch before
    importer, foldable = IMPORTERS.get(node.op), can_fold(node, proto, to)
    if importer is None:
        if not foldable:
            raise _unknown(node.source, proto)
        fold(node, proto, to)
        return
    try:
        importer(node, to)
    except UndefinedConstants:
        raise
    except NpucError as error:
        # A constant of a type or form that the table lacks (double, strings) can still be evaluated.
        if not foldable or beyond_limits(error):
            raise
        fold(node, proto, to)


def import_nodes(
    model: onnx.ModelProto,
    folder: Path | None,
    shapes: Mapping[str, tuple[int, ...]],
    bound: Mapping[str, Array] | None = None,
    *,
    host: bool = True,
    fold_weights: bool = True,
) -> ImportedModel:
    """The nodes of a model. bound: values of inputs that are treated as constants.

    host: whether inputs may have types and shapes that only the host accepts. Raises ModelError if the model is
    malformed, an input stays dynamic, or memory does not suffice; Defect for an importer that fails.
    """
    texts = frozenset({text for node in nodes_in(model.graph.node) for text in (node.op_type, node.name)} - {""})
    file, (model, opset) = model, importable(model, folder)
    given = file_nodes(file)
    avoided: dict[str, str] = {}
    while True:
        found = _Import(model, folder, opset, given, avoided, fold_weights=fold_weights)
        for name, value in (bound or {}).items():
            found.to.add_constant(name, value)
        wanted = found.run(shapes, host=host)
        if wanted.keys() <= avoided.keys():
            return found.result(texts)
        avoided = {**wanted, **avoided}


class _Import:
    """One walk over the nodes. avoided: by node, an output that is read, but omitted by the importer.

    given: the nodes of the file.

    Of a model whose opset is unknown the host runs everything.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        folder: Path | None,
        opset: int | NpucError,
        given: Sequence[FileNode],
        avoided: Mapping[str, str],
        *,
        fold_weights: bool,
    ) -> None:
        self.model, self.file_nodes, self.avoided = model, given, avoided
        self.unreadable = opset.problems[0] if isinstance(opset, NpucError) else None
        self.to = NodeBuilder(opset if isinstance(opset, int) else OLDEST_OPSET, folder, fold_weights)
        self.nodes: list[ImportedNode] = []
        self.broken: set[str] = set()
        """Results of nodes that npuc cannot import."""
        self.strange: set[str] = set()
        """What is computed behind a tensor of a type that npuc does not run."""
        self.undecided: set[str] = set()
        """Those of them that might have been shapes, or arithmetic on shapes."""
        self.protos: dict[str, TypeProto] = {}
        self.opsets = list(model.opset_import)
        self.declared = {each.name: each.type for each in (*model.graph.value_info, *model.graph.input)}
        constants_into(self.to, model.graph)

    @cached_property
    def _by_onnxruntime(self) -> Mapping[str, TypeProto]:
        return types_by_onnxruntime(self.model, self.to.folder, self.given)

    def run(self, shapes: Mapping[str, tuple[int, ...]], *, host: bool) -> dict[str, str]:
        """Imports every node; returns, by node, outputs that are read, but omitted by the importer."""
        graph, to = self.model.graph, self.to
        self.inputs = [each.name for each in graph.input if each.name not in to.constants]
        self.given = (_types_on_host if host else input_types)(graph, to.constants, shapes)
        to.take_inputs(self.given)
        self.protos |= {name: self.declared[name] for name in self.inputs}
        self.protos |= {name: proto_of(found) for name, found in to.types.items()}
        to.reserve([*self.inputs, *(name for node in graph.node for name in node.output)])
        missing: dict[str, str] = {}
        with np.errstate(all="ignore"):
            sources = origins(graph, self.file_nodes)
            for name, source, node in order_nodes(graph, to, {*to.constants, *self.inputs}, sources):
                missing |= self._node(name, source, node)
        return missing | {to.absent[each.name].name: each.name for each in graph.output if each.name in to.absent}

    def result(self, texts: frozenset[str]) -> ImportedModel:
        """The imported model. texts: operators and names of all nodes in the file."""
        to, graph = self.to, self.model.graph
        outputs = list(dict.fromkeys(each.name for each in graph.output))
        nodes, names = self._with_output_names(outputs)
        aliases = {old: names.get(new, new) for old, new in (*names.items(), *to.aliases.items())}
        return ImportedModel(
            graph.name,
            live(nodes, outputs),
            tuple(self.inputs),
            tuple(outputs),
            to.constants,
            to.types,
            self.protos,
            tuple(self.opsets),
            self.model.ir_version,
            to.names.all_names(),
            texts,
            self.unreadable,
            tuple(self.file_nodes),
            {old: new for old, new in aliases.items() if old != new},
        )

    def _with_output_names(self, outputs: Sequence[str]) -> tuple[list[ImportedNode], dict[str, str]]:
        """The nodes, with every output under its own name even if an Identity was left out, and the new names.

        The tensor before such an output is renamed; if it is an input or an output itself, the Identity stays.
        """
        to, names, more = self.to, dict[str, str](), list[ImportedNode]()
        written = {name: node.key for node in self.file_nodes for name in node.writes}
        for name in outputs:
            source = to.aliases.get(name)
            if source is None:
                continue
            if source in to.constants:
                to.constants[name] = to.constants[source]
            elif source in self.inputs or source in outputs or source in names:
                label = to.node_name(f"{name}/Identity")
                made = Node("Identity", (source,), (name,), {}, label, (written[name],))
                proto = helper.make_node("Identity", [source], [name])
                more.append(ImportedNode(label, proto, (made,), None, written[name]))
            else:
                names[source] = name
            to.types[name] = to.types[source]
            self.protos[name] = self.protos.get(source) or proto_of(to.types[source])
        found = [*self.nodes, *more]
        return [node.rename(names) for node in found] if names else found, names

    def _node(self, name: str, source: str, node: onnx.NodeProto) -> dict[str, str]:
        """Adds a node, its constants or its alias; returns, by node, outputs that it reads, but are omitted."""
        to = self.to
        proto = rename_inputs(node, to.aliases)
        reads = list(dict.fromkeys(all_inputs(proto)))
        wanted = {to.absent[each].name: each for each in reads if each in to.absent}
        if wanted or self.unreadable is not None:
            self._foreign(name, source, proto, self.unreadable)
            return wanted
        unknown = [each for each in reads if each not in to.types]
        if name in self.avoided or unknown:
            self._foreign(name, source, proto, _unread_reason(source, proto, self.avoided.get(name), unknown))
            return {}
        if node.op_type == "If" and node.domain in ONNX_DOMAINS and proto.input[0] in to.constants:
            return self._branch(name, source, proto)
        for each in prepare_mask(proto, to):
            self._node(to.node_name(f"{name}/{each.op_type}"), source, each)
        before = len(to.nodes)
        try:
            import_node(name, source, proto, to, self.opsets)
        except NpucError as error:
            if beyond_limits(error):
                raise
            del to.nodes[before:]
            self._foreign(name, source, proto, error.problems[0])
            return {}
        made = tuple(to.nodes[before:])
        if not self.strange.isdisjoint(reads):
            self.strange.update(proto.output)
        self.protos |= {each: proto_of(to.types[each]) for each in proto.output if each in to.types}
        if made:
            self.nodes.append(ImportedNode(name, proto, made, None, source))
        return {}

    def _branch(self, name: str, source: str, proto: onnx.NodeProto) -> dict[str, str]:
        """Imports the nodes of the branch chosen by a constant condition."""
        graphs = {each.name: each.g for each in proto.attribute}
        node = OnnxNode(name, "If", tuple(proto.input), tuple(proto.output), graphs, self.to.opset, source)
        try:
            chosen = branch_of(node, self.to)
        except NpucError as error:
            self._foreign(name, source, proto, error.problems[0])
            return {}
        missing: dict[str, str] = {}
        for inner, each in inline_branch(node, chosen, self.to):
            missing |= self._node(inner, source, each)
        return missing

    def _foreign(self, name: str, source: str, proto: onnx.NodeProto, problem: Problem | None) -> None:
        """Adds a node as it is, with the known types of its results."""
        to = self.to
        for each in proto.output:
            to.constants.pop(each, None)
            to.aliases.pop(each, None)
            to.types.pop(each, None)
            to.producers.pop(each, None)
        found = infer_types(proto, self.protos, to.constants, self.opsets)
        untyped = [each for each in filter(None, proto.output) if each not in found and each not in self.declared]
        if proto.domain not in ONNX_DOMAINS and untyped:
            found = {**self._by_onnxruntime, **found}
        for each in filter(None, proto.output):
            proto_type = found.get(each) or self.declared.get(each)
            if proto_type is not None:
                self.protos[each] = proto_type
                known = static(proto_type)
                if known is not None:
                    to.types[each] = known
        if proto.op_type == "Where" and proto.domain in ONNX_DOMAINS:
            to.producers[proto.output[0]] = Node("Where", tuple(proto.input), tuple(proto.output))
        told = problem or Problem("E201", "the operator is not known to npuc")
        where = replace(told, node=source, op=proto.op_type)
        reads = {*all_inputs(proto)} - to.constants.keys()
        of_shapes = bool(reads) and reads <= self.undecided
        follows = of_shapes or (told.code != "E201" and not self.broken.isdisjoint(reads))
        follows |= told.code == "E107" and not self.strange.isdisjoint(reads)
        self.broken.update(proto.output)
        if told.code == "E107":
            self.strange.update(proto.output)
        if of_shapes or proto.op_type in ("Shape", "Size"):
            self.undecided.update(proto.output)
        self.nodes.append(ImportedNode(name, proto, (), where, source, follows))


def _unread_reason(name: str, proto: onnx.NodeProto, omitted: str | None, unknown: Sequence[str]) -> Problem:
    """Why a node cannot be imported even though no importer refused it.

    omitted: the output that an importer would not compute; unknown: what it reads without a type.
    """
    if not is_importable(proto):
        return _unknown(name, proto).problems[0]
    if omitted is not None:
        reason, remedy = f"its output {omitted!r} is read", "compute it by operators of its own"
        return Problem("E202", reason, name, proto.op_type, limit="the first output only", remedy=remedy)
    reason = "the shape of what it reads is known at run time only"
    remedy = "make the shape static, for instance by simplifying the model for fixed shapes"
    return Problem("E106", reason, name, proto.op_type, unknown[0], remedy=remedy)


def _types_on_host(
    graph: onnx.GraphProto, constants: Collection[str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, TensorType]:
    """The types of inputs that are tensors of numbers, with elements. Raises as `input_types`."""
    typed, names = onnx.GraphProto(name=graph.name, node=graph.node), {each.name for each in graph.input}
    typed.input.extend(each for each in graph.input if _code(each.type) in HOST_TYPES and not _is_empty(each.type))
    others = names - {each.name for each in typed.input}
    given = {name: shape for name, shape in shapes.items() if name not in others}
    return input_types(typed, constants, given, HOST_TYPES)


def _is_empty(found: TypeProto) -> bool:
    """Whether a dimension is declared as 0."""
    dims = found.tensor_type.shape.dim
    return any(each.WhichOneof("value") == "dim_value" and not each.dim_value for each in dims)


def _code(found: TypeProto) -> int:
    """The element type of a tensor; 0 for anything else."""
    return found.tensor_type.elem_type if found.WhichOneof("value") == "tensor_type" else 0
