"""Instruction words as fused chains, and the rules of what a machine can execute.

The rules are of words, their order in a chain, and the maps that they read and write.

Source: easynpu, Master controller (opcode table: the fused and stored flags; layer fusion loop).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.targets.easynpu.machine import isa, listing, rearrangement
from npuc.targets.easynpu.machine.isa import Control, Halt, Layer, Operand, Reshape
from npuc.targets.easynpu.machine.memory import (
    BS_WORDS,
    LANES,
    SLOPE_WORDS,
    TABLE_WORDS,
    Map,
    MapPlace,
    groups,
    high_end,
    low_end,
)
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import is_dense, is_pointwise, of_a_row, tile_input, weight_words

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
            raise word_error(
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
                raise word_error(number, "a second extension word of its kind before one layer word", word)
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
                raise word_error(number, "the word is not an instruction", word)
    if chain or operands or control:
        raise word_error(first + len(words) - 1, "the program ends within a chain", words[-1])


def _pass_over(word: Reshape, before: Sequence[ChainStage]) -> Layer:
    """The pass in which a reshape reads its map, or a result tile by tile, as a pointwise word."""
    y, x = (before[0].layer.y, before[0].layer.x) if before else (1, 1)
    return Layer(
        opcode=word.opcode, y=y, x=x, yi=y, xi=x,
        Hi=word.Hi, Wi=word.Wi, Ci=word.Ci, Ho=word.Hi, Wo=word.Wi, Co=word.Ci, Zs=groups(word.Ci),
    )  # fmt: skip


def word_error(
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


KEEPING = ("conv", "dwconv", "avgpool")
"""Words that can keep psums for the next word, or continue on kept ones."""
POINTWISE = ("relu", "act", "prelu", "add", "mul", "reshape")
FUSABLE = ("bn", *POINTWISE)
"""Words that can continue on the previous int8 result, pixel by pixel."""
SMALLER = "a smaller tile (y, x), with the y' x' that it needs"


@frozen
class _Rule:
    """A rule for one word: whether the word breaks it, and the error's text."""

    broken: bool
    reason: str
    limit: str | None = None
    remedy: str = DUMP


def check(chain: Sequence[ChainStage], machine: Machine, low: bool) -> None:
    """Raises ArtefactError (E503) for a word that contradicts itself, the machine or the word before it.

    low: the current map is at the low end of the Fmap DTCM.
    """
    for before, stage in zip([None, *chain], chain, strict=False):
        rules = (
            *_geometry(stage, machine),
            *_order(stage, before),
            *_idle_operands(stage, before, last=stage is chain[-1]),
            *(() if before is None else _continuation(stage, before, chain[0])),
        )
        for rule in rules:
            if rule.broken:
                raise word_error(stage.number, rule.reason, stage.word, rule.limit, rule.remedy)
    entries = parameter_entries(chain)
    if entries > machine.parameter_pad_entries:
        reason = f"{entries} of {machine.parameter_pad_entries} entries of the bias and scale pads"
        limit = f"parameter_pad_entries = {machine.parameter_pad_entries}"
        raise word_error(chain[0].number, reason, chain[0].layer, limit)
    _check_maps(chain, machine, low)


def parameter_entries(chain: Sequence[ChainStage]) -> int:
    """Entries of the bias and scale pads: words that keep psums share theirs, a table takes one per segment."""
    entries = 0
    for before, stage in zip((None, *chain), chain, strict=False):
        if stage.reshape is None and (before is None or not (before.keeps or stage.name == "relu")):
            entries += LANES if stage.name == "act" else groups(stage.layer.Co)
    return entries


