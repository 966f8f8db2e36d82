"""The text of files that people edit, in the encodings that editors and shells write."""

from __future__ import annotations

import codecs
from typing import Any


def toml(data: bytes) -> dict[str, Any]:
    """The values of a TOML file. Raises ValueError, or RecursionError, for one that is none.

    >>> toml(b"bits = 12")
    {'bits': 12}
    """
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # pyright: ignore
    return tomllib.loads(decoded(data))


def decoded(data: bytes) -> str:
    """The text of a file in UTF-8, or in UTF-16 with a byte order mark; every line ends with a line feed.

    Raises ValueError, which names the first line that is neither.

    >>> decoded(b"\\xef\\xbb\\xbfa\\r\\nb"), decoded("a\\n".encode("utf-16"))
    ('a\\nb', 'a\\n')
    """
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {number}: it is not UTF-8 text") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
