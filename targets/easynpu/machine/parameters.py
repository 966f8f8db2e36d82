"""The parameters of an EasyNPU machine, defined once; a TOML file overrides any of them.

Source: easynpu, chapters Scratch Pad (16 ifmap pads of 64 entries, weight pads of 16), PE (Pe_ps_addr has 6 bits,
hence 64 psums) and Storage (20 KB + 20 KB + 24 KB of DTCM in words of 128 bits).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.storage import records
from npuc.storage.records import DEMANDS, bad_machine, described

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
        """The values as the manifest records them; two sets of pads, the former only choice, are left out."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("ifmap_pad_sets", 2)}

    @classmethod
    def of(cls, values: dict[str, Any], origin: str) -> Machine:
        """A machine from names and values. Raises DoesNotFit (E305) for values that no EasyNPU can have."""
        machine = described(cls, values, origin, PAGE)
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
