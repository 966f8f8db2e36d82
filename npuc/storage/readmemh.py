"""Memory images for Verilog's $readmemh: one word per line in hexadecimal, most significant byte first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from npuc.errors import ArtefactError
from npuc.storage.files import decode

WORDS = "give a file of words alone, as npuc export --format bin or readmemh writes it"
"""The remedy for a file that is not one."""


def image_text(image: bytes, word_bytes: int) -> bytes:
    """The text of an image: little-endian words.

    >>> image_text(bytes([1, 2, 3, 4]), 2)
    b'0201\\n0403\\n'
    """
    words = (image[at : at + word_bytes] for at in range(0, len(image), word_bytes))
    return "".join(f"{int.from_bytes(word, 'little'):0{2 * word_bytes}x}\n" for word in words).encode()


def memory_text(images: Sequence[tuple[int, bytes]], word_bytes: int) -> bytes:
    """The text of a memory with images at byte addresses; bytes that no image covers are 0 within a word.

    >>> memory_text([(2, bytes([1, 2])), (8, bytes([3]))], 4)
    b'@0\\n02010000\\n@2\\n00000003\\n'
    """
    runs = _runs(images, word_bytes)
    return b"".join(b"@%x\n" % (start // word_bytes) + image_text(bytes(data), word_bytes) for start, data in runs)


def _runs(images: Sequence[tuple[int, bytes]], word_bytes: int) -> Iterator[tuple[int, bytearray]]:
    """Images that share a word or are adjacent, merged and extended to whole words."""
    start, data = 0, bytearray()
    for address, image in sorted(images):
        if not image:
            continue
        first = address // word_bytes * word_bytes
        if data and first > start + len(data):
            yield start, data
            data = bytearray()
        if not data:
            start = first
        size = -(-(address + len(image)) // word_bytes) * word_bytes - start
        data.extend(bytes(max(0, size - len(data))))
        data[address - start : address - start + len(image)] = image
    if data:
        yield start, data


def image_of(content: bytes, word_bytes: int) -> bytes:
    """The bytes of a file: decoded if it is text, unchanged if it is not.

    Raises ArtefactError (E501) for a line that is no word of this width, or that places words (@).

    >>> image_of(b"0201 // the first\\n0403\\n", 2), image_of(b"\\x01\\xff", 2)
    (b'\\x01\\x02\\x03\\x04', b'\\x01\\xff')
    """
    lines = _lines(content)
    digits = 2 * word_bytes
    for number, line in enumerate(lines, 1):
        for word in line:
            if not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", word):
                reason = f"line {number}: '{word[:digits]}' is no word of {digits} hexadecimal digits"
                limit = f"words of {digits} hexadecimal digits, from the first on, none placed by @"
                raise ArtefactError("E501", reason, limit=limit, remedy=WORDS)
    return b"".join(bytes.fromhex(word)[::-1] for line in lines for word in line) if lines else content


def _lines(content: bytes) -> list[list[str]]:
    """The words of every line without its comment; none if the content is not text that can be printed."""
    try:
        lines = decode(content).split("\n")
    except ValueError:
        return []
    return [line.partition("//")[0].split() for line in lines] if all(map(_printable, lines)) else []


def _printable(line: str) -> bool:
    return line.replace("\t", " ").isprintable()
