"""A program's registers and memory, as they are or for $readmemh, with a map of their contents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npuc.errors import ArtefactError
from npuc.program import Program, canonical_json
from npuc.storage import readmemh
from npuc.system.budget import given
from npuc.targets.nvdla.machine.commands import Command
from npuc.targets.nvdla.machine.parameters import SRAM_BASE
from npuc.targets.nvdla.machine.registers import RegisterMap
from npuc.targets.nvdla.program.artefact import RECORD, RECORD_WORDS, Contents, decode

RECORD_BYTES = RECORD_WORDS * RECORD.itemsize


def files(program: Program, form: str) -> dict[str, bytes]:
    """Registers, memory and map.json.

    bin: the program's own files; map.json has the byte address of each image. readmemh: a line of registers.hex is
    a record, most significant digit first: value, mask, byte address, kind (0 write, 1 poll, 2 wait). A line of
    dram.hex is an atom of the machine; `@` counts atoms from the beginning of the memory, which is 0 elsewhere. A
    second memory is empty before the program runs.
    """
    contents = Contents.of(program.manifest)
    if form == "bin":
        images = [{"file": each.file, "address": each.address} for each in contents.dram.images]
        return {**program.files, "map.json": _map(program, contents, "registers.bin", {"images": images})}
    dram, atom = contents.dram, contents.machine.atom_bytes
    placed = [(each.address - dram.base, each.data(program.files)) for each in dram.images]
    return {
        "registers.hex": readmemh.written(program.files.get("registers.bin", b""), RECORD_BYTES),
        "dram.hex": readmemh.placed(placed, atom),
        "map.json": _map(program, contents, "registers.hex", {"file": "dram.hex", "word_bytes": atom}),
    }


def _map(program: Program, contents: Contents, registers: str, dram: Mapping[str, Any]) -> bytes:
    """map.json: steps with the places of inputs and outputs, the registers' file, what memory holds."""
    described = {key: program.manifest.get(key) for key in ("target", "machine", "steps")}
    described |= {
        "registers": {"file": registers, "word_bytes": RECORD_BYTES},
        "dram": {**dram, "base": contents.dram.base, "bytes": contents.dram.bytes},
    }
    if contents.machine.sram_bytes:
        described["sram"] = {"base": SRAM_BASE, "bytes": contents.machine.sram_bytes}
    return canonical_json(described)


def commands(path: Path, registers: RegisterMap) -> list[Command]:
    """The commands of a lone file of records. Raises NpucError (E501, E502, E110) as `decode` does."""
    try:
        return decode(readmemh.image_of(given(path, "E501", readmemh.WORDS), RECORD_BYTES), registers)
    except ArtefactError as error:
        raise error.advising(readmemh.WORDS) from None
