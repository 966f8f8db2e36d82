"""The account of a model, made of its parts and their programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from npuc.account import BORDER, FOLDED, HOST, NPU, REMOVED, SPLIT, Entry
from npuc.errors import HOST_STEP, Problem
from npuc.frontend.model import FileNode, ImportedNode
from npuc.program import Program
from npuc.regions import graphs
from npuc.regions.artefact import part_path, region_path
from npuc.regions.partition import Part
from npuc.regions.planning import Key, ModelPlan, explain_absorbed, key_of, read_outside
from npuc.regions.running import part_tensor

TO_NPU = "cut the network before it, or choose a target that has it"
"""What to do about a node that a target's own program leaves to the host."""
WIDTHS = {"int8": 1, "int16": 2, "fp16": 2}
"""Bytes of an element, by precision; 4 for others."""


class _PartAccount:
    """What the program of an NPU part says of the file's nodes.

    number: of the part, if it is one of several steps. first: the number of layers before it.
    """

    def __init__(self, program: Program, number: int | None, first: int) -> None:
        self.number = number
        self.report: Mapping[str, Any] = program.manifest["report"]
        self.graph: Mapping[str, Any] = json.loads(program.evidence["graph.json"])
        self.precision = program.precision
        self.layers: dict[str, list[int]] = {}
        for at, layer in enumerate(self.report["layers"], first):
            for node in layer["nodes"]:
                self.layers.setdefault(node, []).append(at)
        steps: list[Mapping[str, Any]] = program.manifest.get("steps", [])
        self.steps = [each for each in steps if each.get("kind", HOST) == HOST]
        self.loaded = {each["tensor"] for step in steps for each in step.get("loads", ())}
        self.given = {port.name for port in program.inputs}
        self.converted = {
            step["outputs"][0]: step for step in self.steps if step.get("conversion") and step["inputs"]
        }
        self.by_host = {name for step in self.steps for name in step["outputs"]}
        self.free = {node for layer in self.graph["layers"] for node in layer["nodes"]}

    def steps_of(self, node: str) -> list[Mapping[str, Any]]:
        """The host's steps of a node."""
        return [each for each in self.steps if each["node"] == node]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of tensors as the machine stores them, by their names here and in the float graph."""
        found: dict[str, int] = {}
        for name, each in self.graph["tensors"].items():
            narrow = each.get("scale") is not None or self.precision == "fp16"
            size = WIDTHS.get(self.precision, 4) if narrow else 4
            for extent in each["shape"]:
                size *= extent
            found[each["float"]] = found[name] = size
        return found

    def crossing(self, steps: Sequence[Mapping[str, Any]]) -> tuple[set[str], set[str]]:
        """The tensors that the machine stores for these steps, and those that it loads from them."""
        read = {self._before_conversion(name) for step in steps for name in step["inputs"]}
        written = {name for step in steps for name in step["outputs"]}
        into = {name for step in self.steps for name in step["outputs"] if self._from(name) & written}
        return read - self.by_host - self.given, into & self.loaded

    def _before_conversion(self, name: str) -> str:
        """The tensor before the conversions that made this one."""
        while name in self.converted:
            name = self.converted[name]["inputs"][0]
        return name

    def _from(self, name: str) -> set[str]:
        """A tensor, and those that only conversions turn into it."""
        found = {name}
        while name in self.converted:
            name = self.converted[name]["inputs"][0]
            found.add(name)
        return found

    def lives(self, tensor: str) -> str:
        """The name in this part's evidence of a tensor of the model; empty if it has none."""
        return self._named.get(tensor, "")

    @cached_property
    def _named(self) -> dict[str, str]:
        names = {each["float"]: name for name, each in self.graph["tensors"].items()}
        return names if self.number is None else {old: part_tensor(self.number, new) for old, new in names.items()}


def account_of(
    plan: ModelPlan, parts: Sequence[Part], programs: Mapping[Key, Program], *, whole: bool
) -> tuple[Entry, ...]:
    """What became of each node of the model's file.

    programs: of the NPU parts. whole: whether the only part's program is that of the model.
    """
    return _Account(plan, parts, programs, whole=whole).entries()


