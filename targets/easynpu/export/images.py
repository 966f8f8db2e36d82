"""The program's words and images in other forms: listings, files for hardware.

A $readmemh file has one 128-bit word per line, most significant digit first: lane 15 ... lane 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npuc.bits import encode, places
from npuc.program import Program, canonical_json
from npuc.storage import readmemh
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine import listing as lines
from npuc.targets.easynpu.machine.isa import WORD_BYTES
from npuc.targets.easynpu.program.artefact import Produced


def listing(image: bytes, table: Sequence[Produced]) -> list[dict[str, Any]]:
    """One entry per word: number, hexadecimal word, listing line, fields, source nodes and result tensor."""
    return [
        {
            "index": index,
            "word": f"{encode(word):032x}",
            "text": lines.disassemble(word),
            "fields": {name: getattr(word, name) for name in places(type(word))},
            "nodes": list(table[index].nodes) if index < len(table) else [],
            "tensor": table[index].tensor if index < len(table) else None,
        }
        for index, word in enumerate(isa.bytes_to_words(image))
    ]


def exported(program: Program, form: str) -> dict[str, bytes]:
    """itcm and weight images as raw binary (bin), text (readmemh) or C with a driver (c), and map.json."""
    if form == "c":
        from npuc.targets.easynpu.export import c_export

        sources = c_export.exported(program)
        return {**sources, "map.json": _map(program, dict.fromkeys(program.files, "npuc_program.c"))}
    suffix = {"bin": "bin", "readmemh": "hex"}[form]
    names = {name: f"{Path(name).stem}.{suffix}" for name in program.files}
    texts = {name: readmemh.written(data, WORD_BYTES) for name, data in program.files.items() if form != "bin"}
    images = {file: texts.get(name, program.files[name]) for name, file in names.items()}
    return {**images, "map.json": _map(program, names)}


def _map(program: Program, files: Mapping[str, str]) -> bytes:
    """map.json: steps, placements, and the file of every image."""
    keys = ("target", "machine", "isa", "steps", "placements")
    described: dict[str, Any] = {key: program.manifest.get(key) for key in keys}
    described |= {"word_bytes": WORD_BYTES, "files": {Path(name).stem: file for name, file in files.items()}}
    return canonical_json(described)
