"""Listings: text to words and back, and what a bad line is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.errors import ArtefactError
from npuc.storage.bits import encode
from npuc.targets.easynpu.machine.isa import FLAGS, OPERATIONS, Control, Halt, Layer, Operand, decode_word
from npuc.targets.easynpu.machine.listing import assemble, disassemble

WORDS = st.integers(0, (1 << 128) - 1)
DEFINED = [row.opcode | flags for row in OPERATIONS[:-1] for flags in (0, 0x20, 0x40, FLAGS)]
DEFINED += [0x80, 0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xFF]


@given(WORDS)
def test_every_word_survives_disassembly_and_assembly(value: int) -> None:
    line = disassemble(decode_word(value))
    found = assemble(line)
    assert found is not None
    assert encode(found) == value
    assert disassemble(found) == line


@given(st.sampled_from(DEFINED), WORDS)
def test_every_word_of_a_defined_opcode_survives_disassembly_and_assembly(opcode: int, value: int) -> None:
    value = value & ~0xFF | opcode
    line = disassemble(decode_word(value))
    assert not line.startswith("word")
    assert assemble(line) == decode_word(value)


@pytest.mark.parametrize(("line", "instruction"), [
    ("conv", Layer(opcode=0)), ("conv_relu Hk=3 Wk=3", Layer(opcode=4, Hk=3, Wk=3)),
    ("  dwconv.fused   Sh=2 ; a comment, Sw=9", Layer(opcode=0x21, Sh=2)),
    ("maxpool.stored Hk=0x2", Layer(opcode=0x4E, Hk=2)), ("add.fused.stored", Layer(opcode=0x76)),
    ("add.stored.fused", Layer(opcode=0x76)),
    ("src memory=1 base=100 row=0", Operand(opcode=0xC0, memory=1, base=100)),
    ("ctl keep_psum=1", Control(opcode=0xC4, keep_psum=1)), ("halt", Halt()), ("word 0x1e", decode_word(0x1E)),
    ("word 0x04", Layer(opcode=4, Sh=0, Sw=0)), ("", None), ("   ; only a comment", None),
])  # fmt: skip
def test_a_line_is_assembled_to_the_word_it_describes(line: str, instruction: object) -> None:
    assert assemble(line) == instruction


def test_fields_at_their_default_are_left_out() -> None:
    assert disassemble(Layer(opcode=0x24, Hk=3)) == "conv_relu.fused Hk=3"


@pytest.mark.parametrize(("line", "reason"), [
    ("convolve Hk=3", "unknown instruction 'convolve'"), ("conv.relu", "unknown instruction 'conv.relu'"),
    ("conv.", "unknown instruction 'conv.'"), ("halt.fused", "unknown instruction 'halt.fused'"),
    ("src.stored", "unknown instruction 'src.stored'"), ("conv Hx=3", "no field 'Hx'"),
    ("conv opcode=3", "no field 'opcode'"), ("conv Hk", "'' is not a number"), ("conv Hk=", "'' is not a number"),
    ("conv Hk=three", "'three' is not a number"), ("conv Hk=3 Hk=5", "'Hk' is set twice"),
    ("conv Hk=0", "Hk = 0 does not fit"), ("conv Hk=257", "Hk = 257 does not fit"),
    ("conv y=65", "y = 65 does not fit"), ("conv Sh=-1", "Sh = -1 does not fit"),
    ("ctl keep_psum=2", "keep_psum = 2 does not fit"), ("src base=0x1000000", "base = 16777216 does not fit"),
    ("word", "takes one number"), ("word 1 2", "takes one number"), ("word x", "'x' is not a number"),
    ("word -1", "does not fit"), (f"word 0x1{'0' * 32}", "does not fit"),
    (f"conv Hk={'9' * 5000}", "is not a number"),
])  # fmt: skip
def test_a_bad_line_is_refused_with_its_number(line: str, reason: str) -> None:
    with pytest.raises(ArtefactError) as caught:
        assemble(line, 41)
    (problem,) = caught.value.problems
    assert problem.code == "E504"
    assert problem.reason.startswith("line 41: ")
    assert reason in problem.reason


def _codes(text: str) -> set[str]:
    try:
        assemble(text)
    except ArtefactError as error:
        return {problem.code for problem in error.problems}
    return set()


@given(st.text(max_size=40))
def test_no_text_gives_anything_but_a_word_or_an_error_of_the_listing(text: str) -> None:
    assert _codes(text) <= {"E504"}
