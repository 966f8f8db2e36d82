"""The registers that identify a core, and what a program requires of them.

Their numbers follow those of the port's control, resume, status and cycles. Each has 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterable

from npuc.frozen import frozen
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.isa import Control, Halt, Instruction, Layer, Operand
from npuc.targets.easynpu.machine.parameters import Machine

SIZES = (
    "pe_rows", "ifmap_pad_entries", "psum_entries", "weight_pad_entries", "parameter_pad_entries",
    "fmap_words", "skip_words", "weight_words", "itcm_words",
)  # fmt: skip
"""The machine's sizes, one register each."""
CONTROLS = ("control", "resume", "status", "cycles")
REGISTERS = (*CONTROLS, "version", "words", *SIZES)
"""All registers in the order of their numbers. New ones are added at the end."""
WORDS = (*isa.EXTENSIONS, "halt", *(row.mnemonic for row in isa.OPERATIONS if not row.documented))
"""Words that the document does not define: bit n of the register `words` is set if the core runs the n-th."""
EQUAL, AT_LEAST, ALL_BITS = "equal", "at_least", "all_bits"


@frozen
class Requirement:
    """A program's requirement on a register: this value, no less, or all its bits."""

    register: int
    demand: str
    value: int


def identity(machine: Machine) -> dict[int, int]:
    """The values of the identifying registers of a core with this machine, by register."""
    values = {"version": isa.VERSION, "words": (1 << len(WORDS)) - 1}
    values |= {name: int(getattr(machine, name)) for name in SIZES}
    return {REGISTERS.index(name): value for name, value in values.items()}


def requirements(machine: Machine, words: Iterable[Instruction]) -> list[Requirement]:
    """The requirements of these words, compiled for this machine, on a core.

    A core may have more of anything except Fmap DTCM: a map at the high end has another address in a larger one.
    """
    demands = {"version": EQUAL, "words": ALL_BITS, "fmap_words": EQUAL}
    values = {**identity(machine), REGISTERS.index("words"): _needed(words)}
    return [Requirement(at, demands.get(REGISTERS[at], AT_LEAST), value) for at, value in values.items()]


def _needed(words: Iterable[Instruction]) -> int:
    """The bits of `words` for the words that occur."""
    names = {name for name in map(_name, words) if name in WORDS}
    return sum(1 << WORDS.index(name) for name in names)


def _name(word: Instruction) -> str | None:
    match word:
        case Operand() | Control():
            return isa.ROLES[word.opcode]
        case Halt():
            return "halt"
        case Layer():
            return word.operation.mnemonic if word.operation else None
        case _:
            return None
