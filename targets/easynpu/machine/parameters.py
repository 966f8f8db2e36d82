"""The parameters of an EasyNPU machine, defined once, and the registers that identify a core with them.

A TOML file overrides any parameter.

Source: easynpu, chapters Scratch Pad (16 ifmap pads of 64 entries, weight pads of 16), PE (Pe_ps_addr has 6 bits,
hence 64 psums) and Storage (20 KB + 20 KB + 24 KB of DTCM in words of 128 bits).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.storage import records
from npuc.storage.records import DEMANDS, bad_machine, build_machine
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.isa import Control, Halt, Instruction, Layer, Operand

SHIPPED = {path.stem: path for path in sorted((Path(__file__).parents[1] / "machines").glob("*.toml"))}
"""The machine files that ship with npuc, by name."""
ROWS_MOST = 64
PAGE = "easynpu.md"
"""The page of docs/ that describes machine files."""


@frozen
class Machine:
    """One EasyNPU. Pads and memories are in entries and words; a word has one byte per PE."""

    name: str = "default"
    pes: int = 16
    pe_rows: int = 1
    """Rows of 16 PEs, which share weights and ifmap pads (a read port each) and divide the positions of a tile."""
    ifmap_pad_entries: int = 64
    ifmap_pad_sets: int = 2
    """1: the document's 16 pads, refilled in place while they are read; 2: one set is read, the other filled."""
    psum_entries: int = 64
    """Psums per PE of every row."""
    weight_pad_entries: int = 16
    parameter_pad_entries: int = 64
    """Entries of 32 + 8 bits per PE: bias and scale of a layer and of the words fused behind it (the author's RTL
    has 16, for one layer of 16 output channels per PE)."""
    fmap_words: int = 1280
    skip_words: int = 1280
    weight_words: int = 1536
    itcm_words: int = 256
    host_bytes_per_cycle: int = 1
    """Bytes that the host moves per cycle; with it plans weigh transfers against computation."""
    psum_write_first: bool = False
    """A write-first psum port: no bubble when one psum is read in the cycle after its write (x*y*zs = 1)."""
    overlap: bool = False
    """The host's bus also writes weight and map memories while words run, through a port of its own."""
    scales: str = "free"
    """The scales that activations may have: one of npuc.storage.records.DEMANDS."""

    @property
    def macs_per_cycle(self) -> int:
        """Multiply-accumulates of all PEs per cycle."""
        return self.pes * self.pe_rows

    @property
    def word_bytes(self) -> int:
        """Bytes of a DTCM word: one per PE."""
        return self.pes

    def capacity_words(self, memory: str) -> int:
        """Words of a memory named as on the command line: fmap, skip, weight, itcm."""
        return int(getattr(self, f"{memory}_words"))

    def as_dict(self) -> dict[str, Any]:
        """The values as the manifest records them, without those that were once the only choice."""
        former = {"ifmap_pad_sets": 2, "overlap": False}
        return {name: value for name, value in asdict(self).items() if former.get(name, ()) != value}

    @classmethod
    def of(cls, values: dict[str, Any], origin: str) -> Machine:
        """A machine from names and values. Raises DoesNotFit (E305) for values that no EasyNPU can have."""
        machine = build_machine(cls, values, origin, PAGE)
        if machine.pes != 16:
            raise _bad(
                origin, f"pes = {machine.pes}", "16: the instruction and the memory word are made for 16 PEs"
            )
        if machine.scales not in DEMANDS:
            raise _bad(origin, f"scales = {machine.scales!r}", ", ".join(DEMANDS))
        if machine.pe_rows > ROWS_MOST:
            raise _bad(origin, f"pe_rows = {machine.pe_rows}", f"1..{ROWS_MOST}")
        if machine.ifmap_pad_sets > 2:
            raise _bad(origin, f"ifmap_pad_sets = {machine.ifmap_pad_sets}", "1 or 2")
        if machine.weight_pad_entries > 256:
            raise _bad(origin, f"weight_pad_entries = {machine.weight_pad_entries}", "1..256 (Zs has 8 bits)")
        return machine


def _bad(origin: str, reason: str, limit: str) -> DoesNotFit:
    return bad_machine(origin, reason, limit, PAGE)


def names() -> tuple[str, ...]:
    """The machines that ship with npuc."""
    return ("default", *SHIPPED)


def load(name_or_file: str | None = None, scales: str | None = None) -> Machine:
    """The default machine, a shipped one by name, or one from a TOML file.

    scales: replaces the machine's demand. Raises DoesNotFit (E305) for an unknown name, an unreadable file or
    invalid values.
    """
    machine = records.load(Machine(), Machine.of, name_or_file, PAGE, SHIPPED)
    return replace(machine, scales=scales or machine.scales)


# The registers. Their numbers follow those of the port's control, resume, status and cycles; each has 32 bits.

SIZES = (
    "pe_rows", "ifmap_pad_entries", "psum_entries", "weight_pad_entries", "parameter_pad_entries",
    "fmap_words", "skip_words", "weight_words", "itcm_words",
)  # fmt: skip
"""The machine's sizes, one register each."""
CONTROLS = ("control", "resume", "status", "cycles")
REGISTERS = (*CONTROLS, "version", "words", *SIZES)
"""All registers in the order of their numbers. New ones are added at the end."""
WORDS = (*isa.EXTENSIONS, "halt", *(row.mnemonic for row in isa.OPERATIONS if not row.documented))
"""Words that the document does not define: bit n of the register `words` is set if the core runs the n-th.

The bit behind them is set if the host may load while words run.
"""
EQUAL, AT_LEAST, ALL_BITS = "equal", "at_least", "all_bits"


@frozen
class Requirement:
    """A program's requirement on a register: this value, no less, or all its bits."""

    register: int
    demand: str
    value: int


def identity(machine: Machine) -> dict[int, int]:
    """The values of the identifying registers of a core with this machine, by register."""
    values = {"version": isa.VERSION, "words": (1 << len(WORDS) + machine.overlap) - 1}
    values |= {name: int(getattr(machine, name)) for name in SIZES}
    return {REGISTERS.index(name): value for name, value in values.items()}


def requirements(machine: Machine, words: Iterable[Instruction], *, overlaps: bool = False) -> list[Requirement]:
    """The requirements of these words, compiled for this machine, on a core. overlaps: the host loads beside them.

    A core may have more of anything except Fmap DTCM: a map at the high end has another address in a larger one.
    """
    demands = {"version": EQUAL, "words": ALL_BITS, "fmap_words": EQUAL}
    values = {**identity(machine), REGISTERS.index("words"): _needed_bits(words) | overlaps << len(WORDS)}
    return [Requirement(at, demands.get(REGISTERS[at], AT_LEAST), value) for at, value in values.items()]


def _needed_bits(words: Iterable[Instruction]) -> int:
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