def _check_maps(chain: Sequence[ChainStage], machine: Machine, low: bool) -> None:
    """Checks that maps are inside their memories, and that no map overwrites another map of the chain.

    The machine writes tile by tile while later tiles are still to be read. A result may replace a second operand
    at the same place, and an ifmap of a chain whose elements each depend on one element of it: a pixel is read
    before its result is written. A result and its copy are written together.
    """
    written = [] if chain[-1].leaves else [(chain[-1], chain[-1].ofmap(machine, not low))]
    written += [(stage, stage.stored()) for stage in chain if stage.layer.stored]
    operands = [(stage, stage.operand()) for stage in chain if stage.name in ("add", "mul")]
    starting = [
        stage for before, stage in zip((None, *chain), chain, strict=False) if before is None or before.keeps
    ]
    read = [(stage, stage.ifmap(machine, low)) for stage in starting]
    for stage, each in (*read, *operands, *written):
        words, (first, last) = machine.capacity_words(each.place.memory), each.span
        if first < 0 or last >= words:
            reason = f"words {first}..{last} of the {each.place.memory} DTCM are addressed, it has {words}"
            raise word_error(stage.number, reason, stage.word, f"0..{words - 1}")
    for position, (stage, each) in enumerate(written):
        others = [other for _, other in read if other != each or not _is_elementwise(chain)]
        others += [other for _, other in written[:position]]
        others += [other for _, other in operands if other != each]
        if not each.distinct:
            raise word_error(stage.number, "several pixels are written to one word", stage.word)
        if any(each.meets(other) for other in others):
            reason = f"it writes over another map of its chain in the {each.place.memory} DTCM"
            raise word_error(stage.number, reason, stage.word)
    last = chain[-2] if chain[-1].reshape is not None and len(chain) > 1 else chain[-1]
    if written and last.layer.stored and last.stored().place.memory == written[0][1].place.memory:
        reason = f"the result and its copy go to the {last.stored().place.memory} DTCM, a word a cycle"
        raise word_error(last.number, reason, last.word)


def _is_elementwise(chain: Sequence[ChainStage]) -> bool:
    """Whether every element of the result depends on one element of each ifmap, and of the operands."""
    if any(stage.reshape is not None or stage.leaves or stage.takes for stage in chain):
        return False
    return not any(is_dense(stage.layer) or not is_pointwise(stage.layer) for stage in chain)


def expect_kept(kept: Layer | None, chain: Sequence[ChainStage]) -> Layer | None:
    """The word whose psums are in the pads after the chain, if any are kept.

    kept: the same before the chain. Raises ArtefactError (E503) for a chain that takes psums that are not there or
    are of another tile.
    """
    head = chain[0]
    if head.takes:
        if kept is None:
            raise word_error(head.number, "it takes psums, and the chain before kept none", head.word)
        if _psums_of(kept) != _psums_of(head.layer):
            raise word_error(head.number, "it takes the psums of a word with another ofmap", head.word)
    return chain[-1].layer if chain[-1].leaves else None


def _psums_of(layer: Layer) -> tuple[int | bool, ...]:
    return layer.Ho, layer.Wo, layer.Co, layer.y, layer.x, is_dense(layer)


def _single_tile(layer: Layer) -> bool:
    """Whether all psums of a word are in the pads at once; channel-wise words have those of 16 channels."""
    return layer.y >= layer.Ho and layer.x >= layer.Wo and (is_dense(layer) or groups(layer.Co) == 1)


