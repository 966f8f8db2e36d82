"""The EasyNPU instruction set: the 128-bit layer word, the opcode table and the extension words, defined once.

Source: easynpu, chapter Master controller (parameter table, opcode table, instruction format). Encoder, decoder,
listing syntax, documentation tables and tests derive from the declarations here. What the document leaves open (Hi
and Wi in the unused bits, minus-one extents, dilation 0 = none, the extension words) is decided in
docs/decisions.md.

An extension word (opcode 11x_xxx_xx, undefined in the document) affects only the next layer word: it sets the
address and pitches of one operand, or controls psums and the weight pointer. A program without extension words is
a program of the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from npuc.errors import EncodingError
from npuc.frozen import frozen
from npuc.storage.bits import bits, decode, encode, places, word

WORD_BITS = 128
WORD_BYTES = 16

FUSED = 0x20  # 001_???_??: the next instruction continues on this one's result
STORED = 0x40  # 01?_???_??: the result is also written to the skip DTCM
FLAGS = FUSED | STORED
VERSION = 1
"""Version of the instruction set, in a register of every core; it changes where a word changes its meaning.

Added words have a bit each in a register of their own (machine/parameters.py).
"""


@frozen
class Opcode:
    """A row of the opcode table: mnemonic, base opcode, category, contents of the weight stream."""

    mnemonic: str
    opcode: int
    category: str
    weights: bool
    """A weight block follows the bias-scale block."""
    quantises: bool
    """The weight stream has a bias-scale block (5 words per 16 channels)."""
    meaning: str
    documented: bool = True
    block: str = ""
    """What else the weight stream has."""


CONV, CHANNEL_WISE, RESHAPE = "BasicConv", "ChannelWise", "Reshape"

OPERATIONS: tuple[Opcode, ...] = (
    Opcode("conv", 0b000_000_00, CONV, True, True, "convolution, or a fully connected layer (Hk = Wk = 1)"),
    Opcode("conv_relu", 0b000_001_00, CONV, True, True, "convolution with ReLU"),
    Opcode("dwconv", 0b000_000_01, CHANNEL_WISE, True, True, "depthwise convolution"),
    Opcode("dwconv_relu", 0b000_001_01, CHANNEL_WISE, True, True, "depthwise convolution with ReLU", False),
    Opcode("bn", 0b000_000_10, CHANNEL_WISE, True, True, "batch normalisation: w * x + b per channel"),
    Opcode("relu", 0b000_001_10, CHANNEL_WISE, False, False, "ReLU"),
    Opcode(
        "act",
        0b000_010_10,
        CHANNEL_WISE,
        False,
        False,
        "activation by a piecewise-linear table",
        block="table (7 words)",
    ),
    Opcode("maxpool", 0b000_011_10, CHANNEL_WISE, False, False, "max pooling"),
    Opcode("avgpool", 0b000_100_10, CHANNEL_WISE, True, True, "average pooling by constant weights"),
    Opcode("add", 0b000_101_10, CHANNEL_WISE, False, True, "sum of two tensors"),
    Opcode("mul", 0b000_110_10, CHANNEL_WISE, False, True, "product of two tensors"),
    Opcode(
        "prelu",
        0b000_111_10,
        CHANNEL_WISE,
        False,
        False,
        "ReLU with a slope per channel for each sign",
        False,
        block="slopes (4 words per 16 channels)",
    ),
    Opcode("reshape", 0b100_000_00, RESHAPE, False, False, "permutation, split and stack of dimensions"),
)
BY_OPCODE: Mapping[int, Opcode] = {row.opcode: row for row in OPERATIONS}
BY_MNEMONIC: Mapping[str, Opcode] = {row.mnemonic: row for row in OPERATIONS}


@word(WORD_BITS)
@frozen(kw_only=True)
class Layer:
    """One layer: geometry of the convolution or its channel-wise equivalent."""

    opcode: int = bits(7, 0, "operation, fused and stored flags")
    Sh: int = bits(11, 8, "stride, rows", default=1)
    Sw: int = bits(15, 12, "stride, columns", default=1)
    Ph: int = bits(19, 16, "padding before the first row")
    Pw: int = bits(23, 20, "padding before the first column")
    Dh: int = bits(27, 24, "dilation - 1, rows (0 = none)")
    Dw: int = bits(31, 28, "dilation - 1, columns (0 = none)")
    y: int = bits(37, 32, "rows of the sub-ofmap (tile)", minus_one=True)
    x: int = bits(43, 38, "columns of the sub-ofmap (tile)", minus_one=True)
    yi: int = bits(49, 44, "y': rows of the sub-ifmap", minus_one=True)
    xi: int = bits(55, 50, "x': columns of the sub-ifmap", minus_one=True)
    Hk: int = bits(63, 56, "kernel rows", minus_one=True)
    Wk: int = bits(71, 64, "kernel columns", minus_one=True)
    Ho: int = bits(79, 72, "rows of the output feature map", minus_one=True)
    Wo: int = bits(87, 80, "columns of the output feature map", minus_one=True)
    Co: int = bits(95, 88, "output channels", minus_one=True)
    Ci: int = bits(103, 96, "input channels", minus_one=True)
    Zs: int = bits(111, 104, "output channels per PE", minus_one=True)
    Hi: int = bits(119, 112, "rows of the input feature map (unused in the document)", minus_one=True)
    Wi: int = bits(127, 120, "columns of the input feature map (unused in the document)", minus_one=True)

    @property
    def operation(self) -> Opcode | None:
        """The opcode's row, or None for an opcode that is not defined."""
        return BY_OPCODE.get(self.opcode & ~FLAGS)

    @property
    def fused(self) -> bool:
        """The next instruction continues on this result."""
        return bool(self.opcode & FUSED)

    @property
    def stored(self) -> bool:
        """The result is also written to the skip DTCM."""
        return bool(self.opcode & STORED)


