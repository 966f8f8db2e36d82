"""Listings with one character changed: an error that names the line, or a program of what is written."""

from __future__ import annotations

import random
import re

import pytest

from npuc.errors import NpucError
from npuc.program import Program, load
from npuc.storage import readmemh
from npuc.storage.bits import encode
from npuc.targets.bm1684.machine.parameters import Machine as Bm1684
from npuc.targets.bm1684.program.table import TABLE_FILE, read
from npuc.targets.easynpu.export.assembling import assemble_listing
from npuc.targets.easynpu.machine import isa, listing
from npuc.targets.easynpu.machine.isa import Instruction
from tests.cli.process import Digits, npuc
from tests.fuzz import cases

CHARACTERS = [*map(chr, range(32, 127)), *"\n\t\r\f\0\x1c\x85\u2028\u0661\u00e9"]
LABEL = re.compile(r"\s*\d+:\s+([0-9a-f]{32}\s)?")
Statement = tuple[str, dict[str, int]]


def changed(text: str, chance: random.Random, places: list[int]) -> str:
    """The text with a character replaced, left out, put in, or swapped with the next."""
    at, new = chance.choice(places), chance.choice(CHARACTERS)
    old, after = text[at : at + 1], text[at + 1 : at + 2]
    middle = chance.choice((new + after, after, new + old + after, after + old))
    return text[:at] + middle + text[at + 2 :]


def written(text: str) -> list[Statement]:
    """Mnemonics and fields of a listing, read after the description in its own way."""
    found: list[list[str]] = []
    for line in re.split("\r\n|\r|\n", text):
        words = LABEL.sub("", line.partition(";")[0], count=1).split()
        if words and "=" in words[0] and found:
            found[-1] += words
        elif words:
            found.append(words)
    return [(name, {key: _number(value) for key, _, value in map(_parts, pairs)}) for name, *pairs in found]


def _parts(pair: str) -> tuple[str, str, str]:
    return pair.partition("=")


def _number(text: str) -> int:
    return int(text, 16 if "x" in text else 10)


def expect_written(word: Instruction, statement: Statement) -> None:
    """Fails unless a word has exactly these fields, or their defaults."""
    name, fields = statement
    shown = listing.disassemble(word).split()
    assert set(shown[0].split(".")) == set(name.split("."))
    assert {key: getattr(word, key) for key in fields} == fields
    assert {pair.partition("=")[0] for pair in shown[1:]} <= fields.keys()


def expect_line(error: NpucError) -> None:
    """Fails unless an error names the line, or the number of words."""
    assert re.search(r"line \d+: |has \d+ words", error.problems[0].reason), error


@pytest.fixture(scope="module")
def program(digits: Digits) -> Program:
    return load(digits.program)


@pytest.mark.parametrize("seed", range(8))
def test_a_changed_listing_is_refused_by_line_or_means_what_is_written(
    digits: Digits, program: Program, seed: int
) -> None:
    text, chance = npuc("dump", digits.program).done(), random.Random(seed)
    lines = re.finditer("(?m)^[0-9]+:.*\n", text)
    code = [place for line in lines for place in range(*line.span())]
    for _ in range(40):
        given = changed(text, chance, code)
        try:
            made = assemble_listing(program, given.encode())
        except NpucError as error:
            expect_line(error)
            continue
        words, statements = isa.bytes_to_words(made.files["itcm.bin"]), written(given)
        assert len(words) == len(statements)
        for word, statement in zip(words, statements, strict=True):
            expect_written(word, statement)


def test_the_simulator_s_refusal_names_the_line(digits: Digits, program: Program) -> None:
    lines = npuc("dump", digits.program).done().splitlines()
    at = next(number for number, line in enumerate(lines) if "Co=32 Ci=32" in line)
    lines[at] = lines[at].replace("Ci=32", "Ci=6")  # its weights and scales are others' bytes then
    with pytest.raises(NpucError, match=r"line 22: .*\(instruction 7\)"):
        assemble_listing(program, "\n".join(lines).encode())


def test_changed_words_in_hexadecimal_are_refused_by_line_or_are_what_is_written(program: Program) -> None:
    image = program.files["itcm.bin"]
    text, chance = readmemh.image_text(image, isa.WORD_BYTES).decode(), random.Random(0)
    for _ in range(300):
        given = changed(text, chance, list(range(len(text))))
        try:
            found = readmemh.image_of(given.encode(), isa.WORD_BYTES)
        except NpucError as error:
            expect_line(error)
            continue
        if found == given.encode():  # not text, but bytes
            assert not given.replace("\n", "").replace("\r", "").replace("\t", "").isprintable()
            continue
        wanted = [word for line in given.splitlines() for word in line.partition("//")[0].split()]
        assert [f"{encode(word):032x}" for word in isa.bytes_to_words(found)] == [each.lower() for each in wanted]


def test_changed_calls_are_refused_by_line_or_are_what_is_written() -> None:
    original, chance, machine = cases.program("bm1684"), random.Random(0), Bm1684()
    text, places = original.files[TABLE_FILE].decode(), ["weights", "input", "output", "scratch"]
    for _ in range(600):
        given = changed(text, chance, list(range(len(text))))
        try:
            found = read(given.encode(), places, machine).data(places, machine).decode()
        except NpucError as error:
            expect_line(error)
            continue
        assert _plain(found) == _plain(given)


def _plain(text: str) -> list[str]:
    """Lines with numbers as they are usually written: no zeros in front, none negative."""
    return [re.sub(r"(?<![0-9a-f.=])-?0+(?=[0-9])|-(?=0\b)", "", line) for line in text.split("\n") if line]
