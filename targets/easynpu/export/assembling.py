"""A program with the words of a listing instead of its own, checked against its machine and reported anew.

The rules of the chip models for a program's words, checked without running it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from npuc.errors import ArtefactError, NpucError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.program import Program
from npuc.storage.bits import encode, places
from npuc.storage.files import decode
from npuc.targets.easynpu.export.recounting import recount
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine import listing as lines
from npuc.targets.easynpu.machine.chains import ChainStage, check, expect_kept, word_error
from npuc.targets.easynpu.machine.isa import Instruction, Layer, Reshape
from npuc.targets.easynpu.machine.memory import Map
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import kernel_extent
from npuc.targets.easynpu.program.artefact import Contents
from npuc.targets.easynpu.simulate.running import Runner
from npuc.targets.easynpu.simulate.simulator import load_images, load_weights
from npuc.targets.easynpu.simulate.walk import Chain, segments_of

ZERO = "zero"
"""The meaning of a reserved field."""


@dataclass
class Filled:
    """What has been written so far of a machine's memories: a bool for every word."""

    fmap: Array
    skip: Array
    weight: Array
    itcm: tuple[Instruction, ...] = ()

    @classmethod
    def of(cls, machine: Machine) -> Filled:
        """A machine at power-up."""
        fmap, skip, weight = (
            np.zeros(machine.capacity_words(name), np.bool_) for name in ("fmap", "skip", "weight")
        )
        return cls(fmap, skip, weight)

    def memory(self, each: Map) -> Array:
        """The words of the DTCM that a map is in."""
        return self.fmap if each.place.memory == "fmap" else self.skip

    def load_weights(self, address: int, words: Array) -> None:
        """Marks words of the weight DTCM from an address on."""
        self.weight[address : address + len(words)] = True

    def fill(self, each: Map) -> None:
        """Marks a map. Raises ArtefactError (E503) where it leaves its memory."""
        memory, (first, last) = self.memory(each), each.span
        if first < 0 or last >= len(memory):
            reason = f"words {first}..{last} of the {each.place.memory} DTCM are loaded"
            raise ArtefactError("E503", reason, limit=f"0..{len(memory) - 1}")
        memory[each.grid] = True


def expect_legal(program: Program) -> None:
    """Raises ArtefactError (E503) for the first instruction that a chip model would refuse.

    Checks words on their own and in their chain, the weight stream against what is loaded, and maps against what
    was written.
    """
    machine = Contents.of(program.manifest).machine
    filled, kept = Filled.of(machine), None
    for segment, chains in segments_of(program):
        load_images(segment, program.files, machine, filled)
        for move in segment.loads:
            filled.fill(move.map)
        weights_at = 0
        for chain in chains:
            check(chain.stages, machine, chain.low)
            kept = expect_kept(kept, chain.stages)
            for stage in chain.stages:
                weights_at = _expect_streamed(filled, stage, weights_at)
            _expect_filled(filled, chain)
        for move in segment.stores:
            if not filled.memory(move.map)[move.map.grid].all():
                last = chains[-1].stages[-1] if chains else None
                reason = f"nothing has written all of '{move.tensor}', which the host reads from the DTCM"
                raise word_error(last.number if last else 0, reason, last.word if last else None)
        for image in segment.images_ahead:
            load_weights(image, program.files, machine, filled)
        for move in segment.loads_ahead:
            filled.fill(move.map)


def expect_reserved(number: int, word: Instruction) -> None:
    """Raises ArtefactError (E503) for a reserved field that is not 0."""
    for name, place in places(type(word)).items():
        value = getattr(word, name)
        if place.meaning == ZERO and value:
            raise word_error(number, f"{name} is {value}", word, f"{name} = 0", f"leave {name} out")


def _expect_streamed(filled: Filled, stage: ChainStage, start: int) -> int:
    """The weight stream's next address behind a word, whose own words must be loaded."""
    if stage.control is not None and stage.control.set_weights:
        start = stage.control.weights
    end = start + stage.streamed_words
    if end > start and end > len(filled.weight):
        raise word_error(stage.number, f"weight words {start}..{end - 1} are streamed", stage.layer)
    if not filled.weight[start:end].all():
        reason = f"some of the weight words {start}..{end - 1} are streamed before they are loaded"
        raise word_error(stage.number, reason, stage.layer)
    return end