@word(WORD_BITS)
@frozen(kw_only=True)
class Reshape:
    """A map in another order: dimensions permuted, then C, W, H and N in turn split and stacked.

    Alone it reads a map; behind fused words it is the last of the chain and determines where their result is
    written. The document's flags (001_???_??, 01?_???_??) leave bit 7 clear, so it has no flags. What the fields
    mean: rearrangement.destination.
    """

    opcode: int = bits(7, 0, "reshape", default=0b100_000_00)
    perm: int = bits(12, 8, "permutation of N, H, W, C: its place in lexicographic order, 0..23")
    reserved_low: int = bits(15, 13, "zero")
    minor_n: int = bits(16, 16, "N: a part is 0 = a block of indices, 1 = every factor-th index")
    minor_h: int = bits(17, 17, "H: the same")
    minor_w: int = bits(18, 18, "W: the same")
    minor_c: int = bits(19, 19, "C: the same")
    insert_n: int = bits(20, 20, "parts of N are 0 = stacked behind one another, 1 = inserted between the indices")
    insert_h: int = bits(21, 21, "parts of H: the same")
    insert_w: int = bits(22, 22, "parts of W: the same")
    insert_c: int = bits(23, 23, "parts of C: the same")
    reserved_middle: int = bits(31, 24, "zero")
    split_n: int = bits(39, 32, "parts that N is split into", minus_one=True)
    split_h: int = bits(47, 40, "parts that H is split into", minus_one=True)
    split_w: int = bits(55, 48, "parts that W is split into", minus_one=True)
    split_c: int = bits(63, 56, "parts that C is split into", minus_one=True)
    onto_n: int = bits(65, 64, "the dimension that parts of N are stacked on: 0 = N, 1 = H, 2 = W, 3 = C")
    onto_h: int = bits(67, 66, "the dimension that parts of H are stacked on")
    onto_w: int = bits(69, 68, "the dimension that parts of W are stacked on")
    onto_c: int = bits(71, 70, "the dimension that parts of C are stacked on")
    Ho: int = bits(79, 72, "rows of the output feature map", minus_one=True)
    Wo: int = bits(87, 80, "columns of the output feature map", minus_one=True)
    Co: int = bits(95, 88, "output channels", minus_one=True)
    Ci: int = bits(103, 96, "input channels", minus_one=True)
    reserved_high: int = bits(111, 104, "zero")
    Hi: int = bits(119, 112, "rows of the input feature map", minus_one=True)
    Wi: int = bits(127, 120, "columns of the input feature map", minus_one=True)

    @property
    def operation(self) -> Opcode | None:
        """The opcode's row."""
        return BY_OPCODE.get(self.opcode)


MEMORIES = ("fmap", "skip")


@word(WORD_BITS)
@frozen(kw_only=True)
class Operand:
    """Extension word: the place of an operand of the next layer word, instead of the implicit address.

    The word of pixel (iy, ix), 16-channel group g, is at base + iy*row + ix*pixel + g*group, counted upwards; a
    pitch of 0 broadcasts. Roles: `src` ifmap, `dst` ofmap, `opb` second operand, `sto` stored copy.
    """

    opcode: int = bits(7, 0, "which operand")
    memory: int = bits(15, 8, "0 = fmap DTCM, 1 = skip DTCM")
    base: int = bits(39, 16, "address of pixel (0, 0), group 0, in words")
    row: int = bits(63, 40, "words from a row to the next")
    pixel: int = bits(87, 64, "words from a pixel to the next in its row")
    group: int = bits(111, 88, "words from a 16-channel group to the next")
    reserved: int = bits(127, 112, "zero")


