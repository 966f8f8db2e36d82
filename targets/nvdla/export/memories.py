"""A program's registers and memory for $readmemh, with a map of their contents."""

from __future__ import annotations

from pathlib import Path

from npuc.errors import ArtefactError
from npuc.program import Program, canonical_json
from npuc.storage import readmemh
from npuc.system.budget import given
from npuc.targets.nvdla.machine.commands import Command
from npuc.targets.nvdla.machine.parameters import SRAM_BASE
from npuc.targets.nvdla.machine.registers import RegisterMap
from npuc.targets.nvdla.program.artefact import RECORD, RECORD_WORDS, Contents, decode

RECORD_BYTES = RECORD_WORDS * RECORD.itemsize


def files(program: Program) -> dict[str, bytes]:
    """registers.hex, dram.hex and map.json.

    A line of registers.hex is a record, most significant digit first: value, mask, byte address, kind (0 write, 1
    poll, 2 wait). A line of dram.hex is an atom of the machine; `@` counts atoms from the beginning of the memory,
    which is 0 elsewhere. A second memory is empty before the program runs.
    """
    contents = Contents.of(program.manifest)
    dram, atom = contents.dram, contents.machine.atom_bytes
    images = [(each.address - dram.base, each.data(program.files)) for each in dram.images]
    described = {key: program.manifest.get(key) for key in ("target", "machine", "steps")}
    described |= {
        "registers": {"file": "registers.hex", "word_bytes": RECORD_BYTES},
        "dram": {"file": "dram.hex", "word_bytes": atom, "base": dram.base, "bytes": dram.bytes},
    }
    if contents.machine.sram_bytes:
        described["sram"] = {"base": SRAM_BASE, "bytes": contents.machine.sram_bytes}
    return {
        "registers.hex": readmemh.written(program.files.get("registers.bin", b""), RECORD_BYTES),
        "dram.hex": readmemh.placed(images, atom),
        "map.json": canonical_json(described),
    }


def commands(path: Path, registers: RegisterMap) -> list[Command]:
    """The commands of a lone file of records. Raises NpucError (E501, E502, E110) as `decode` does."""
    try:
        return decode(readmemh.image_of(given(path, "E501", readmemh.WORDS), RECORD_BYTES), registers)
    except ArtefactError as error:
        raise error.advising(readmemh.WORDS) from None
