"""The instruction word that computed an element of a tensor."""

from __future__ import annotations

from npuc.program import Program
from npuc.target import Origin
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.listing import disassemble
from npuc.targets.easynpu.program.artefact import Contents


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
