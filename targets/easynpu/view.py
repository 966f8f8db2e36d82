"""What people see of an EasyNPU program: headings, timeline, annotated files, and where tensors lie.

Source: easynpu, Weight scheduler and Storage; the orders are those of memory.pack_layer, pack_table, pack_slopes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from npuc.errors import ArtefactError
from npuc.host.step import HostStep
from npuc.ir import Array
from npuc.program import Program
from npuc.storage.bits import encode, places
from npuc.target import Origin, Stored
from npuc.targets.easynpu.machine import isa, listing
from npuc.targets.easynpu.machine.chains import ChainStage
from npuc.targets.easynpu.machine.isa import Instruction, Reshape
from npuc.targets.easynpu.machine.listing import disassemble
from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES, Map, feature_words, groups, unpack_feature
from npuc.targets.easynpu.machine.timing import is_dense, weight_words
from npuc.targets.easynpu.program.artefact import Contents, ImageLoad, Produced, Segment, TensorMove
from npuc.targets.easynpu.simulate.walk import Chain, chains_of, segments_of, streamed
from npuc.text.terminal import count
from npuc.view import (
    Activity,
    BufferUse,
    Heading,
    Line,
    MemoryAnnotation,
    Name,
    Timeline,
    by_nodes,
    host_line,
    layer_at,
    names_of,
    separate_buffers,
)


def entries(image: bytes, table: Sequence[Produced]) -> list[dict[str, Any]]:
    """An entry per word of the listing: number, hexadecimal word, text, fields, source nodes and result tensor."""
    return [
        {
            "index": index,
            "word": f"{encode(word):032x}",
            "text": disassemble(word),
            "fields": {name: getattr(word, name) for name in places(type(word))},
            "nodes": list(table[index].nodes) if index < len(table) else [],
            "tensor": table[index].tensor if index < len(table) else None,
        }
        for index, word in enumerate(isa.bytes_to_words(image))
    ]


def outline(program: Program) -> list[Heading]:
    """Segments and chains in order; words that no machine runs are grouped by their nodes only.

    Raises ArtefactError (E502) for a damaged manifest.
    """
    contents, itcm = Contents.of(program.manifest), program.files.get("itcm.bin", b"")
    found: list[Heading] = []
    host: list[Line] = []
    words: tuple[Instruction, ...] = ()
    first, number = 0, 0
    for step in (contents.init, *contents.steps):
        if isinstance(step, HostStep):
            host.append(host_line(step))
            continue
        for image in step.images:
            if image.memory == "itcm":
                first = image.start
                words = isa.bytes_to_words(image.data(program.files, contents.machine))
        if step is contents.init:
            lines = _loads(contents, step.images)
            host += [("before the first inference",), *lines] if lines else []
            continue
        run: list[Line] = []
        try:
            chains = list(chains_of(words[: step.count], first, contents.machine))
            layers = [_layer(contents, chain) for chain in chains]
            run.append((f"run    instructions {first}..{first + step.count - 1}, {_cycles(chains)} cycles",))
        except ArtefactError as error:
            layers = by_nodes(entries(itcm, contents.instructions)[first : first + step.count])
            run.append((f"run    refused: {error.problems[0].reason}",))
        run += [(f"ahead  {line[0]}", *line[1:]) for line in _loads(contents, step.images_ahead, step.loads_ahead)]
        loads = _loads(contents, step.images, step.loads)
        lines = [(f"segment {number}",), *host, *loads, *run, *_stores(contents, step)]
        found += [Heading("segment", first, step.count, tuple(lines)), *layers]
        host, number = [], number + 1
    if host:
        found.append(Heading("segment", len(itcm) // isa.WORD_BYTES, 0, (("the host's last steps",), *host)))
    return found


def _cycles(chains: Sequence[Chain]) -> str:
    return count(sum(chain.cycles for chain in chains))


def _loads(contents: Contents, images: Sequence[ImageLoad], loads: Sequence[TensorMove] = ()) -> list[Line]:
    size = contents.machine.word_bytes
    return [*(_image(image, size) for image in images), *(_move("load", each, size) for each in loads)]


def _stores(contents: Contents, segment: Segment) -> list[Line]:
    return [_move("store", each, contents.machine.word_bytes) for each in segment.stores]


def _image(image: ImageLoad, size: int) -> Line:
    where = f"words {image.address}..{image.address + image.words - 1}"
    source = (Name(image.file), f" from word {image.start}")
    return (f"load   {count(image.words * size):>7} bytes  {image.memory:<6} {where}  ", *source)


def _move(what: str, move: TensorMove, size: int) -> Line:
    """The transfer of a tensor's window between host and memory, in whole memory words."""
    taken = feature_words(move.channels, move.height, move.width) * size
    window = f" [{move.channels}x{move.height}x{move.width}"
    window += f" from {'x'.join(map(str, move.start))}]" if any(move.start) else "]"
    where = f"{move.place.memory:<6} {_words(move.map)}"
    return (f"{what:<5}  {count(taken):>7} bytes  {where}  ", Name(move.tensor), window)


