"""Escaping of text from models, artefacts and machine files for other languages, one function each; unique names.

A name can be anything its author wants: it may end a comment, close a string, start a line, or move a terminal's
cursor. Only these functions put such text into a file or onto a terminal (tests/text/test_escaping.py).
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
"""Characters that Unicode counts as printable but that are invisible, or change the preceding character."""


def terminal(text: str) -> str:
    r"""One line for a terminal: anything that it would not show as a visible character becomes an escape.

    This applies to control characters, line ends, bidirectional marks and zero-width characters.

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


def terminal_lines(text: str) -> str:
    """The same for several lines: line ends are kept."""
    return "\n".join(map(terminal, text.split("\n")))


Shown = NewType("Shown", Mapping[str, Any])
"""A report for display: every string in it, keys included, is escaped by `terminal`."""


def escape_report(report: Mapping[str, Any]) -> Shown:
    """The report, escaped for display."""
    return Shown({terminal(key): _escape(each) for key, each in report.items()})


def _escape(value: Any) -> Any:
    match value:
        case str():
            return terminal(value)
        case Mapping():
            return escape_report(value)
        case list() | tuple():
            return type(value)(map(_escape, value))
        case _:
            return value


def listing(text: str) -> str:
    """Text for a listing's comment, after the `;`."""
    return terminal(text)


def html(text: str) -> str:
    """Text for the content of an element, or of a quoted attribute.

    >>> html("<b>\u202e'")
    '&lt;b&gt;\\\\u202e&#x27;'
    """
    return escape(terminal_lines(text))


def json_text(value: object, indent: int | None = 1) -> str:
    r"""JSON in printable ASCII, safe for every terminal and pipe.

    >>> print(json_text(["é", "\x7f"], None))
    ["\u00e9", "\u007f"]
    """
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f")


def html_json(value: object) -> str:
    r"""JSON for the content of a script element; nothing in it can close the element.

    >>> print(html_json("</script>"))
    "\u003c/script>"
    """
    return json_text(value, None).replace("<", "\\u003c")


def csv_lines(rows: Iterable[Sequence[object]]) -> str:
    r"""Comma-separated values as in RFC 4180, but with single line feeds; None is an empty field.

    A null character, which many readers refuse, becomes U+FFFD.

    >>> print(csv_lines([("conv", None), ('a "b" c', "d,e")]))
    conv,
    "a ""b"" c","d,e"
    """
    text = io.StringIO()
    plain = csv.writer(text, lineterminator="\n")
    careful = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        fields = [each.replace("\0", "\ufffd") if isinstance(each, str) else each for each in row]
        lone = any(isinstance(each, str) and "\r" in each for each in fields)
        (careful if lone else plain).writerow(fields)  # before Python 3.13 csv does not quote a carriage return
    return text.getvalue().rstrip("\n")


def toml_string(text: str) -> str:
    r"""A basic string of TOML.

    >>> print(toml_string('a "b"\n\x7f 😀'))
    "a \"b\"\n\u007f 😀"
    """
    body = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    return body.encode("utf-8", "replace").decode()


def toml_key(text: str) -> str:
    """A key in TOML: bare if possible.

    >>> toml_key("pe_rows"), toml_key("a.b")
    ('pe_rows', '"a.b"')
    """
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else toml_string(text)


def c_string(text: str) -> str:
    r"""A string literal of the text's UTF-8 bytes, in C and C++; it contains no trigraph.

    >>> print(c_string('a "b" ??/ é'))
    "a \042b\042 \077\077/ \303\251"
    """
    plain = {ord(each): each for each in map(chr, range(32, 127)) if each not in '"\\?'}
    return '"' + "".join(plain.get(byte, f"\\{byte:03o}") for byte in text.encode("utf-8", "replace")) + '"'


def c_identifier(text: str) -> str:
    """The text as a C identifier: ASCII letters and digits, `_` for anything in between; empty if there are none.

    A suffix must follow it (`_kernel`), as it may be a C keyword.

    >>> c_identifier("7 nets (é); int"), c_identifier("LeNet-5"), c_identifier("é")
    ('n7_nets_int', 'LeNet_5', '')
    """
    words = re.sub("[^A-Za-z0-9]+", "_", text).strip("_")
    return f"n{words}" if words[:1].isdigit() else words


def c_comment(text: str) -> str:
    """A comment on one line; characters that could end it or mean something to a compiler become dots.

    >>> c_comment("a*/b")
    '/* a./b */'
    """
    return f"/* {_plain(text, '*?')} */"


def verilog_comment(text: str) -> str:
    """A comment to the end of the line; characters that could end it, and directives, become dots.

    >>> verilog_comment("large `include")
    '// large .include'
    """
    return f"// {_plain(text, '`')}"


def _plain(text: str, special: str) -> str:
    """Printable ASCII; dots for the rest, for backslashes and for special characters."""
    return "".join(each if " " <= each <= "~" and each not in f"{special}\\" else "." for each in text)


def markdown_code(text: str) -> str:
    """A code span on one line, for a paragraph, a list or a table.

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


class Names:
    """The set of names in use."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._made: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        """The last number behind a stem: all smaller ones are taken."""

    def all_names(self) -> frozenset[str]:
        """All names in use."""
        return frozenset(self._taken)

    def take(self, names: Iterable[str]) -> None:
        """Marks names as used."""
        self._taken.update(names)

    def of(self, stem: str) -> str:
        """The new unique name for a stem: always the same one for the same stem."""
        if stem not in self._made:
            self._made[stem] = self.new(stem)
        return self._made[stem]

    def new(self, stem: str) -> str:
        """A new unique name, which then counts as used: the stem, or the stem with a number.

        >>> names = Names(["conv"])
        >>> names.new("conv"), names.new("conv"), names.new("relu")
        ('conv_2', 'conv_3', 'relu')
        """
        name, count = stem, self._counts.get(stem, 1)
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._counts[stem] = count
        self._taken.add(name)
        return name