@word(WORD_BITS)
@frozen(kw_only=True)
class Control:
    """Extension word: keeps psums, takes kept ones, or sets the weight pointer, for the next layer word.

    Psums that the last word of a chain keeps stay in the pads for the first word of the next chain, even if the
    program ends in between and other weights are loaded. Both chains have a single tile.
    """

    opcode: int = bits(7, 0, "control")
    keep_psum: int = bits(8, 8, "1 = hand the psums, unquantised, to the next convolution")
    set_weights: int = bits(9, 9, "1 = the weight stream continues at `weights`")
    take_psum: int = bits(10, 10, "1 = begin with the psums that the chain before kept, instead of the bias")
    flags: int = bits(15, 11, "zero")
    weights: int = bits(39, 16, "address in the weight DTCM, in words")
    reserved: int = bits(127, 40, "zero")


@word(WORD_BITS)
@frozen(kw_only=True)
class Halt:
    """The end of the program (opcode FF)."""

    opcode: int = bits(7, 0, "halt", default=0xFF)
    reserved: int = bits(127, 8, "zero")


@word(WORD_BITS)
@frozen(kw_only=True)
class Undefined:
    """A word with an undefined opcode, preserved as it is."""

    opcode: int = bits(7, 0, "undefined")
    rest: int = bits(127, 8, "as found")


Instruction = Layer | Reshape | Operand | Control | Halt | Undefined


def needed_isa(words: Iterable[Instruction]) -> str:
    """The instruction set that a program needs: "documented" if the document defines all its words."""
    operations = [word.operation if isinstance(word, (Layer, Reshape)) else None for word in words]
    return "documented" if all(each and each.documented for each in operations) else "extended"


@frozen
class Extension:
    """An extension word: its opcode, its fields, and its effect on the next layer word."""

    opcode: int
    word: type[Operand] | type[Control]
    meaning: str


EXTENSIONS: Mapping[str, Extension] = {
    "src": Extension(0xC0, Operand, "where the ifmap lies; not before a word that continues on int8"),
    "dst": Extension(0xC1, Operand, "where the ofmap goes; only before the last word of a chain"),
    "opb": Extension(0xC2, Operand, "where the second operand of a sum or product lies"),
    "sto": Extension(0xC3, Operand, "where a stored result is kept"),
    "ctl": Extension(
        0xC4, Control, "keeps psums for the next word, takes those of the chain before, or sets the weight pointer"
    ),
}
ROLES: Mapping[int, str] = {extension.opcode: role for role, extension in EXTENSIONS.items()}
HALT = 0xFF


def word_type(opcode: int) -> type[Instruction]:
    """The declaration that an opcode selects."""
    if opcode == HALT:
        return Halt
    if opcode in ROLES:
        return EXTENSIONS[ROLES[opcode]].word
    row = BY_OPCODE.get(opcode & ~FLAGS)
    if row is None or opcode >= 0xC0:
        return Undefined
    if row.category == RESHAPE:
        return Reshape if opcode == row.opcode else Undefined
    return Layer


def decode_word(value: int) -> Instruction:
    """Any 128-bit word as an instruction; the inverse of encoding."""
    return decode(word_type(value & 0xFF), value)


def words_to_bytes(words: Iterable[Instruction]) -> bytes:
    """The instruction memory's image: 16 bytes per word, little endian."""
    return b"".join(encode(each).to_bytes(WORD_BYTES, "little") for each in words)


@lru_cache(maxsize=256)
def bytes_to_words(image: bytes) -> tuple[Instruction, ...]:
    """The instructions of an image. Raises EncodingError (E504) for a partial word."""
    if len(image) % WORD_BYTES:
        remedy = "give the folder that npuc compile wrote, or a file of words"
        reason = f"{len(image):,} bytes are not whole {8 * WORD_BYTES}-bit words"
        raise EncodingError("E504", reason, limit=f"a multiple of {WORD_BYTES} bytes", remedy=remedy)
    return tuple(
        decode_word(int.from_bytes(image[at : at + WORD_BYTES], "little"))
        for at in range(0, len(image), WORD_BYTES)
    )


def layout() -> dict[str, list[dict[str, str | int]]]:
    """Every word type as a table of its fields: for `dump --layout` and the documentation."""
    return {
        cls.__name__: [
            {
                "bits": f"{place.high}:{place.low}",
                "field": name,
                "width": place.width,
                "stored": "value - 1" if place.minus_one else "value",
                "meaning": place.meaning,
            }
            for name, place in places(cls).items()
        ]
        for cls in (Layer, Reshape, Operand, Control, Halt)
    }
