"""The program's words and images in other forms: listings, assembled words, files for hardware.

A $readmemh file has one 128-bit word a line, most significant digit first: lane 15 ... lane 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npuc.bits import encode, places
from npuc.errors import ArtefactError
from npuc.program import Program, canonical_json
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine import listing as lines
from npuc.targets.easynpu.machine.isa import WORD_BYTES
from npuc.targets.easynpu.program.artefact import Produced


def read(path: Path) -> bytes:
    """A file's bytes. Raises ArtefactError (E501) where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtefactError("E501", f"'{path}' cannot be read: {error.strerror or error}") from None


def listing(image: bytes, table: Sequence[Produced]) -> list[dict[str, Any]]:
    """One entry a word: number, hexadecimal word, listing line, fields, source nodes and result tensor."""
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


def assembled(program: Program, text: bytes) -> Program:
    """The program with the words of a listing in place of its own.

    Raises ArtefactError (E504) for a bad line, or for another number of words where several segments share them.
    """
    try:
        source = text.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ArtefactError("E504", "the listing is not UTF-8 text") from None
    words = [word for number, line in enumerate(source, 1) if (word := lines.assemble(line, number)) is not None]
    manifest = dict(program.manifest)
    if len(words) != len(manifest["instructions"]):
        manifest |= _resized(manifest, words)
    return Program(manifest, {**program.files, "itcm.bin": isa.words_to_bytes(words)})


def _resized(manifest: Mapping[str, Any], words: Sequence[isa.Instruction]) -> dict[str, Any]:
    """Steps, instruction table and report for another number of words, in a program of one segment."""
    segments = [step for step in manifest["steps"] if step["kind"] == "segment"]
    had = len(manifest["instructions"])
    if len(segments) != 1:
        raise ArtefactError(
            "E504", f"the listing has {len(words)} words", limit=f"{had}, as {len(segments)} segments had"
        )
    new = {
        **segments[0],
        "count": len(words),
        "images": [
            {**image, "words": len(words)} if image["memory"] == "itcm" else image
            for image in segments[0]["images"]
        ],
    }
    blank = {"nodes": [], "tensor": None, "shape": None, "start": [0, 0, 0]}
    return {
        "steps": [new if step["kind"] == "segment" else step for step in manifest["steps"]],
        "instructions": [
            {"index": index, "mnemonic": lines.mnemonic(word), **blank} for index, word in enumerate(words)
        ],
        "report": {**manifest["report"], "instructions": len(words)},
    }


def exported(program: Program, form: str) -> dict[str, bytes]:
    """itcm and weight images as raw binary (bin), text (readmemh) or C with a driver (c), and map.json."""
    if form == "c":
        from npuc.targets.easynpu.export import c_export

        sources = c_export.exported(program)
        return {**sources, "map.json": _map(program, dict.fromkeys(program.files, "npuc_program.c"))}
    suffix = {"bin": "bin", "readmemh": "hex"}[form]
    names = {name: f"{Path(name).stem}.{suffix}" for name in program.files}
    images = {names[name]: data if form == "bin" else readmemh(data) for name, data in program.files.items()}
    return {**images, "map.json": _map(program, names)}


def _map(program: Program, files: Mapping[str, str]) -> bytes:
    """map.json: steps and placements, and in which file every image stands."""
    keys = ("target", "machine", "isa", "steps", "placements")
    described: dict[str, Any] = {key: program.manifest.get(key) for key in keys}
    described |= {"word_bytes": WORD_BYTES, "files": {Path(name).stem: file for name, file in files.items()}}
    return canonical_json(described)


def readmemh(image: bytes) -> bytes:
    """One word a line in hexadecimal, as Verilog's $readmemh takes it."""
    words = (image[at : at + WORD_BYTES] for at in range(0, len(image), WORD_BYTES))
    return "".join(f"{int.from_bytes(word, 'little'):032x}\n" for word in words).encode()
