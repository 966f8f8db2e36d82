"""The instruction word against the document's tables, typed here by hand."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.errors import EncodingError
from npuc.storage.bits import encode
from npuc.targets.easynpu.machine.isa import (
    BY_OPCODE,
    Control,
    Halt,
    Instruction,
    Layer,
    Operand,
    Reshape,
    Undefined,
    bytes_to_words,
    decode_word,
    layout,
    words_to_bytes,
)

WORDS = st.integers(0, (1 << 128) - 1)

# field: (high bit, low bit, what is subtracted before it is stored). Source: the instruction format figure; the
# extents are stored minus one; bits 127:112 are unused in the document and hold Hi and Wi here.
LAYER_BITS = {
    "opcode": (7, 0, 0),
    "Sh": (11, 8, 0),
    "Sw": (15, 12, 0),
    "Ph": (19, 16, 0),
    "Pw": (23, 20, 0),
    "Dh": (27, 24, 0),
    "Dw": (31, 28, 0),
    "y": (37, 32, 1),
    "x": (43, 38, 1),
    "yi": (49, 44, 1),
    "xi": (55, 50, 1),
    "Hk": (63, 56, 1),
    "Wk": (71, 64, 1),
    "Ho": (79, 72, 1),
    "Wo": (87, 80, 1),
    "Co": (95, 88, 1),
    "Ci": (103, 96, 1),
    "Zs": (111, 104, 1),
    "Hi": (119, 112, 1),
    "Wi": (127, 120, 1),
}

# The document's opcode table, by hand; it lacks dwconv_relu and prelu.
OPCODES = {
    "conv": "000_000_00",
    "conv_relu": "000_001_00",
    "dwconv": "000_000_01",
    "dwconv_relu": "000_001_01",
    "bn": "000_000_10",
    "relu": "000_001_10",
    "act": "000_010_10",
    "maxpool": "000_011_10",
    "avgpool": "000_100_10",
    "add": "000_101_10",
    "mul": "000_110_10",
    "prelu": "000_111_10",
    "reshape": "100_000_00",
}

STEM = Layer(
    opcode=0x04,
    Sh=1, Sw=1, Ph=1, Pw=1, Dh=0, Dw=0,
    y=4, x=8, yi=6, xi=10,
    Hk=3, Wk=3, Ho=32, Wo=32, Co=16, Ci=3, Zs=1, Hi=32, Wi=32,
)  # fmt: skip

STRIDED = Layer(
    opcode=0x01 | 0x20,
    Sh=2, Sw=3, Ph=0, Pw=15, Dh=1, Dw=2,
    y=1, x=2, yi=5, xi=10,
    Hk=3, Wk=4, Ho=256, Wo=1, Co=256, Ci=256, Zs=16, Hi=7, Wi=129,
)  # fmt: skip

GOLDEN: list[tuple[Instruction, int]] = [
    (STEM, 0x1F1F0002_0F1F1F02_022451C3_00111104),
    # Dw|Dh = 21, Pw|Ph = F0, Sw|Sh = 32; y-1 = 0, x-1 = 1, y'-1 = 4, x'-1 = 9
    (STRIDED, 0x80060FFF_FF00FF03_02244040_21F03221),
    (Halt(), 0xFF),
    (
        Operand(opcode=0xC0, memory=1, base=0x123456, row=0xABCDEF, pixel=1, group=2),
        0x0000_000002_000001_ABCDEF_123456_01_C0,
    ),
    (Operand(opcode=0xC1), 0xC1),
    (Control(opcode=0xC4, keep_psum=1), 0x01C4),
    (Control(opcode=0xC4, set_weights=1, weights=0x7), 0x0702C4 | 0x7 << 16),
]  # fmt: skip


@pytest.mark.parametrize(("instruction", "value"), GOLDEN)
def test_words_assembled_by_hand_are_encoded_and_decoded(instruction: Instruction, value: int) -> None:
    assert encode(instruction) == value
    assert decode_word(value) == instruction


def _opcodes_of_layers() -> set[int]:
    bases = [int(text.replace("_", ""), 2) for name, text in OPCODES.items() if name != "reshape"]
    return {base | flags for base, flags in product(bases, (0x00, 0x20, 0x40, 0x60))}


@pytest.mark.parametrize("name", [name for name in LAYER_BITS if name != "opcode"])
def test_each_field_of_a_layer_word_has_the_documents_bits(name: str) -> None:
    high, low, less = LAYER_BITS[name]
    most = (1 << (high - low + 1)) - 1
    neutral = dict.fromkeys(("Sh", "Sw"), 0)
    for stored in {0, 1, most // 2, most}:
        assert encode(Layer(**{**neutral, name: stored + less})) == stored << low


@pytest.mark.parametrize("name", [name for name in LAYER_BITS if name != "opcode"])
def test_a_layer_field_refuses_one_more_than_it_holds(name: str) -> None:
    high, low, less = LAYER_BITS[name]
    beyond = (1 << (high - low + 1)) + less
    with pytest.raises(EncodingError) as caught:
        encode(Layer(**{name: beyond}))
    (problem,) = caught.value.problems
    assert problem.code == "E301"
    assert problem.reason.startswith(f"{name} = {beyond} ")
    assert problem.limit == f"{less}..{beyond - 1}"


def test_the_opcode_table_is_the_documents() -> None:
    assert {row.mnemonic: code for code, row in BY_OPCODE.items()} == {
        name: int(text.replace("_", ""), 2) for name, text in OPCODES.items()
    }
    assert [row.mnemonic for row in BY_OPCODE.values() if not row.documented] == ["dwconv_relu", "prelu"]


@pytest.mark.parametrize("opcode", range(256))
def test_each_of_the_256_opcodes_selects_the_right_word_type(opcode: int) -> None:
    expected = (
        Layer if opcode in _opcodes_of_layers()
        else Operand if opcode in (0xC0, 0xC1, 0xC2, 0xC3)
        else Control if opcode == 0xC4
        else Halt if opcode == 0xFF
        else Reshape if opcode == 0x80
        else Undefined
    )  # fmt: skip
    assert type(decode_word(opcode)) is expected


@pytest.mark.parametrize(("opcode", "fused", "stored"), [(0x04, 0, 0), (0x24, 1, 0), (0x44, 0, 1), (0x64, 1, 1)])
def test_the_flags_of_an_opcode_are_fused_and_stored(opcode: int, fused: bool, stored: bool) -> None:
    found = decode_word(opcode)
    assert isinstance(found, Layer)
    assert (found.fused, found.stored) == (fused, stored)
    assert found.operation is not None
    assert found.operation.mnemonic == "conv_relu"


@given(WORDS)
def test_every_128_bit_word_survives_decoding_and_encoding(value: int) -> None:
    assert encode(decode_word(value)) == value


@given(st.sampled_from(sorted(_opcodes_of_layers())), WORDS)
def test_every_layer_word_survives_decoding_and_encoding(opcode: int, value: int) -> None:
    value = value & ~0xFF | opcode
    found = decode_word(value)
    assert isinstance(found, Layer)
    assert encode(found) == value
    for name, (high, low, less) in LAYER_BITS.items():
        assert getattr(found, name) == (value >> low) % (1 << (high - low + 1)) + less


@given(st.lists(WORDS, max_size=6))
def test_an_image_survives_reading_and_writing_byte_for_byte(values: list[int]) -> None:
    image = b"".join(value.to_bytes(16, "little") for value in values)
    assert words_to_bytes(bytes_to_words(image)) == image


def test_the_first_byte_of_a_word_is_its_opcode() -> None:
    assert words_to_bytes([STEM])[:4] == bytes([0x04, 0x11, 0x11, 0x00])
    assert words_to_bytes([STEM])[-4:] == bytes([0x02, 0x00, 0x1F, 0x1F])


@pytest.mark.parametrize("size", [1, 15, 17, 31])
def test_an_image_of_partial_words_is_refused(size: int) -> None:
    with pytest.raises(EncodingError, match="not whole 128-bit words"):
        bytes_to_words(bytes(size))


def test_the_layout_lists_the_documents_bits_for_every_field() -> None:
    rows = {str(row["field"]): row for row in layout()["Layer"]}
    assert {name: row["bits"] for name, row in rows.items()} == {
        name: f"{high}:{low}" for name, (high, low, _) in LAYER_BITS.items()
    }
    assert {name for name, row in rows.items() if row["stored"] == "value - 1"} == {
        name for name, (_, _, less) in LAYER_BITS.items() if less
    }
