"""The compile report of words that the compiler did not write: cycles, certificates and memories from the words.

The words do not determine names, nodes, multiply-accumulates, and error bounds of tables and accumulators. The
latter are kept from the old report as long as a layer's words do as much work as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from npuc.frozen import frozen
from npuc.program import Program
from npuc.targets.easynpu.layers.tiling import Tiling, best_tile, certificate_of, costs
from npuc.targets.easynpu.machine.listing import mnemonic
from npuc.targets.easynpu.machine.memory import Map, feature_words
from npuc.targets.easynpu.machine.rearrangement import written_words
from npuc.targets.easynpu.program.artefact import Contents, Produced
from npuc.targets.easynpu.program.report import multiplied, time
from npuc.targets.easynpu.simulate.walk import Chain, segments_of
from npuc.view import totals

Report = Mapping[str, Any]
Key = tuple[str, ...]
UNPROVED = {"samples": 0, "bit_exact": None, "model": None}
CHOSEN = "tile_by_hand"
"""Set in the row of a layer whose tile is not the best of the enumeration."""


@frozen
class _Words:
    """The chains of a layer, in order."""

    chains: tuple[Chain, ...]

    @property
    def work(self) -> int:
        """Multiply-accumulates of its convolutions."""
        return sum(multiplied(stage.word) for chain in self.chains for stage in chain.stages)

    @property
    def tilings(self) -> list[Tiling]:
        """The certificate of every chain."""
        return [_tiling(chain) for chain in self.chains]

    @property
    def first(self) -> int:
        """The number of its first instruction, extension words included."""
        head = self.chains[0]
        return head.stages[-1].number + 1 - head.words


def recount(before: Program, after: Program) -> dict[str, Any]:
    """The report of `after`, whose words are new and whose own report is still that of `before`."""
    old, contents = before.manifest["report"], Contents.of(after.manifest)
    had = _rows(before, old)
    rows = [_row(key, words, had.get(key), contents) for key, words in _layers(after).items()]
    total = totals(rows)
    peaks = _peaks(after)
    overlapped = sum(
        segment.overlapped_cycles(sum(chain.cycles for chain in chains), contents.machine)
        for segment, chains in segments_of(after)
    )
    images = [image for segment in contents.segments for image in segment.images if image.memory == "itcm"]
    traffic = {
        **old["host_traffic"],
        "instruction_bytes": sum(image.words for image in images) * contents.machine.word_bytes,
        "initial_bytes": sum(image.words for image in contents.init.images) * contents.machine.word_bytes,
        "computed_macs": sum(words.work for words in _layers(after).values()),
    }
    return {
        **old,
        "instructions": len(contents.instructions),
        **total,
        "padding_cycles": sum(row["padding_cycles"] for row in rows),
        "memory": {
            name: {
                **use,
                "peak_bytes": peaks[name] * contents.machine.word_bytes,
                "lower_bound_bytes": min(use["lower_bound_bytes"], peaks[name] * contents.machine.word_bytes),
            }
            for name, use in old["memory"].items()
        },
        "host_traffic": {**traffic, **time(total["cycles"], overlapped, traffic, contents.machine)},
        "layers": rows,
        **({"proof": UNPROVED} if "proof" in old else {}),
    }


def _layers(program: Program) -> dict[Key, _Words]:
    """The chains of every layer: those that compute the same tensors, or have the same nodes."""
    table = Contents.of(program.manifest).instructions
    found: dict[Key, list[Chain]] = {}
    for unit in _units(program):
        found.setdefault(_key(unit, table), []).extend(unit)
    return {key: _Words(tuple(chains)) for key, chains in found.items()}


def _units(program: Program) -> Iterator[list[Chain]]:
    """Chains, grouped if they pass on psums to one another."""
    unit: list[Chain] = []
    for _, chains in segments_of(program):
        for chain in chains:
            unit.append(chain)
            if not chain.stages[-1].leaves:
                yield unit
                unit = []
    if unit:
        yield unit


def _key(unit: Sequence[Chain], table: Sequence[Produced]) -> Key:
    """The key of a layer: its tensors, or its nodes, or its first instruction."""
    entries = [table[stage.number] for chain in unit for stage in chain.stages]
    tensors = dict.fromkeys(each.tensor for each in entries if each.tensor)
    nodes = dict.fromkeys(node for each in entries for node in each.nodes)
    return (*tensors,) or ("", *nodes) if tensors or nodes else ("", f"instruction {unit[0].stages[-1].number}")


def _rows(program: Program, report: Report) -> dict[Key, tuple[Report, int]]:
    """The report's row of every layer, and the work of its words."""
    known = {row["instruction"]: row for row in report["layers"]}
    return {
        key: (known[words.first], words.work) for key, words in _layers(program).items() if words.first in known
    }


