"""Instruction words as fused chains; `rules` has what a machine can execute.

Source: easynpu, Master controller (opcode table: the fused and stored flags; layer fusion loop).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.targets.easynpu.machine import isa, listing
from npuc.targets.easynpu.machine.isa import Control, Halt, Layer, Operand, Reshape
from npuc.targets.easynpu.machine.memory import (
    BS_WORDS,
    SLOPE_WORDS,
    TABLE_WORDS,
    Map,
    MapPlace,
    groups,
    high_end,
    low_end,
)
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import weight_words

DUMP = "npuc dump shows every word"


@frozen
class ChainStage:
    """A layer word with its number in the program and the extension words before it."""

    number: int
    layer: Layer
    operands: Mapping[str, Operand]
    control: Control | None
    reshape: Reshape | None = None
    """The reshape word, if it is one; `layer` is then the pass over its map."""

    @property
    def word(self) -> Layer | Reshape:
        """The instruction."""
        return self.reshape or self.layer

    @property
    def name(self) -> str:
        """The operation without the ReLU that a convolution may contain."""
        operation = self.layer.operation
        return operation.mnemonic.removesuffix("_relu") if operation and operation.mnemonic != "relu" else "relu"

    @property
    def parameter_words(self) -> int:
        """Its bias-scale, table or slope words in the weight stream."""
        if self.reshape is not None:
            return 0
        match self.name:
            case "maxpool" | "relu":
                return 0
            case "act":
                return TABLE_WORDS
            case "prelu":
                return SLOPE_WORDS * groups(self.layer.Co)
            case _:
                return BS_WORDS * groups(self.layer.Co)

    @property
    def streamed_words(self) -> int:
        """All its words in the weight stream: parameters, then weights."""
        return self.parameter_words + (0 if self.reshape is not None else weight_words(self.layer))

    @property
    def keeps(self) -> bool:
        """Its psums are passed on, unquantised, to the next word."""
        return self.control is not None and bool(self.control.keep_psum)

    @property
    def takes(self) -> bool:
        """It continues on the psums that the previous chain kept."""
        return self.control is not None and bool(self.control.take_psum)

    @property
    def leaves(self) -> bool:
        """It ends its chain without a result: its psums are kept for the next chain."""
        return self.keeps and not self.layer.fused

    def ifmap(self, machine: Machine, low: bool) -> Map:
        """The map that it reads unless it continues on a result; low: the current map is at the low end."""
        layer = self.layer
        place = self._place("src") or implicit_end(low, machine, layer.Ci, layer.Wi)
        return Map(place, layer.Hi, layer.Wi, groups(layer.Ci))

    def operand(self) -> Map:
        """The map that an addition or a product reads in addition to its ifmap."""
        return self._ofmap(self._place("opb") or low_end("skip", 0, self.layer.Co, self.layer.Wo))

    def stored(self) -> Map:
        """The map to which a stored result is written."""
        return self._ofmap(self._place("sto") or low_end("skip", 0, self.layer.Co, self.layer.Wo))

    def ofmap(self, machine: Machine, low: bool) -> Map:
        """The map to which the result is written; low: the end it goes to without an extension word."""
        word = self.word
        place = self._place("dst") or implicit_end(low, machine, word.Co, word.Wo)
        return Map(place, word.Ho, word.Wo, groups(word.Co))

    def _ofmap(self, place: MapPlace) -> Map:
        return Map(place, self.layer.Ho, self.layer.Wo, groups(self.layer.Co))

    def _place(self, role: str) -> MapPlace | None:
        operand = self.operands.get(role)
        if operand is None:
            return None
        if operand.memory >= len(isa.MEMORIES):
            raise refused(
                self.number, f"its {role} operand lies in memory {operand.memory} of 0 and 1", self.layer
            )
        return MapPlace(isa.MEMORIES[operand.memory], operand.base, operand.row, operand.pixel, operand.group)


def chains(words: tuple[isa.Instruction, ...], first: int) -> Iterator[list[ChainStage]]:
    """The words grouped into fused chains. Raises ArtefactError (E503) for an undefined word, a repeated
    extension word or an open chain."""
    operands: dict[str, Operand] = {}
    control: Control | None = None
    chain: list[ChainStage] = []
    for number, word in enumerate(words, first):
        match word:
            case Operand() if isa.ROLES[word.opcode] not in operands:
                operands[isa.ROLES[word.opcode]] = word
            case Control() if control is None:
                control = word
            case Operand() | Control():
                raise refused(number, "a second extension word of its kind before one layer word", word)
            case Layer():
                chain.append(ChainStage(number, word, operands, control))
                operands, control = {}, None
                if not word.fused:
                    yield chain
                    chain = []
            case Reshape():
                yield [*chain, ChainStage(number, _pass_over(word, chain), operands, control, word)]
                chain, operands, control = [], {}, None
            case Halt():
                break
            case _:
                raise refused(number, "the word is not an instruction", word)
    if chain or operands or control:
        raise refused(first + len(words) - 1, "the program ends within a chain", words[-1])


def _pass_over(word: Reshape, before: Sequence[ChainStage]) -> Layer:
    """The pass in which a reshape reads its map, or a result tile by tile, as a pointwise word."""
    y, x = (before[0].layer.y, before[0].layer.x) if before else (1, 1)
    return Layer(
        opcode=word.opcode, y=y, x=x, yi=y, xi=x,
        Hi=word.Hi, Wi=word.Wi, Ci=word.Ci, Ho=word.Hi, Wo=word.Wi, Co=word.Ci, Zs=groups(word.Ci),
    )  # fmt: skip


def refused(
    number: int, reason: str, word: isa.Instruction | None, limit: str | None = None, remedy: str = DUMP
) -> ArtefactError:
    """The error for an instruction that cannot be executed, with its listing line."""
    text = f": {listing.disassemble(word)}" if word is not None else ""
    return ArtefactError("E503", f"instruction {number}: {reason}{text}", limit=limit, remedy=remedy)


def implicit_end(low: bool, machine: Machine, channels: int, width: int) -> MapPlace:
    """One end of the Fmap DTCM: the low one, or the high one, which grows downwards from the last word."""
    if low:
        return low_end("fmap", 0, channels, width)
    return high_end("fmap", machine.fmap_words, channels, width)