def _expect_filled(filled: Filled, chain: Chain) -> None:
    """Refuses a chain that reads words that were never written, and marks those that it writes."""
    for stage, each in _reads(chain):
        missing = each.grid[~filled.memory(each)[each.grid]]
        if missing.size:
            reason = f"word {missing[0]} of the {each.place.memory} DTCM is read before it is written"
            raise word_error(stage.number, reason, stage.word, remedy="a map where one lies, of its size")
    for stage in chain.stages:
        for each in chain.written(stage):
            filled.fill(each)


def _reads(chain: Chain) -> Iterator[tuple[ChainStage, Map]]:
    """The maps that a chain reads, up to the last row and column that windows reach."""
    for before, stage in zip((None, *chain.stages), chain.stages, strict=False):
        if before is None or before.keeps:
            whole = stage.ifmap(chain.machine, chain.low)
            height, width = _ifmap_extents(stage.layer) if stage.reshape is None else (whole.height, whole.width)
            if min(height, width) > 0:
                yield stage, replace(whole, height=height, width=width)
        if stage.name in ("add", "mul"):
            yield stage, stage.operand()


def _ifmap_extents(layer: Layer) -> tuple[int, int]:
    """Rows and columns of the ifmap up to the last one in a window."""
    rows = (layer.Ho - 1) * layer.Sh - layer.Ph + kernel_extent(layer.Hk, layer.Dh)
    columns = (layer.Wo - 1) * layer.Sw - layer.Pw + kernel_extent(layer.Wk, layer.Dw)
    return min(layer.Hi, rows), min(layer.Wi, columns)


REMEDY = "give a listing as npuc dump prints it, saved as UTF-8: npuc dump OUT > LISTING"
"""What helps with a file that is no listing."""
BLANK: Mapping[str, Any] = {"nodes": [], "tensor": None, "shape": None, "start": [0, 0, 0]}
"""The table entry of a word that replaces no other."""


@frozen
class ListingLine:
    """A word of a listing, the number of its line, and the hexadecimal word in front of its text, if any."""

    number: int
    word: Instruction
    dumped: int | None


def assemble_listing(program: Program, text: bytes) -> Program:
    """The program with the words of a listing and their report; the same object if no word changed.

    Raises ArtefactError (E504) for a bad line, for an instruction that the program's machine cannot run, or for a
    different number of words where several segments share them.
    """
    listed = list(_lines(text))
    words = [line.word for line in listed]
    old = isa.bytes_to_words(program.files["itcm.bin"])
    image = isa.words_to_bytes(words)
    _expect_dumped(listed, old)
    if image == program.files["itcm.bin"]:
        return program
    if not words:
        raise ArtefactError("E504", "the listing has no instructions", remedy=REMEDY)
    table = _table(old, words, program.manifest["instructions"])
    manifest = {
        **program.manifest,
        **_steps(program.manifest, words),
        "instructions": table,
        "isa": isa.needed_isa(words),
    }
    made = Program(manifest, {**program.files, "itcm.bin": image}, program.evidence)
    try:
        for at, word in enumerate(words):
            expect_reserved(at, word)
        expect_legal(made)
        _expect_run(made)
    except NpucError as error:
        raise _refusal(error, listed, table) from None
    return replace(made, manifest={**manifest, "report": recount(program, made)})


def _expect_dumped(listed: Sequence[ListingLine], old: Sequence[Instruction]) -> None:
    """Raises ArtefactError (E504) for a hexadecimal word that is not the program's nor its line's."""
    known = set(map(encode, old))
    for line in listed:
        if line.dumped is not None and line.dumped not in known | {encode(line.word)}:
            reason = f"line {line.number}: its hexadecimal word is not that of its text"
            raise ArtefactError(
                "E504", reason, remedy="change the text, which is assembled, or write 'word 0x...'"
            )