def _row(key: Key, words: _Words, had: tuple[Report, int] | None, contents: Contents) -> dict[str, Any]:
    """The report fields of a layer, and the certificate of its first tile."""
    machine, tilings, head = contents.machine, words.tilings, words.chains[0]
    kept = _keep_values(words, had)
    nodes = dict.fromkeys(
        node for chain in words.chains for stage in chain.stages for node in contents.produced(stage.number).nodes
    )
    return {
        "name": had[0]["name"] if had else next((each for each in key if each), str(words.first)),
        "op": "+".join(mnemonic(stage.word).partition(".")[0] for stage in head.stages),
        "nodes": list(had[0]["nodes"] if had else nodes),
        "macs": kept["macs"],
        **costs(tilings, machine),
        "ideal_cycles": kept["macs"] / machine.macs_per_cycle,
        "instruction": words.first,
        "weight_words": head.weight_words,
        "table_error_lsb": kept["table_error_lsb"],
        "accumulator_bound": kept["accumulator_bound"],
        "padding_cycles": kept["padding_cycles"],
        **({CHOSEN: True} if (tilings[0].y, tilings[0].x) != _best(head, tilings[0]) else {}),
    }


def _keep_values(words: _Words, had: tuple[Report, int] | None) -> dict[str, Any]:
    """Values kept from the network's row if the words do the same work; else those that the words imply."""
    if had is not None and had[1] == words.work:
        return {name: had[0][name] for name in ("macs", "table_error_lsb", "accumulator_bound", "padding_cycles")}
    return {"macs": words.work, "table_error_lsb": None, "accumulator_bound": None, "padding_cycles": 0}


def _tiling(chain: Chain) -> Tiling:
    """The certificate of a chain's tile. A reshape on its own has no tiles."""
    word = chain.stages[0].reshape
    if word is not None:
        bus = feature_words(word.Ci, word.Hi, word.Wi) + written_words(word)
        return Tiling(word.Ho, word.Wo, chain.cycles, 1, chain.cycles, None, 0, bus, bus)
    head = chain.parts[0]
    undivided = chain.stages[0].takes or chain.stages[-1].leaves
    return certificate_of(chain.parts, (head.y, head.x), chain.machine, chain.followers, undivided=undivided)


def _best(chain: Chain, tiling: Tiling) -> tuple[int, int]:
    """The tile (y, x) that the compiler would choose; for a reshape, which has no choice, its own."""
    if chain.stages[0].reshape is not None:
        return tiling.y, tiling.x
    undivided = chain.stages[0].takes or chain.stages[-1].leaves
    return best_tile(chain.parts, chain.machine, chain.followers, undivided=undivided)[0]


def _peaks(program: Program) -> dict[str, int]:
    """The peak words of every memory.

    With explicit addresses, up to the highest address; without, the maps that a chain reads and writes together.
    """
    peaks: dict[str, int] = dict.fromkeys(("fmap", "skip", "weight", "itcm"), 0)
    for segment, chains in segments_of(program):
        for image in (*segment.images, *segment.images_ahead):
            peaks[image.memory] = max(peaks[image.memory], image.address + image.words)
        explicit = any(stage.operands for chain in chains for stage in chain.stages)
        for chain in chains:
            maps = [*chain.read, *(each for stage in chain.stages for each in chain.written(stage))]
            if not explicit:
                both = {each.place.base: each for each in maps if each.place.memory == "fmap"}
                peaks["fmap"] = max(peaks["fmap"], sum(_extent(each) for each in both.values()))
            for each in maps:
                if explicit or each.place.memory == "skip":
                    peaks[each.place.memory] = max(peaks[each.place.memory], each.span[1] + 1)
        for each in (move.map for move in (*segment.loads, *segment.loads_ahead, *segment.stores)):
            if explicit or each.place.memory == "skip":
                peaks[each.place.memory] = max(peaks[each.place.memory], each.span[1] + 1)
    return peaks


def _extent(each: Map) -> int:
    first, last = each.span
    return last + 1 - first
