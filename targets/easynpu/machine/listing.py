"""Listings: a line of text per instruction word, and the reverse.

A line is `[number: [word in hexadecimal]] mnemonic[.fused][.stored] field=value ... ; comment`. Fields with their
default value may be omitted; number and word are ignored. A word with an undefined opcode is written `word 0x...`.
assemble(disassemble(word)) == word for every word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from npuc.errors import ArtefactError, EncodingError
from npuc.storage.bits import encode, places
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.isa import (
    FUSED,
    HALT,
    STORED,
    Control,
    Halt,
    Instruction,
    Layer,
    Operand,
    Reshape,
    Undefined,
)
from npuc.text.terminal import short

LABEL = re.compile(r"^\s*[0-9]+:(?=\s)(?:\s+[0-9a-f]{32}(?=\s))?")
"""The prefix that `npuc dump` writes before an instruction: its number and its word."""
NUMBER = re.compile(r"-?(?:(0x)[0-9a-fA-F]{1,40}|[0-9]{1,40})")


def mnemonic(instruction: Instruction) -> str:
    """The listing's name of a word, flags included."""
    match instruction:
        case Layer():
            operation = instruction.operation
            name = operation.mnemonic if operation else "?"
            return name + ".fused" * instruction.fused + ".stored" * instruction.stored
        case Reshape():
            return "reshape"
        case Operand() | Control():
            return isa.ROLES[instruction.opcode]
        case Halt():
            return "halt"
        case Undefined():
            return "word"


def disassemble(instruction: Instruction) -> str:
    """One line; fields with their default value are omitted."""
    if isinstance(instruction, Undefined):
        return f"word 0x{encode(instruction):032x}"
    defaults = type(instruction)()
    shown = [
        f"{name}={getattr(instruction, name)}"
        for name in places(type(instruction))
        if name != "opcode" and getattr(instruction, name) != getattr(defaults, name)
    ]
    return " ".join([mnemonic(instruction), *shown])


def assemble(line: str, number: int = 1) -> Instruction | None:
    """The word of a line, or None for a blank or comment line. Raises ArtefactError (E504)."""
    text = LABEL.sub("", line.split(";")[0], count=1).split()
    if not text:
        return None
    name, *pairs = text
    if name == "word":
        return _raw_word(pairs, number)
    cls, opcode = _opcode(name, number)
    known = places(cls)
    values: dict[str, int] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in known or key == "opcode":
            raise _bad(number, f"{name} has no field '{short(key)}'", f"fields: {', '.join(set_fields(cls))}")
        if key in values:
            raise _bad(number, f"'{key}' is set twice", "each field once")
        values[key] = _number(value, number)
    instruction = cls(opcode=opcode, **values)
    try:
        encode(instruction)
    except EncodingError as error:
        raise _bad(number, error.problems[0].reason, error.problems[0].limit or "") from None
    return instruction


def dumped_word(line: str) -> int | None:
    """The word in hexadecimal digits that `npuc dump` prints before a line's text; None if there is none.

    >>> hex(dumped_word("3:  00000000000000000000000000000006  relu"))
    '0x6'
    """
    found = LABEL.match(line)
    digits = found[0].partition(":")[2].strip() if found else ""
    return int(digits, 16) if digits else None


def statements(source: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The line number and text of every instruction; a line with only fields continues the instruction before it.

    >>> list(statements(["conv Hk=3 ; a", "", " Wk=3"]))
    [(1, 'conv Hk=3   Wk=3')]
    """
    number, statement = 0, ""
    for at, line in enumerate(source, 1):
        text = line.split(";")[0]
        first = next(iter(text.split()), "")
        if "=" in first and statement:
            statement += f" {text}"
        elif first:
            if statement:
                yield number, statement
            number, statement = at, text
    if statement:
        yield number, statement


def set_fields(cls: type[Instruction]) -> list[str]:
    """The fields a listing can set."""
    return [name for name in places(cls) if name != "opcode"]


def _opcode(name: str, number: int) -> tuple[type[Instruction], int]:
    if name == "halt":
        return Halt, HALT
    if name in isa.EXTENSIONS:
        return isa.EXTENSIONS[name].word, isa.EXTENSIONS[name].opcode
    base, *flags = name.split(".")
    if base not in isa.BY_MNEMONIC or not set(flags) <= {"fused", "stored"}:
        known = ", ".join([*isa.BY_MNEMONIC, *isa.EXTENSIONS])
        raise _bad(number, f"unknown instruction '{short(name)}'", f"one of {known}")
    opcode = isa.BY_MNEMONIC[base].opcode | FUSED * ("fused" in flags) | STORED * ("stored" in flags)
    cls = isa.word_type(opcode)
    if cls not in (Layer, Reshape):
        raise _bad(number, f"unknown instruction '{short(name)}'", f"'{base}' has no flags")
    return cls, opcode


def _raw_word(pairs: list[str], number: int) -> Instruction:
    if len(pairs) != 1:
        raise _bad(number, "'word' takes one number", "word 0x<32 hexadecimal digits>")
    value = _number(pairs[0], number)
    if not 0 <= value < 1 << isa.WORD_BITS:
        raise _bad(number, "the word does not fit", "128 bits")
    return isa.decode_word(value)


def _number(text: str, number: int) -> int:
    found = NUMBER.fullmatch(text)
    if found is None:
        raise _bad(number, f"'{short(text)}' is not a number", "up to 40 digits, hexadecimal after 0x")
    return int(found[0], 16 if found[1] else 10)


def _bad(number: int, reason: str, limit: str) -> ArtefactError:
    return ArtefactError("E504", f"line {number}: {reason}", limit=limit or None)