def _geometry(stage: ChainStage, machine: Machine) -> tuple[_Rule, ...]:
    """Rules for a word on its own and for its demands on the machine."""
    layer = stage.layer
    dense = is_dense(layer)
    rows, columns = tile_input(layer, layer.y, layer.x)
    entries, psums = rows * columns, of_a_row(layer.y * layer.x, machine) * (layer.Zs if dense else 1)
    pads, room, weights = machine.ifmap_pad_entries, machine.psum_entries, machine.weight_pad_entries
    return (
        _Rule(
            (layer.yi, layer.xi) != (rows, columns),
            f"y' x' are {layer.yi} x {layer.xi}, the tile needs {rows} x {columns}",
            f"yi = (y - 1) * Sh + (Hk - 1) * (Dh + 1) + 1 = {rows}, xi likewise {columns}",
            f"write yi={rows} xi={columns}, or another tile",
        ),
        _Rule(
            bool(entries > pads),
            f"{entries} entries of {pads} in an ifmap pad",
            f"ifmap_pad_entries = {pads}",
            SMALLER,
        ),
        _Rule(psums > room, f"{psums} psums of {room}", f"psum_entries = {room}", SMALLER),
        _Rule(
            layer.Zs != groups(layer.Co),
            f"Zs = {layer.Zs} for {layer.Co} output channels",
            f"Zs = {groups(layer.Co)}: Co in groups of {LANES}",
            f"write Zs={groups(layer.Co)}",
        ),
        _Rule(
            dense and layer.Zs > weights,
            f"Zs = {layer.Zs} of {weights} weight pad entries",
            f"weight_pad_entries = {weights}",
            "fewer output channels in a word",
        ),
        _Rule(
            not dense and layer.Ci != layer.Co,
            "a channel-wise word with Ci != Co",
            f"Ci = Co = {layer.Co}",
            f"write Ci={layer.Co}",
        ),
        _Rule(0 in (layer.Sh, layer.Sw), "a stride of 0", "Sh and Sw of at least 1"),
        *_reshape_problem(stage),
        _Rule(
            stage.name in POINTWISE and _has_window(layer),
            "a window in a word that works pixel by pixel",
            "Hk = Wk = Sh = Sw = 1, Ph = Pw = 0, an ifmap of the ofmap's size",
        ),
    )


def _reshape_problem(stage: ChainStage) -> tuple[_Rule, ...]:
    wrong = None if stage.reshape is None else rearrangement.problem(stage.reshape)
    return () if wrong is None else (_Rule(True, wrong),)


def _order(stage: ChainStage, before: ChainStage | None) -> tuple[_Rule, ...]:
    """What the order of words allows."""
    continues, accumulates = before is not None and before.keeps, stage.name in KEEPING
    return (
        _Rule(
            before is not None and not continues and stage.name not in FUSABLE,
            "a word that cannot continue on a fused result",
        ),
        _Rule(
            (continues or stage.keeps or stage.takes) and not accumulates,
            "psums are kept for or by a word that does not accumulate",
        ),
        _Rule(
            (stage.leaves or stage.takes) and not _single_tile(stage.layer),
            "psums are kept or taken from chain to chain by a word of several tiles",
        ),
        _Rule(stage.takes and before is not None, "psums are taken by a word that does not begin a chain"),
        _Rule(bool(stage.keeps and stage.layer.stored), "psums are kept, and a result is stored"),
    )


def _idle_operands(stage: ChainStage, before: ChainStage | None, *, last: bool) -> tuple[_Rule, ...]:
    """Extension words have an effect."""
    used = {
        "src": before is None or before.keeps,
        "dst": last and not stage.keeps,
        "opb": stage.name in ("add", "mul"),
        "sto": stage.layer.stored,
    }
    return tuple(
        _Rule(not used[role], f"`{role}` before a word without such an operand") for role in stage.operands
    )


def _continuation(stage: ChainStage, before: ChainStage, head: ChainStage) -> tuple[_Rule, ...]:
    """What a word after the first of its chain needs."""
    layer, first = stage.layer, head.layer
    return (
        _Rule(
            (layer.Ho, layer.Wo, layer.Co) != (first.Ho, first.Wo, first.Co), "a fused word of another output size"
        ),
        _Rule((layer.y, layer.x) != (first.y, first.x), "a fused word of another tile"),
        _Rule(not before.keeps and _has_window(layer), "a window in a word that works pixel by pixel"),
        _Rule(
            before.keeps and is_dense(layer) != is_dense(first),
            "psums kept between a word that sums over channels and one that does not",
        ),
    )


def _has_window(layer: Layer) -> bool:
    """Whether an output depends on anything but the input at the same pixel."""
    return not is_pointwise(layer) or (layer.Hi, layer.Wi) != (layer.Ho, layer.Wo)
