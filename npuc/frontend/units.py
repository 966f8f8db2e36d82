"""A model as units: its ONNX nodes one by one, each with its imported form if npuc knows the operator.

Where `importing` refuses a model because of one node, the survey continues: the node is kept as it is, with result
types by ONNX's own rules, and so are nodes that read a tensor without a static type. Constants are folded,
constant branches inlined and identities left out, as in a complete import.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, TypeProto, helper

from npuc.errors import AMBIGUOUS, NpucError, Problem
from npuc.frontend.binding import INPUT_TYPES, input_types
from npuc.frontend.branches import branch_of, inlined
from npuc.frontend.builder import Builder, OnnxNode
from npuc.frontend.foreign import captured, proto_of, renamed, result_types, static, types_by_onnxruntime
from npuc.frontend.importers.attention import prepared
from npuc.frontend.importing import constants_into, import_node, importable, ordered
from npuc.frontend.upgrading import OLDEST_OPSET, ONNX_DOMAINS
from npuc.frozen import frozen
from npuc.ir import Array, Node, TensorType
from npuc.onnx_files.subgraphs import within
from npuc.system.budget import beyond_limits

HOST_TYPES: Mapping[int, str] = {
    **INPUT_TYPES,
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
}
"""Element types of inputs that the host accepts."""


@frozen
class Unit:
    """One node of the model: `proto` uses the tensors' own names; `nodes` compute the same."""

    name: str
    proto: onnx.NodeProto
    nodes: tuple[Node, ...]
    """Its canonical nodes; empty if it cannot be imported."""
    problem: Problem | None
    """Why npuc cannot import it."""

    @property
    def op(self) -> str:
        """The ONNX operator."""
        return self.proto.op_type

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The tensors that the host would read."""
        return tuple(dict.fromkeys(captured(self.proto)))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """The tensors that the host would write."""
        return tuple(filter(None, self.proto.output))

    @cached_property
    def imported(self) -> tuple[str, ...]:
        """The tensors that the target would read, constants included."""
        made = {name for node in self.nodes for name in node.outputs}
        return tuple(
            dict.fromkeys(name for node in self.nodes for name in node.inputs if name and name not in made)
        )


@frozen
class Network:
    """A surveyed model. `types`: of tensors with static shape; `protos`: what is known of all tensors."""

    name: str
    units: tuple[Unit, ...]
    inputs: tuple[str, ...]
    outputs: Mapping[str, str]
    """Tensor behind each output, by the output's name."""
    constants: Mapping[str, Array]
    types: Mapping[str, TensorType]
    protos: Mapping[str, TypeProto]
    opsets: tuple[onnx.OperatorSetIdProto, ...]
    ir_version: int
    reserved: frozenset[str]
    """The tensors of the model, and those made while it was surveyed: no pass on a part makes one of this name."""
    written: frozenset[str] = frozenset()
    """Operators and names of all nodes in the file, including those that were folded or left out."""

    @cached_property
    def producers(self) -> Mapping[str, Unit]:
        """The unit that writes each tensor, on the host or within the target."""
        inside = {name: unit for unit in self.units for node in unit.nodes for name in node.outputs}
        return {**inside, **{name: unit for unit in self.units for name in unit.writes}}

    @cached_property
    def by_name(self) -> Mapping[str, Unit]:
        """The units by name."""
        return {unit.name: unit for unit in self.units}


def survey(
    model: onnx.ModelProto,
    folder: Path | None,
    shapes: Mapping[str, tuple[int, ...]],
    bound: Mapping[str, Array] | None = None,
) -> Network:
    """The units of a model. bound: values of inputs that are treated as constants.

    Raises ModelError if the model is malformed or an input stays dynamic.
    """
    written = _written(model)
    model, opset = importable(model, folder)
    avoided: set[str] = set()
    while True:
        found = _Survey(model, folder, opset, avoided)
        found.bind(bound or {})
        wanted = found.run(shapes)
        if wanted <= avoided:
            return replace(found.network(), written=written)
        avoided |= wanted


def _written(model: onnx.ModelProto) -> frozenset[str]:
    """The operators and names of all nodes, including those in branches and bodies."""
    return frozenset({text for node in within(model.graph.node) for text in (node.op_type, node.name)} - {""})


