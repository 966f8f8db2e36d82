"""Headings of an EasyNPU listing: the host's transfers around each segment, and a line per chain of words."""

from __future__ import annotations

from collections.abc import Sequence

from npuc.errors import ArtefactError
from npuc.host.step import HostStep
from npuc.inspect.outline import Heading, Line, Name, by_nodes, host_line, names_of
from npuc.program import Program
from npuc.targets.easynpu.export import images
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.isa import Instruction, Reshape
from npuc.targets.easynpu.machine.memory import Map, feature_words
from npuc.targets.easynpu.program.artefact import Contents, ImageLoad, Segment, TensorMove
from npuc.targets.easynpu.simulate.walk import Chain, chains_of
from npuc.text.terminal import count


def outline(program: Program) -> list[Heading]:
    """Segments and chains in order; words that no machine runs are grouped by their nodes only.

    Raises ArtefactError (E502) for a damaged manifest.
    """
    contents, itcm = Contents.of(program.manifest), program.files.get("itcm.bin", b"")
    found: list[Heading] = []
    host: list[Line] = []
    words: tuple[Instruction, ...] = ()
    first, number = 0, 0
    for step in contents.steps:
        if isinstance(step, HostStep):
            host.append(host_line(step))
            continue
        for image in step.images:
            if image.memory == "itcm":
                first = image.start
                words = isa.bytes_to_words(image.data(program.files, contents.machine))
        run: list[Line] = []
        try:
            chains = list(chains_of(words[: step.count], first, contents.machine))
            layers = [_layer(contents, chain) for chain in chains]
            run.append((f"run    instructions {first}..{first + step.count - 1}, {_cycles(chains)} cycles",))
        except ArtefactError as error:
            layers = by_nodes(images.listing(itcm, contents.instructions)[first : first + step.count])
            run.append((f"run    refused: {error.problems[0].reason}",))
        lines = [(f"segment {number}",), *host, *_loads(contents, step), *run, *_stores(contents, step)]
        found += [Heading("segment", first, step.count, tuple(lines)), *layers]
        host, number = [], number + 1
    if host:
        found.append(Heading("segment", len(itcm) // isa.WORD_BYTES, 0, (("the host's last steps",), *host)))
    return found


def _cycles(chains: Sequence[Chain]) -> str:
    return count(sum(chain.cycles for chain in chains))


def _loads(contents: Contents, segment: Segment) -> list[Line]:
    size = contents.machine.word_bytes
    moved = [_image(image, size) for image in segment.images]
    return [*moved, *(_move("load", each, size) for each in segment.loads)]


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
