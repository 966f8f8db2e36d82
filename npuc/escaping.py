"""Text of models, artefacts and machine files inside other languages: one function a language, for every writer.

A name is whatever its author wants: it may end a comment, close a string, start a line, or move a terminal's
cursor. Nothing but these functions puts such text into a file or onto a terminal (tests/test_escaping.py).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from shlex import quote
from typing import Any, NewType

INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that Unicode counts as printable and that show nothing, or change what stands before them."""


def terminal(text: str) -> str:
    r"""One line for a terminal: what it would not show as a character of its own becomes an escape.

    That is control characters, line ends, directions and widths (bidirectional marks, zero-width characters).

    >>> print(terminal("conv\n\x1b[2J\u202e 1 é 卷积"))
    conv\n\x1b[2J\u202e 1 é 卷积
    """
    if text.isprintable() and (text.isascii() or not INVISIBLE.search(text)):
        return text
    return "".join(_visible(each) for each in text)


def _visible(character: str) -> str:
    if character.isprintable() and not INVISIBLE.match(character):
        return character
    return character.encode("unicode_escape").decode()


def printed(text: str) -> str:
    """The same for several lines: the text's own line ends stay."""
    return "\n".join(map(terminal, text.split("\n")))


Shown = NewType("Shown", Mapping[str, Any])
"""A report for people: every string in it, keys too, is as `terminal` has it."""


def shown(report: Mapping[str, Any]) -> Shown:
    """The report as one for people."""
    return Shown({terminal(key): _shown(each) for key, each in report.items()})


def _shown(value: Any) -> Any:
    match value:
        case str():
            return terminal(value)
        case Mapping():
            return shown(value)
        case list() | tuple():
            return type(value)(map(_shown, value))
        case _:
            return value


def listing(text: str) -> str:
    """The rest of a line behind the ; of a listing's comment."""
    return terminal(text)


def html(text: str) -> str:
    """The content of an element, or of an attribute in quotes.

    >>> html("<b>\u202e'")
    '&lt;b&gt;\\\\u202e&#x27;'
    """
    return escape(printed(text))


def json_text(value: object, indent: int | None = 1) -> str:
    r"""JSON in printable ASCII, which every terminal and pipe takes.

    >>> print(json_text(["é", "\x7f"], None))
    ["\u00e9", "\u007f"]
    """
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f")


def html_json(value: object) -> str:
    r"""JSON as the content of a script element, which nothing in it ends.

    >>> print(html_json("</script>"))
    "\u003c/script>"
    """
    return json_text(value, None).replace("<", "\\u003c")


def csv_lines(rows: Iterable[Sequence[object]]) -> str:
    r"""Rows of comma-separated values as RFC 4180 has them, but for single line feeds; None is an empty field.

    >>> print(csv_lines([("conv", None), ('a "b" c', "d,e")]))
    conv,
    "a ""b"" c","d,e"
    """
    text = io.StringIO()
    plain = csv.writer(text, lineterminator="\n")
    careful = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:  # a carriage return alone is not quoted before Python 3.13
        (careful if any(isinstance(each, str) and "\r" in each for each in row) else plain).writerow(row)
    return text.getvalue().rstrip("\n")


def toml_string(text: str) -> str:
    r"""A basic string.

    >>> print(toml_string('a "b"\n\x7f 😀'))
    "a \"b\"\n\u007f 😀"
    """
    body = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    return body.encode("utf-8", "replace").decode()


def toml_key(text: str) -> str:
    """A key of a table: bare where it can be.

    >>> toml_key("pe_rows"), toml_key("a.b")
    ('pe_rows', '"a.b"')
    """
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else toml_string(text)


def c_string(text: str) -> str:
    r"""A string literal of the text's UTF-8 bytes, in C and C++; nothing in it is a trigraph.

    >>> print(c_string('a "b" ??/ é'))
    "a \042b\042 \077\077/ \303\251"
    """
    plain = {ord(each): each for each in map(chr, range(32, 127)) if each not in '"\\?'}
    return '"' + "".join(plain.get(byte, f"\\{byte:03o}") for byte in text.encode("utf-8", "replace")) + '"'


def c_identifier(text: str) -> str:
    """What a function may be called: ASCII letters and digits, `_` for anything between; empty if there are none.

    Something has to follow it (`_kernel`), as it may be a word of C itself.

    >>> c_identifier("7 nets (é); int"), c_identifier("LeNet-5"), c_identifier("é")
    ('n7_nets_int', 'LeNet_5', '')
    """
    words = re.sub("[^A-Za-z0-9]+", "_", text).strip("_")
    return f"n{words}" if words[:1].isdigit() else words


def c_comment(text: str) -> str:
    """A comment on one line; what could end it, or mean anything to a compiler, becomes a dot.

    >>> c_comment("a*/b")
    '/* a./b */'
    """
    return f"/* {''.join(each if ' ' <= each <= '~' and each not in '*?' + chr(92) else '.' for each in text)} */"


def verilog_comment(text: str) -> str:
    """A comment to the line's end; what could end it, or is a directive, becomes a dot.

    >>> verilog_comment("large `include")
    '// large .include'
    """
    return f"// {''.join(each if ' ' <= each <= '~' and each not in '`' + chr(92) else '.' for each in text)}"


def dot_string(text: str) -> str:
    r"""A quoted identifier or label of Graphviz.

    >>> print(dot_string('a "b" \\N'))
    "a \"b\" \\N"
    """
    body = terminal(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{body}"'


def markdown_code(text: str) -> str:
    """A span of code on one line, in a paragraph, a list or a table.

    >>> markdown_code("a`b|c")
    "`a'b.c`"
    """
    return f"`{terminal(text).replace('`', chr(39)).replace('|', '.') or ' '}`"


def shell_word(text: str) -> str:
    """One word of a command.

    >>> shell_word("a b; rm")
    "'a b; rm'"
    """
    return quote(text)