def _words(where: Map) -> str:
    return "words {}..{}".format(*where.span)


def _layer(contents: Contents, chain: Chain) -> Heading:
    """A chain: its nodes, input and output maps (channels x rows x columns), tile, cycles, addresses."""
    stages = chain.stages
    end = stages[-1].number
    nodes = dict.fromkeys(
        node for stage in stages if stage.number < len(contents.instructions)
        for node in contents.instructions[stage.number].nodes
    )  # fmt: skip
    given, taken = stages[-1].word, stages[0].layer
    written = [each for stage in stages for each in chain.written(stage)]
    shapes = f"{taken.Ci}x{taken.Hi}x{taken.Wi} -> {given.Co}x{given.Ho}x{given.Wo}"
    tile = "" if isinstance(stages[0].word, Reshape) else f", tile {taken.y}x{taken.x}"
    places = f"{_places(list(chain.read))} -> {_places(written)}"
    line = (*names_of(list(nodes)), f": {shapes}{tile}, {count(chain.cycles)} cycles, {places}")
    return Heading("layer", end + 1 - chain.words, chain.words, (line,))


def _places(maps: Sequence[Map]) -> str:
    """The places of maps, in words of their memories."""
    found = dict.fromkeys("{} {}..{}".format(each.place.memory, *each.span) for each in maps)
    return " + ".join(found) or "psums"


ARRAY, LOAD, STORE = "array", "load", "store"
NOBODY = -1
"""Marks words that nothing has written."""


def timeline(program: Program) -> Timeline:
    """The timeline of a program. Raises ArtefactError (E502, E503) where it could not be run."""
    contents = Contents.of(program.manifest)
    run = _RunState(program, contents)
    for segment, chains in segments_of(program):
        run.segment(segment, chains)
    run.buffers += [replace(each, end=run.cycle) for each in run.resident]
    activities = tuple(_with_bytes(run.activities, program.report["layers"]))
    return Timeline(run.cycle, activities, separate_buffers(run.buffers), ARRAY, initial=run.initial)