def _lines(text: bytes) -> Iterator[ListingLine]:
    try:
        source = decode(text).split("\n")
    except ValueError as error:
        raise ArtefactError("E504", str(error), remedy=REMEDY) from None
    for number, line in lines.statements(source):
        word = lines.assemble(line, number)
        if word is not None:
            yield ListingLine(number, word, lines.dumped_word(line))


def _expect_run(program: Program) -> None:
    """Raises ArtefactError (E503) where the chip model refuses the words with the program's data."""
    inputs = {each.name: np.zeros((1, *each.shape), each.dtype) for each in program.inputs}
    Runner(program)(inputs)


def _steps(manifest: Mapping[str, Any], words: Sequence[Instruction]) -> dict[str, Any]:
    """The steps, and what stays loaded, with a new number of words.

    Raises ArtefactError (E504) unless one segment has room for them.
    """
    had, steps, init = len(manifest["instructions"]), list(manifest["steps"]), manifest.get("init", [])
    if len(words) == had:
        return {"init": init, "steps": steps}
    segments = [at for at, step in enumerate(steps) if step["kind"] == "segment"]
    if len(segments) != 1:
        limit = f"{had}, as {len(segments)} segments had"
        raise ArtefactError("E504", f"the listing has {len(words)} words", limit=limit)
    room = Contents.of(manifest).machine.itcm_words
    if len(words) > room:
        reason = f"the listing has {len(words)} words"
        raise ArtefactError("E504", reason, limit=f"itcm_words = {room}", remedy="fewer instructions")
    segment = steps[segments[0]]
    init, images = (
        [each | {"words": len(words)} if each["memory"] == "itcm" else each for each in loads]
        for loads in (init, segment["images"])
    )
    steps[segments[0]] = segment | {"count": len(words), "images": images}
    return {"init": init, "steps": steps}


def _table(
    old: Sequence[Instruction], new: Sequence[Instruction], table: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The instruction table: a word inherits the entry of the word it replaces, with the tensor if sizes agree."""
    found: list[dict[str, Any]] = [dict(BLANK) for _ in new]
    for before, at in _pairs(old, new):
        entry = dict(table[before])
        if _extents(old[before]) != _extents(new[at]):
            entry |= {"tensor": None, "shape": None, "start": [0, 0, 0]}
        found[at] = entry
    return [
        {**entry, "index": index, "mnemonic": lines.mnemonic(word)}
        for index, (entry, word) in enumerate(zip(found, new, strict=True))
    ]


def _pairs(old: Sequence[Instruction], new: Sequence[Instruction]) -> Iterator[tuple[int, int]]:
    """Pairs of an old word and the new word that replaces it."""
    if len(old) == len(new):
        yield from zip(range(len(old)), range(len(new)), strict=True)
        return
    matcher = SequenceMatcher(None, list(map(encode, old)), list(map(encode, new)), autojunk=False)
    for _, first, last, start, end in matcher.get_opcodes():
        if last - first == end - start:
            yield from zip(range(first, last), range(start, end), strict=True)


def _extents(word: Instruction) -> tuple[int, ...] | None:
    """The extents of the map that a word computes; None if it computes none."""
    return (word.Ho, word.Wo, word.Co) if isinstance(word, (Layer, Reshape)) else None


def _refusal(error: NpucError, listed: Sequence[ListingLine], table: Sequence[Mapping[str, Any]]) -> ArtefactError:
    """A refusal by the chip model as an error of the listing: line, node, limit, remedy."""
    problem = error.problems[0]
    found = instruction_of(problem.reason)
    line = f"line {listed[found].number}: " if found is not None and found < len(listed) else ""
    nodes = table[found]["nodes"] if found is not None and found < len(table) else []
    return ArtefactError(
        "E504",
        line + problem.reason,
        node=next(iter(nodes), None),
        limit=problem.limit,
        remedy=problem.remedy or "npuc dump --layout --target easynpu shows every field",
    )


def instruction_of(reason: str) -> int | None:
    """The number of the instruction that a refusal by a chip model names, at its beginning or end.

    >>> instruction_of("instruction 3: it reads behind the memory"), instruction_of("a sum wraps (instruction 4)")
    (3, 4)
    """
    found = re.match(r"instruction (\d+):", reason) or re.search(r"\(instruction (\d+)\)$", reason)
    return int(found[1]) if found else None
