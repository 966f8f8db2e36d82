"""Tensors within host regions: the nodes that write and read them, and those that keep them on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from npuc.errors import NEEDLESS, ArtefactError
from npuc.frozen import frozen
from npuc.program import Program
from npuc.reports.naming import regions_of

Report = Mapping[str, Any]


@frozen
class Hosted:
    """A node of a host region. why: its group of the report's reasons."""

    node: str
    op: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    path: str
    why: Report


def hosted(program: Program) -> list[Hosted]:
    """The nodes of all regions, in order. Raises ArtefactError (E502) if a region is no ONNX model."""
    found: list[Hosted] = []
    for region in regions_of(program.report):
        path = region["path"]
        if path not in program.files:
            continue
        why = {node: each for each in region["reasons"] for node in each["nodes"]}
        for node in _nodes(path, bytes(program.files[path])):
            if node.name in why:
                reads, writes = (tuple(filter(None, names)) for names in (node.input, node.output))
                found.append(Hosted(node.name, node.op_type, reads, writes, path, why[node.name]))
    return found


def _nodes(path: str, data: bytes) -> Sequence[onnx.NodeProto]:
    try:
        return onnx.ModelProto.FromString(data).graph.node
    except DecodeError:
        reason = f"'{path}': it is not an ONNX model"
        raise ArtefactError("E502", reason) from None


def tensors(found: Sequence[Hosted], asked: str, nodes: set[str]) -> list[dict[str, Any]]:
    """The tensors that these nodes write in a region; of a tensor that is asked for, only this one."""
    own = [each for each in found if each.node in nodes]
    names = [name for each in own for name in each.writes]
    return [
        _tensor(found, each, name) for each in own for name in each.writes if asked not in names or asked == name
    ]


def _tensor(found: Sequence[Hosted], writer: Hosted, name: str) -> dict[str, Any]:
    readers = [each for each in found if name in each.reads]
    return {
        "tensor": name,
        "path": writer.path,
        "from": _told(writer),
        "to": [_told(each) for each in readers],
        "kept_by": [_told(each) for each in _keepers(found, [writer, *readers])],
    }


def _told(node: Hosted) -> dict[str, Any]:
    return {"node": node.node, "op": node.op, **{key: node.why[key] for key in ("code", "reason", "remedy")}}


def _keepers(found: Sequence[Hosted], nodes: Sequence[Hosted]) -> list[Hosted]:
    """The nodes that the NPU does not run, reached from these over nodes that merely lie between them."""
    reached: dict[str, Hosted] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.node in reached:
            continue
        reached[node.node] = node
        if node.why["code"] == NEEDLESS:
            beside = {*node.reads, *node.writes}
            waiting += [
                each
                for each in found
                if each.path == node.path and not beside.isdisjoint((*each.reads, *each.writes))
            ]
    return [each for each in found if each.node in reached and each.why["code"] != NEEDLESS]