class _Account:
    def __init__(
        self, plan: ModelPlan, parts: Sequence[Part], programs: Mapping[Key, Program], *, whole: bool
    ) -> None:
        self.plan, self.network = plan, plan.network
        outside = read_outside(plan.network, parts)
        self.part_of: dict[str, _PartAccount] = {}
        """By the name of a node on the NPU."""
        self.on_host: set[str] = set()
        """The names of nodes in host regions."""
        self.paths: dict[str, str] = {}
        self.parts: list[_PartAccount] = []
        numbers, first = {True: 0, False: 0}, 0
        for part in parts:
            number = numbers[part.on_npu]
            numbers[part.on_npu] += 1
            if not part.on_npu:
                self.on_host.update(part.blocks)
                self.paths |= dict.fromkeys(part.blocks, region_path(number))
                continue
            found = _PartAccount(programs[key_of(self.network, outside, part)], None if whole else number, first)
            first += len(found.report["layers"])
            self.parts.append(found)
            self.part_of |= dict.fromkeys(part.blocks, found)
            self.paths |= {} if whole else dict.fromkeys(part.blocks, part_path(number))
        self.layers = [layer for part in self.parts for layer in part.report["layers"]]
        self.macs = {
            key: sum(graphs.node_macs(self.network, each) for each in nodes if self._runs(each))
            for key, nodes in self.network.by_source.items()
        }
        npu = [self.network.by_name[name] for name in self.part_of]
        self.stored = {name: part for node in npu for part in [self.part_of[node.name]] for name in node.made}
        self.wanted = {name for node in npu for name in node.imported}

    def entries(self) -> tuple[Entry, ...]:
        """An entry for each node of the file."""
        found = [self._entry(node) for node in self.network.file_nodes]
        shown = {each.node for each in found if each.layers}
        return tuple(replace(each, into=tuple(name for name in each.into if name in shown)) for each in found)

    def _entry(self, node: FileNode) -> Entry:
        made = self.network.by_source.get(node.key, ())
        parts = list({id(part): part for each in made if (part := self.part_of.get(each.name))}.values())
        layers = tuple(at for part in parts for at in part.layers.get(node.key, ()))
        steps = [(part, part.steps_of(node.key)) for part in parts]
        host = [each for each in made if each.name in self.on_host]
        place, because, into = self._place(node, made, parts, layers)
        left = [*_host_reasons(steps)]
        problems = tuple(dict.fromkeys([*self._problems(host), *left]))
        bytes_in, bytes_out = self._crossing(host, steps)
        macs = self.macs.get(node.key, 0)
        away = sum(graphs.node_macs(self.network, each) for each in host)
        return Entry(
            node.key, node.op, (SPLIT if layers else HOST) if problems else place, "" if problems else because,
            into, tuple(dict.fromkeys(self.paths[each.name] for each in made if each.name in self.paths)),
            layers, problems, macs, 0 if left and not layers else macs - away,
            round(sum(self._share(node.key, at) for at in layers), 3), bytes_in, bytes_out, node.reads,
            {name: self._now(name) for name in node.writes}, node.within,
        )  # fmt: skip

    def _runs(self, node: ImportedNode) -> bool:
        return node.name in self.part_of or node.name in self.on_host

    def _place(
        self, node: FileNode, made: Sequence[ImportedNode], parts: Sequence[_PartAccount], layers: Sequence[int]
    ) -> tuple[str, str, tuple[str, ...]]:
        """Where a node runs, why nothing of its own computes it, and the nodes with which it is computed."""
        network = self.network
        if not made:
            if node.writes and all(name in network.constants for name in node.writes):
                return FOLDED, "its result is a constant, known when the model is compiled", ()
            same = [f"'{name}' is '{network.aliases[name]}'" for name in node.writes if name in network.aliases]
            return REMOVED, f"it changes nothing: {', '.join(same)}" if same else "nothing reads its result", ()
        if layers:
            others = (name for at in layers for name in self.layers[at]["nodes"] if name != node.key)
            return NPU, "", tuple(dict.fromkeys(others))
        if any(part.steps_of(node.key) for part in parts):
            return BORDER, "it only changes the layout of what enters or leaves the program", ()
        if any(node.key in part.free for part in parts):
            return NPU, "it takes no instruction of its own", ()
        if not parts:
            return REMOVED, "nothing reads its result", ()
        done = [each for part in parts for each in part.graph.get("rewrites", ()) if node.key in each["nodes"]]
        with_it = dict.fromkeys(name for each in done for name in each["nodes"] if name != node.key)
        names = dict.fromkeys(each["pass"] for each in done)
        return (
            REMOVED,
            f"left out by {', '.join(names)}" if names else "the machine needs nothing for it",
            tuple(with_it),
        )

    def _problems(self, host: Sequence[ImportedNode]) -> Iterator[Problem]:
        for node in host:
            found = self.plan.denied.get(node.name) or explain_absorbed(node)
            yield replace(found, remedy=found.help)

    def _share(self, key: str, at: int) -> float:
        """A node's share of a layer's cycles."""
        layer = self.layers[at]
        macs = {name: self.macs.get(name, 0) for name in layer["nodes"]}
        whole = sum(macs.values())
        return (layer["cycles"] or 0) * (macs[key] / whole if whole else 1 / len(macs))

    def _crossing(
        self, host: Sequence[ImportedNode], steps: Sequence[tuple[_PartAccount, Sequence[Mapping[str, Any]]]]
    ) -> tuple[int, int]:
        """The bytes that the host takes from the NPU for a node, and those that it gives back."""
        read = {name for node in host for name in node.reads if name in self.stored}
        written = {name for node in host for name in node.writes if name in self.wanted}
        size_in = sum(self._size(name, self.stored[name]) for name in read)
        size_out = sum(self._size(name, part) for name in written for part in self._readers(name))
        for part, own in steps:
            taken, given = part.crossing(own)
            size_in += sum(self._size(name, part) for name in taken)
            size_out += sum(self._size(name, part) for name in given)
        return size_in, size_out

    def _readers(self, name: str) -> list[_PartAccount]:
        """The NPU parts that read a tensor of the host."""
        return [part for part in self.parts if name in part.given]

    def _size(self, name: str, part: _PartAccount) -> int:
        return part.sizes.get(name) or graphs.size_bytes(self.network, name)

    def _now(self, name: str) -> str:
        """The name under which the program has a tensor's value; empty if it has none."""
        network = self.network
        live = name if name in network.producers else network.aliases.get(name, name)
        stored = next((found for part in self.parts if (found := part.lives(live))), "")
        outside = live in network.inputs or live in network.outputs
        made = network.producers.get(live)
        hosted = made is not None and made.name in self.on_host and live in made.writes
        return stored or (live if outside or hosted else "")


def _host_reasons(steps: Sequence[tuple[_PartAccount, Sequence[Mapping[str, Any]]]]) -> Iterator[Problem]:
    """Why the target's own program leaves steps to the host."""
    for _, own in steps:
        for each in own:
            if not each.get("conversion"):
                yield Problem(HOST_STEP, each["reason"], each["node"], each["op"], remedy=TO_NPU)
