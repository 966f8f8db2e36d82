"""The content of each word of itcm.bin and weight.bin: the instruction, or its part of the weight stream.

Source: easynpu, Weight scheduler and Storage; the orders are those of memory.pack_layer, pack_table, pack_slopes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from npuc.inspect.annotation import MemoryAnnotation
from npuc.program import Program
from npuc.targets.easynpu.machine import isa, listing
from npuc.targets.easynpu.machine.chains import Stage
from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES, groups
from npuc.targets.easynpu.machine.timing import is_dense, weight_words
from npuc.targets.easynpu.program.artefact import Contents, Segment
from npuc.targets.easynpu.simulate.walk import Chain, segments_of

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
    for segment, chains in segments_of(program):
        yield from _streamed(program, contents, segment, chains, name)


def _streamed(
    program: Program, contents: Contents, segment: Segment, chains: Sequence[Chain], name: str
) -> Iterator[MemoryAnnotation]:
    """The annotations of a file's words that a segment loads into the weight DTCM and streams."""
    places: dict[int, int] = {}
    for image in segment.images:
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


def _block(stage: Stage, channel: int) -> Iterator[str]:
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
