"""Bodies in place of nodes that call them: those of a model's functions, and of If with a constant condition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import onnx

from npuc.errors import ModelError
from npuc.frontend.builder import NodeBuilder, OnnxNode
from npuc.frontend.foreign import rename_inputs as with_inputs
from npuc.frontend.upgrading import ONNX_DOMAINS
from npuc.onnx_files.external_data import array_of
from npuc.onnx_files.subgraphs import nodes_in
from npuc.system.budget import NODE_BYTES, take

DEEPEST = 64
"""The deepest nesting of calls."""

Key = tuple[str, str, str]
Functions = Mapping[Key, onnx.FunctionProto]


def expect_small(model: onnx.ModelProto) -> None:
    """Takes the memory for the nodes from the budget.

    Raises ModelError: E110 if it exceeds what is left, E104 for functions that are recursive or nested too deeply.
    """
    functions = {_key(each): each for each in model.functions}
    take(_Expansion(functions).size(model.graph.node, 0), "a graph of all nodes")


class _Expansion:
    """Sizes of functions, each computed once, since bodies may call others many times."""

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        self.sizes: dict[Key, int] = {}

    def size(self, nodes: Iterable[onnx.NodeProto], depth: int) -> int:
        """Bytes of nodes, including their subgraphs and the functions that they call."""
        return sum(
            NODE_BYTES + node.ByteSize() + self._call_size((node.domain, node.op_type, node.overload), depth)
            for node in nodes_in(nodes)
        )

    def _call_size(self, key: Key, depth: int) -> int:
        if key not in self.functions:
            return 0
        if depth > DEEPEST:
            reason = "functions call themselves, or each other too deeply"
            raise ModelError("E104", reason, op=key[1], limit=f"{DEEPEST} calls within calls")
        if key not in self.sizes:
            self.sizes[key] = self.size(self.functions[key].node, depth + 1)
        return self.sizes[key]


def expect_own_names(model: onnx.ModelProto) -> None:
    """Raises ModelError (E104) for a function with the name of an operator, ONNX's or onnxruntime's own.

    onnxruntime ignores its body.
    """
    versions = {_domain(each.domain): each.version for each in model.opset_import}
    for each in model.functions:
        domain = _domain(each.domain)
        defined = domain in versions and onnx.defs.has(each.name, versions[domain], domain)
        if defined or (domain and (domain, each.name) in _of_onnxruntime()):
            whose = "ONNX" if defined else domain
            reason = (
                f"a function has the name of the {whose} operator {each.name}: runtimes differ in which they run"
            )
            raise ModelError("E104", reason, op=each.name, remedy="give the function a name or domain of its own")


@cache
def _of_onnxruntime() -> frozenset[tuple[str, str]]:
    """Domain and name of every operator that the installed onnxruntime defines."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    return frozenset((each.domain, each.name) for each in get_all_operator_schema())


def with_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all attributes in its calls of functions: ONNX's inliner forgets those left to defaults."""
    defaults = {_key(each): each.attribute_proto for each in model.functions if each.attribute_proto}
    if not defaults:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for nodes in (made.graph.node, *(each.node for each in made.functions)):
        for node in nodes_in(nodes):
            given = {each.name for each in node.attribute}
            found = defaults.get((node.domain, node.op_type, node.overload), ())
            node.attribute.extend(each for each in found if each.name not in given)
    return made


def with_one_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with functions that import its own opsets: ONNX's inliner leaves out the others without a word.

    Raises ModelError (E103) for a function with an operator that another opset defines differently.
    """
    versions = {_domain(each.domain): each.version for each in model.opset_import}
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for function in made.functions:
        for own in function.opset_import:
            version = versions.get(_domain(own.domain))
            if version is None:
                made.opset_import.append(own)
                versions[_domain(own.domain)] = own.version
            elif version != own.version:
                _expect_same(function, own, version)
                own.version = version
    return made


def _expect_same(function: onnx.FunctionProto, own: onnx.OperatorSetIdProto, version: int) -> None:
    """Raises ModelError (E103) if the function has an operator with another definition in this version."""
    for node in nodes_in(function.node):
        if _domain(node.domain) == _domain(own.domain):
            first, other = (_since(node, each) for each in (own.version, version))
            if first != other:
                raise ModelError(
                    "E103",
                    f"the function {function.name} is of opset {own.version}, the model of opset {version}, and"
                    f" {node.op_type} differs between them",
                    op=function.name,
                    limit="one opset for the model and its functions",
                    remedy=f"write the function with the operators of opset {version}",
                )


def _since(node: onnx.NodeProto, version: int) -> int | None:
    """The opset that brought an operator's definition; None for one that ONNX does not define."""
    try:
        return onnx.defs.get_schema(node.op_type, version, _domain(node.domain)).since_version
    except onnx.defs.SchemaError:
        return None


def _domain(name: str) -> str:
    return "" if name in ONNX_DOMAINS else name


def _key(function: onnx.FunctionProto) -> Key:
    return function.domain, function.name, function.overload


def branch_of(node: OnnxNode, to: NodeBuilder) -> onnx.GraphProto:
    """The branch chosen by a constant condition; raises E202 for a condition computed at run time."""
    if node.inputs[0] not in to.constants:
        remedy = "export one branch, or bind the scalar input that chooses it (--bind INPUT=VALUE)"
        raise node.support_error("the condition is computed at run time", remedy, limit="constant conditions")
    which = "then_branch" if to.value(node, 0).any() else "else_branch"
    if which not in node.attrs:
        raise node.bad(f"the attribute {which!r} is missing")
    branch: onnx.GraphProto = node.attrs[which]
    if len(branch.output) != len(node.outputs):
        raise node.bad(f"the branch has {len(branch.output)} outputs, the node {len(node.outputs)}")
    return branch


def inline_branch(
    node: OnnxNode, branch: onnx.GraphProto, to: NodeBuilder
) -> Iterator[tuple[str, onnx.NodeProto]]:
    """The branch's nodes with their names. Its tensors get new names; its outputs get those of the If."""
    inside = [name for each in branch.node for name in each.output if name]
    renamed = {name: to.fresh(f"{node.name}/{name}") for name in (*inside, *(t.name for t in branch.initializer))}
    for tensor in branch.initializer:
        to.add_constant(renamed[tensor.name], array_of(tensor, to.folder))
    for at, each in enumerate(branch.node):
        copy = with_inputs(each, renamed)
        copy.output[:] = [renamed.get(name, name) for name in copy.output]
        yield to.node_name(f"{node.name}/{each.name or f'{each.op_type}_{at}'}"), copy
    for value, name in zip(branch.output, node.outputs, strict=True):
        source = renamed.get(value.name, value.name)
        yield to.node_name(f"{node.name}/{name}"), onnx.helper.make_node("Identity", [source], [name])