class _Survey:
    """One walk over the nodes. avoided: units whose importers omit an output that is read.

    Of a model whose opset is unknown the host runs everything.
    """

    def __init__(
        self, model: onnx.ModelProto, folder: Path | None, opset: int | NpucError, avoided: Collection[str]
    ) -> None:
        self.model, self.avoided = model, avoided
        self.unknown = opset.problems[0] if isinstance(opset, NpucError) else None
        self.to = Builder(opset if isinstance(opset, int) else OLDEST_OPSET, folder, fold_weights=True)
        self.units: list[Unit] = []
        self.protos: dict[str, TypeProto] = {}
        self.opsets = list(model.opset_import)
        constants_into(self.to, model.graph)

    @cached_property
    def _by_onnxruntime(self) -> Mapping[str, TypeProto]:
        return types_by_onnxruntime(self.model, self.to.folder, self.given)

    def bind(self, values: Mapping[str, Array]) -> None:
        """Makes inputs constant."""
        for name, value in values.items():
            self.to.add_constant(name, value)

    def run(self, shapes: Mapping[str, tuple[int, ...]]) -> set[str]:
        """Surveys every node; returns the units whose importers omit an output that is read."""
        graph, to = self.model.graph, self.to
        declared = {each.name: each.type for each in (*graph.value_info, *graph.input)}
        self.inputs = [each.name for each in graph.input if each.name not in to.constants]
        typed = onnx.GraphProto(name=graph.name, node=graph.node)
        typed.input.extend(
            each for each in graph.input if _code(each.type) in HOST_TYPES and not _is_empty(each.type)
        )
        self.given = input_types(typed, to.constants, shapes, HOST_TYPES)
        to.take_inputs(self.given)
        self.protos |= {name: declared[name] for name in self.inputs}
        self.protos |= {name: proto_of(found) for name, found in to.types.items()}
        to.reserve([*self.inputs, *(name for node in graph.node for name in node.output)])
        missing: set[str] = set()
        with np.errstate(all="ignore"):
            known = {*to.constants, *self.inputs}
            for name, node in ordered(graph, to, known):
                missing |= self._node(name, node, declared)
        missing |= {to.absent[name].name for name in (each.name for each in graph.output) if name in to.absent}
        return missing

    def network(self) -> Network:
        """The result of the survey."""
        to, graph = self.to, self.model.graph
        outputs = {each.name: to.aliases.get(each.name, each.name) for each in graph.output}
        return Network(
            graph.name,
            _live((*self.units, *self._constant_outputs(outputs)), outputs.values()),
            tuple(self.inputs),
            outputs,
            to.constants,
            to.types,
            self.protos,
            tuple(self.opsets),
            self.model.ir_version,
            to.names.taken(),
        )

    def _constant_outputs(self, outputs: dict[str, str]) -> Iterator[Unit]:
        """Nodes for the outputs that are constant."""
        for output, name in list(outputs.items()):
            if name in self.to.constants:
                reason, remedy = "the output is a constant", "remove it from the model's outputs"
                outputs[output] = given = self.to.fresh(f"{output}/given")
                proto = helper.make_node("Identity", [name], [given])
                self.protos[given] = proto_of(self.to.types[name])
                problem = Problem("E202", reason, node=output, op="Constant", tensor=output, remedy=remedy)
                yield Unit(self.to.node_name(f"{output}/given"), proto, (), problem)

    def _node(self, name: str, node: onnx.NodeProto, declared: Mapping[str, TypeProto]) -> set[str]:
        """Adds a node's unit, constants or alias; returns the units that must compute more of their outputs."""
        to = self.to
        proto = renamed(node, to.aliases)
        reads = list(dict.fromkeys(captured(proto)))
        wanted = {to.absent[each].name for each in reads if each in to.absent}
        if wanted:
            self._foreign(name, proto, declared, None)
            return wanted
        if self.unknown is not None:
            self._foreign(name, proto, declared, self.unknown)
            return set()
        unknown = [each for each in reads if each not in to.types]
        if name in self.avoided or unknown:
            self._foreign(name, proto, declared, self._unknown(name, proto, unknown))
            return set()
        if node.op_type == "If" and node.domain in ONNX_DOMAINS and proto.input[0] in to.constants:
            return self._branch(name, proto, declared)
        for each in prepared(proto, to):
            self._node(to.node_name(f"{name}/{each.op_type}"), each, declared)
        before = len(to.nodes)
        try:
            import_node(name, proto, to)
        except NpucError as error:
            if beyond_limits(error) or error.problems[0].code == AMBIGUOUS:
                raise
            del to.nodes[before:]
            self._foreign(name, proto, declared, error.problems[0])
            return set()
        made = tuple(to.nodes[before:])
        self.protos |= {each: proto_of(to.types[each]) for each in proto.output if each in to.types}
        if made:
            self.units.append(Unit(name, proto, made, None))
        return set()

    def _branch(self, name: str, proto: onnx.NodeProto, declared: Mapping[str, TypeProto]) -> set[str]:
        """Surveys the nodes of the branch chosen by a constant condition."""
        graphs = {each.name: each.g for each in proto.attribute}
        node = OnnxNode(name, "If", tuple(proto.input), tuple(proto.output), graphs, self.to.opset)
        try:
            chosen = branch_of(node, self.to)
        except (NpucError, KeyError):
            self._foreign(name, proto, declared, None)
            return set()
        missing: set[str] = set()
        for inner, each in inlined(node, chosen, self.to):
            missing |= self._node(inner, each, declared)
        return missing

    def _unknown(self, name: str, proto: onnx.NodeProto, unknown: Sequence[str]) -> Problem:
        """The reason why a node cannot be imported even though no importer refused it."""
        if not unknown:
            remedy = "compute it by operators of its own"
            reason, limit = "an output beside the first is read", "the first output only"
            return Problem("E202", reason, name, proto.op_type, limit=limit, remedy=remedy)
        reason = "the shape of what it reads is known at run time only"
        remedy = "make the shape static, for instance by simplifying the model for fixed shapes"
        return Problem("E106", reason, name, proto.op_type, unknown[0], remedy=remedy)

    def _foreign(
        self, name: str, proto: onnx.NodeProto, declared: Mapping[str, TypeProto], problem: Problem | None
    ) -> None:
        """Adds a node as it is, with the known types of its results."""
        to = self.to
        for each in proto.output:
            to.constants.pop(each, None)
            to.aliases.pop(each, None)
            to.types.pop(each, None)
            to.producers.pop(each, None)
        found = result_types(proto, self.protos, to.constants, self.opsets)
        untyped = [each for each in filter(None, proto.output) if each not in found and each not in declared]
        if proto.domain not in ONNX_DOMAINS and untyped:
            found = {**self._by_onnxruntime, **found}
        for each in filter(None, proto.output):
            proto_type = found.get(each) or declared.get(each)
            if proto_type is not None:
                self.protos[each] = proto_type
                known = static(proto_type)
                if known is not None:
                    to.types[each] = known
        if proto.op_type == "Where" and proto.domain in ONNX_DOMAINS:
            to.producers[proto.output[0]] = Node("Where", tuple(proto.input), tuple(proto.output))
        told = problem or Problem("E201", "the operator is not known to npuc")
        where = replace(told, node=name, op=proto.op_type)
        self.units.append(Unit(name, proto, (), where))


def _live(units: Sequence[Unit], outputs: Iterable[str]) -> tuple[Unit, ...]:
    """The units with a result that is read; of some, only the shape was, which is a constant by now."""
    read = set(outputs)
    found: list[Unit] = []
    for unit in reversed(units):
        inside = (name for node in unit.nodes for name in node.outputs)
        if not read.isdisjoint((*unit.writes, *inside)):
            read.update(unit.reads, unit.imported)
            found.append(unit)
    return tuple(reversed(found))


def _is_empty(found: TypeProto) -> bool:
    """Whether a dimension is declared as 0."""
    dims = found.tensor_type.shape.dim
    return any(each.WhichOneof("value") == "dim_value" and not each.dim_value for each in dims)


def _code(found: TypeProto) -> int:
    """The element type of a tensor; 0 for anything else."""
    return found.tensor_type.elem_type if found.WhichOneof("value") == "tensor_type" else 0
