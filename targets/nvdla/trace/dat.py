"""Memory files of test programs: .dat packets of nv_small, dumps of nv_full.

A packet is {offset:0x20, size:4, payload:0x00 0x10 0x20 0x30}, one per line, of at most 32 bytes.
"""

from __future__ import annotations

import re
from pathlib import Path

from npuc.errors import ArtefactError
from npuc.system.budget import content

PACKET_BYTES = 32
PACKET = re.compile(r"\{\s*offset\s*:\s*(\w+)\s*,\s*size\s*:\s*(\w+)\s*,\s*payload\s*:([^}]*)\}")


def text_of(path: Path) -> str:
    """The text of a file. Raises ArtefactError (E502) if it cannot be read."""
    try:
        return content(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtefactError("E502", f"{path.name} cannot be read: {error.__class__.__name__}") from None


def packets(path: Path) -> list[tuple[int, bytes]]:
    """Runs of bytes by offset; adjacent packets are joined.

    Raises ArtefactError (E504) for a packet whose size is wrong.
    """
    joined: list[tuple[int, bytearray]] = []
    for offset_text, size, payload in PACKET.findall(text_of(path)):
        offset, data = int(offset_text, 0), _bytes(payload, path.name)
        if len(data) != int(size, 0):
            raise ArtefactError("E504", f"{path.name}: offset {offset_text} has {len(data)} bytes", limit=size)
        if joined and joined[-1][0] + len(joined[-1][1]) == offset:
            joined[-1][1].extend(data)
        else:
            joined.append((offset, bytearray(data)))
    return [(offset, bytes(data)) for offset, data in joined]


def packed(data: bytes) -> bytes:
    """The packets of bytes from offset 0 on, without those that are all zero."""
    lines = [
        f"{{offset:{at:#x}, size:{len(part)}, payload:0x{part.hex(' ').replace(' ', ' 0x')}}} ,"
        for at in range(0, len(data), PACKET_BYTES)
        if any(part := data[at : at + PACKET_BYTES])
    ]
    return ("\n".join(["{", *lines, "}"]) + "\n").encode()


def dump(path: Path, size: int) -> bytes:
    """The first bytes of a dump: lines of bytes after a header, whose lines do not begin with a byte.

    Raises ArtefactError (E504) if the dump has fewer.
    """
    lines = (line.strip() for line in text_of(path).splitlines())
    data = _bytes(" ".join(line for line in lines if line.startswith("0x")), path.name)
    if len(data) < size:
        raise ArtefactError("E504", f"{path.name} holds {len(data)} bytes", limit=f"{size}")
    return data[:size]


def _bytes(text: str, name: str) -> bytes:
    """Bytes written as 0x00, separated by blanks."""
    try:
        return bytes.fromhex(text.replace("0x", ""))
    except ValueError:
        pass  # a byte of one digit
    try:
        return bytes(int(each, 16) for each in text.split())
    except ValueError:
        raise ArtefactError("E504", f"{name} holds what is no byte", limit="0x00 to 0xff") from None