@dataclass
class _RunState:
    """The state of a run so far."""

    program: Program
    contents: Contents
    cycle: int = 0
    activities: list[Activity] = field(default_factory=list[Activity])
    buffers: list[BufferUse] = field(default_factory=list[BufferUse])
    writers: list[int] = field(default_factory=list[int])
    """For every buffer, the activity that writes it."""
    holders: dict[str, Array] = field(default_factory=dict[str, Array])
    resident: list[BufferUse] = field(default_factory=list[BufferUse])
    """Weights that were loaded before the first inference."""
    initial: Timeline | None = None
    waiting: list[BufferUse] = field(default_factory=list[BufferUse])
    """Weights that were loaded while a segment before ran, until one reads them."""

    def segment(self, segment: Segment, chains: Sequence[Chain]) -> None:
        """Adds loads, chains, with loads beside them, and stores; weights are in use until the last chain."""
        if segment == self.contents.init:
            self.resident = [replace(each, start=0) for each in self._load(segment.images, ())]
            self.initial, self.activities, self.cycle = Timeline(self.cycle, tuple(self.activities), ()), [], 0
            return
        weights = self._load(segment.images, segment.loads)
        read = [range(self.contents.machine.weight_words)[words] for words in streamed(chains)]
        size, waiting, self.waiting = self.contents.machine.word_bytes, self.waiting, []
        for each in waiting:
            first, end = each.address // size, (each.address + each.size) // size
            used = any(first < words.stop and words.start < end for words in read if words)
            (weights if used else self.waiting).append(each)
        began = self.cycle
        self._chains(chains)
        self.buffers += [replace(each, end=self.cycle) for each in weights]
        self.writers += [NOBODY] * len(weights)
        ended, self.cycle = self.cycle, began
        self.waiting += self._load(segment.images_ahead, segment.loads_ahead)
        self.cycle = max(self.cycle, ended)
        for move in segment.stores:
            self._transfer(STORE, move.tensor, self._bytes(move), self._read(move.map))

    def _load(self, images: Sequence[ImageLoad], loads: Sequence[TensorMove]) -> list[BufferUse]:
        """Adds loads in sequence; returns the weights."""
        weights: list[BufferUse] = []
        for image in images:
            self._transfer(LOAD, image.memory, len(image.data(self.program.files, self.contents.machine)))
            if image.memory != "itcm":
                weights.append(self._buffer("weight", image.file, image.address, image.words, self.cycle))
        for move in loads:
            self._transfer(LOAD, move.tensor, self._bytes(move))
            self._write(move.map, move.tensor, self.cycle, len(self.activities) - 1)
        return weights

    def _chains(self, chains: Sequence[Chain]) -> None:
        for chain in chains:
            started, self.cycle = self.cycle, self.cycle + chain.cycles
            label = " ; ".join(disassemble(stage.word) for stage in chain.stages)
            tensor = self._tensor(chain.stages[-1].number)
            taken = {each for where in chain.read for each in self._read(where)}
            number = chain.stages[0].number
            layer = layer_at(self.program.report["layers"], number)
            self.activities.append(
                Activity(ARRAY, label, started, self.cycle, tensor, layer, number, producers=tuple(sorted(taken)))
            )
            for stage in chain.stages:
                for where in chain.written(stage):
                    self._write(where, self._tensor(stage.number) or "", started, len(self.activities) - 1)

    def _tensor(self, number: int) -> str | None:
        """The tensor that an instruction word computes, if the manifest has it."""
        table = self.contents.instructions
        return table[number].tensor if number < len(table) else None

    def _transfer(self, engine: str, what: str, size: int, producers: Sequence[int] = ()) -> None:
        started = self.cycle
        self.cycle += -(-size // self.contents.machine.host_bytes_per_cycle)
        found = Activity(engine, f"{engine} {what}", started, self.cycle, bytes=size, producers=tuple(producers))
        self.activities.append(found)

    def _bytes(self, move: TensorMove) -> int:
        return feature_words(move.channels, move.height, move.width) * self.contents.machine.word_bytes

    def _buffer(self, memory: str, label: str, address: int, words: int, start: int) -> BufferUse:
        size = self.contents.machine.word_bytes
        return BufferUse(memory, label, address * size, words * size, start, self.cycle)

    def _expect_inside(self, where: Map) -> None:
        """Raises ArtefactError (E503) for words outside the memory."""
        first, last = where.span
        if not 0 <= first <= last < self.contents.machine.capacity_words(where.place.memory):
            raise ArtefactError("E503", f"words {first} to {last} of {where.place.memory} are beyond the memory")

    def _write(self, where: Map, tensor: str, start: int, writer: int) -> None:
        self._expect_inside(where)
        first, last = where.span
        holders = self._holders(where)[where.grid]
        made = self._buffer(where.place.memory, tensor, first, last - first + 1, start)
        for at in np.unique(holders[holders != NOBODY]).tolist():
            before = self.buffers[at]
            if (before.address, before.size) == (made.address, made.size):  # the result takes the map's place
                self.buffers[at] = replace(before, end=min(before.end, start))
        self._holders(where)[where.grid] = len(self.buffers)
        self.buffers.append(made)
        self.writers.append(writer)

    def _read(self, where: Map) -> list[int]:
        """Marks the buffers of a map as in use until now; returns the activities that wrote them."""
        self._expect_inside(where)
        holders = self._holders(where)[where.grid]
        found: list[int] = np.unique(holders[holders != NOBODY]).tolist()
        for at in found:
            self.buffers[at] = replace(self.buffers[at], end=self.cycle)
        return [self.writers[at] for at in found]

    def _holders(self, where: Map) -> Array:
        """The buffer that each word of the memory belongs to, by address."""
        memory = where.place.memory
        words = self.contents.machine.capacity_words(memory)
        return self.holders.setdefault(memory, np.full(words, NOBODY))


def _with_bytes(activities: Sequence[Activity], layers: Sequence[Mapping[str, Any]]) -> Iterator[Activity]:
    """The activities, with the bytes that a layer moves between DTCMs and array divided equally among its own."""
    counts = Counter(each.layer for each in activities)
    seen = Counter[int | None]()
    for each in activities:
        if each.layer is None:
            yield each
            continue
        moved, share, parts = layers[each.layer]["bytes"], seen[each.layer], counts[each.layer]
        seen[each.layer] += 1
        yield replace(each, bytes=moved * (share + 1) // parts - moved * share // parts)


TABLE = ("byte 0 of b", "byte 1 of b", "byte 2 of b", "byte 3 of b", "a", "start", "shift")
BIAS_SCALE = ("bias byte 0", "bias byte 1", "bias byte 2", "bias byte 3", "shift")
SLOPES = ("multiplier for x >= 0", "shift for x >= 0", "multiplier for x < 0", "shift for x < 0")


def memory_annotations(program: Program, name: str) -> Iterator[MemoryAnnotation]:
    """The annotations word by word. Raises ArtefactError (E502, E503) for a program that cannot run."""
    contents = Contents.of(program.manifest)
    if name == "itcm.bin":
        words = isa.bytes_to_words(program.files[name])
        for number, word in enumerate(words):
            nodes = contents.instructions[number].nodes if number < len(contents.instructions) else ()
            yield MemoryAnnotation(number * isa.WORD_BYTES, listing.disassemble(word), nodes)
        return
    places: dict[int, int] = {}
    for segment, chains in segments_of(program):
        yield from _annotate_stream(program, contents, segment, chains, name, places)


def _annotate_stream(
    program: Program,
    contents: Contents,
    segment: Segment,
    chains: Sequence[Chain],
    name: str,
    places: dict[int, int],
) -> Iterator[MemoryAnnotation]:
    """The annotations of a file's words that a segment streams from the weight DTCM.

    places: the file's word at every address of the DTCM; those that the segment loads are added.
    """
    for image in (*segment.images, *segment.images_ahead):
        if image.memory != "itcm" and image.file == name:
            held = len(image.data(program.files, contents.machine)) // isa.WORD_BYTES
            places |= {image.address + number: image.start + number for number in range(held)}
    at, end = 0, max(places, default=-1) + 1
    for chain in chains:
        for stage in chain.stages:
            if stage.reshape is not None:
                continue
            if stage.control is not None and stage.control.set_weights:
                at = stage.control.weights
            produced = contents.produced(stage.number)
            for what in _block(stage, produced.start[0]):
                if at >= end:
                    return
                if at in places:
                    text = f"word {stage.number} {listing.mnemonic(stage.word)}: {what}"
                    yield MemoryAnnotation(places[at] * isa.WORD_BYTES, text, produced.nodes)
                at += 1


def _block(stage: ChainStage, channel: int) -> Iterator[str]:
    """The contents of a stage's block, word by word; channel: the first that the stage computes."""
    layer, count = stage.layer, groups(stage.layer.Co)
    lanes = [_channels(channel + LANES * group, channel + layer.Co) for group in range(count)]
    if stage.name == "act":
        yield from (f"{part} of the table's {LANES} segments" for part in TABLE)
    elif stage.parameter_words:
        parts = SLOPES if stage.name == "prelu" else BIAS_SCALE
        assert stage.parameter_words == count * len(parts) and len(BIAS_SCALE) == BS_WORDS
        yield from (f"{part} of {group}" for group in lanes for part in parts)
    if not weight_words(layer):
        return
    taps = list(product(range(layer.Hk), range(layer.Wk)))
    if is_dense(layer):
        for source, (row, column), group in product(range(layer.Ci), taps, lanes):
            yield f"weights of input {source}, tap ({row}, {column}), for {group}"
    else:
        for group, (row, column) in product(lanes, taps):
            yield f"weights of tap ({row}, {column}) for {group}"


def _channels(first: int, end: int) -> str:
    """The channels of the 16 lanes of a group."""
    last = min(first + LANES, end) - 1
    return f"channel {first}" if last == first else f"channels {first}..{last}"


Written = tuple[tuple[int, ...], tuple[int, int, int], Map]
"""The shape of a tensor; the first channel, row and column of a window of it; the window's words."""


def place_of(program: Program, tensor: str) -> Stored | None:
    """The place of a tensor in a DTCM once a segment has loaded or written all of it; None if none does.

    Raises ArtefactError (E502, E503) for a program that cannot be run.
    """
    for windows in _segments(program, tensor):
        memories = {each.place.memory for _, _, each in windows}
        if len(memories) != 1 or any(start[0] % LANES for _, start, _ in windows):
            continue
        shape = windows[0][0]
        channels, height, width = (*shape[1:], 1, 1)[:3]
        grid = np.full((height, width, groups(channels)), -1)
        for _, (channel, row, column), words in windows:
            first = channel // LANES
            part = grid[row : row + words.height, column : column + words.width, first : first + words.groups]
            if part.shape == words.grid.shape:
                part[...] = words.grid
        if grid.min() >= 0 and len(np.unique(grid)) == grid.size:
            return _place_of_grid(memories.pop(), grid, shape, channels)
    return None


def _place_of_grid(memory: str, grid: Array, shape: tuple[int, ...], channels: int) -> Stored:
    first, last = int(grid.min()), int(grid.max())

    def unpack(data: Array) -> Array:
        words = data.view(np.int8).reshape(-1, LANES)[grid - first]
        return unpack_feature(words[None], channels).reshape(shape)

    return Stored(f"words {first}..{last} of the {memory} DTCM", (last - first + 1) * LANES, unpack)


def _used_element(entry: Produced, written: Map) -> tuple[tuple[int, int, int], Map]:
    """The first element of a tensor that a word gives, and where its result lies from there on."""
    channel, row, column = entry.start
    unused, place = entry.unused_rows, written.place
    place = replace(place, base=place.base + unused * place.row)
    return (channel, row + unused, column), replace(written, place=place, height=written.height - unused)


def _segments(program: Program, tensor: str) -> Iterator[list[Written]]:
    """The windows of a tensor that each segment loads or computes, for segments that have any."""
    table = Contents.of(program.manifest).instructions
    ahead: tuple[TensorMove, ...] = ()
    for segment, chains in segments_of(program):
        loads, ahead = (*ahead, *segment.loads), segment.loads_ahead
        loaded = [(each.shape, each.start, each.map) for each in loads if each.tensor == tensor]
        computed = [
            (entry.shape, *_used_element(entry, each))
            for chain in chains
            for stage in chain.stages
            for entry in table[stage.number : stage.number + 1]
            if entry.tensor == tensor and entry.shape is not None
            for each in chain.written(stage)[:1]
        ]
        if found := [*loaded, *computed]:
            yield found


def origin(program: Program, tensor: str, element: tuple[int, ...]) -> Origin | None:
    """The last word that writes this element (1, C, H, W) or (1, C), and its tile; None if no word does."""
    table = Contents.of(program.manifest).instructions
    words = isa.bytes_to_words(program.files.get("itcm.bin", b""))
    at = (*element[1:], 0, 0)[:3]
    for number in reversed(range(min(len(table), len(words)))):
        word, produced = words[number], table[number]
        if produced.tensor != tensor or not isinstance(word, isa.Layer | isa.Reshape):
            continue
        channel, row, column = (index - first for index, first in zip(at, produced.start, strict=True))
        if 0 <= channel < word.Co and produced.unused_rows <= row < word.Ho and 0 <= column < word.Wo:
            tile = (row // word.y, column // word.x) if isinstance(word, isa.Layer) else None
            return Origin(number, disassemble(word), tile)
    return None
