"""The disassembly for people, and the bytes of a file beside their meaning.

Headings, then number, word and fields of each instruction in columns. Headings are comments of the listing, and
the assembler ignores number and word, so the printed text can be assembled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from textwrap import wrap
from typing import Any

from npuc.account import short_names
from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.program import Program
from npuc.text.escaping import listing as in_listing
from npuc.text.escaping import terminal
from npuc.text.terminal import closest, csv_table, report_json
from npuc.view import Heading, Line, MemoryAnnotation, Name, by_nodes

Report = Mapping[str, Any]
LEVELS = ("segment", "layer", "operation", "unit")
ROW_BYTES = 16
NARROWEST = 40
"""Width in columns below which lines are no longer broken."""


@frozen
class Printed:
    """A line of the disassembly. kind: one of LEVELS, or "instruction"."""

    kind: str
    text: str
    fixed: int = 0
    """Columns before the instruction's own text."""


@frozen
class Disassembly:
    """Instructions with their headings."""

    entries: Sequence[Report]
    headings: Sequence[Heading]
    whole: Disassembly | None = None
    """The disassembly of which this is a part, for equally shortened names; None if it is complete."""

    @classmethod
    def of(cls, entries: Sequence[Report], outline: Sequence[Heading] | None) -> Disassembly:
        """With the target's headings, or those derived from the entries."""
        return cls(entries, by_nodes(entries) if outline is None else outline)

    @property
    def segments(self) -> list[Heading]:
        """Segments with instructions, in order."""
        return [each for each in self.headings if each.kind == "segment" and each.count]

    def keeping(self, kept: Iterable[Report]) -> Disassembly:
        """Some of the instructions, with the headings that cover them."""
        found = list(kept)
        if len(found) == len(self.entries):
            return self
        numbers = [entry["index"] for entry in found]
        headings = [each for each in self.headings if any(map(each.covers, numbers))]
        return Disassembly(found, headings, whole=self.whole or self)

    def of_nodes(self, nodes: set[str]) -> Disassembly:
        """The instructions of these ONNX nodes."""
        return self.keeping(entry for entry in self.entries if nodes & set(entry["nodes"]))

    def of_segment(self, number: int) -> Disassembly:
        """The instructions of a segment. Raises IndexError if there is none with this number."""
        segment = self.segments[number]
        return Disassembly(
            [entry for entry in self.entries if segment.covers(entry["index"])],
            [
                each
                for each in self.headings
                if each is segment or (each.kind != "segment" and segment.covers(each.start))
            ],
            whole=self.whole or self,
        )

    def lines(self, width: int | None = None) -> list[Printed]:
        """The lines to print. width: columns at which lines are broken; None: unlimited."""
        if not self.entries or not (self.entries[0]["word"] or any(entry["nodes"] for entry in self.entries)):
            return [Printed("instruction", terminal(entry["text"])) for entry in self.entries]
        shown = _Names(self)
        columns = _Columns.of(self.entries, shown)
        printed = list(chain.from_iterable(_place(self, shown, columns)))
        if width is None or width < NARROWEST:
            return printed
        return [Printed(each.kind, piece) for each in printed for piece in _break(each, width)]


class _Names:
    """The displayed forms of names."""

    def __init__(self, disassembly: Disassembly) -> None:
        self.short: Mapping[str, str] = short_names(_names(disassembly.whole or disassembly))

    def line(self, line: Line) -> str:
        """A line's text, escaped for comments and terminals."""
        shown = (self.short.get(each.text, each.text) if isinstance(each, Name) else each for each in line)
        return in_listing("".join(shown))


def _names(disassembly: Disassembly) -> Iterator[str]:
    for heading in disassembly.headings:
        yield from (each.text for line in heading.lines for each in line if isinstance(each, Name))


@frozen
class _Columns:
    """Widths of the columns before an instruction's fields."""

    shown: _Names
    index: int
    word: int
    mnemonic: int

    @classmethod
    def of(cls, entries: Sequence[Report], shown: _Names) -> _Columns:
        return cls(
            shown,
            max(len(str(entry["index"])) for entry in entries),
            max(len(_word(entry)) for entry in entries),
            max(len(_split(entry)[0]) for entry in entries),
        )

    def render(self, entry: Report, note: Line) -> Printed:
        word = f"  {_word(entry):<{self.word}}" if self.word else ""
        before = f"{entry['index']:>{self.index}}:{word}  "
        mnemonic, fields = _split(entry)
        text = f"{mnemonic:<{self.mnemonic}}  {fields}" if mnemonic else fields
        comment = f"  ; {self.shown.line(note)}" if note else ""
        whole = f"{before}{text}".rstrip() + comment
        return Printed("instruction", whole, len(before) + (self.mnemonic + 2) * bool(mnemonic))


def _word(entry: Report) -> str:
    """The word in hexadecimal; for targets without words, engine and cycles of a call."""
    if entry.get("engine"):
        return f"{terminal(entry['engine']):<4} {entry['cycles']:>7,}"
    return terminal(entry["word"] or "")


def _split(entry: Report) -> tuple[str, str]:
    """The mnemonic and its fields; no mnemonic if there are no fields."""
    text = terminal(entry.get("brief", entry["text"]))
    name, _, fields = text.partition(" ")
    return (name, fields) if "=" in fields.partition(" ")[0] or name == text else ("", text)


def _place(disassembly: Disassembly, shown: _Names, columns: _Columns) -> Iterator[Iterator[Printed]]:
    """Headings and instructions in order."""
    notes = {each.start: each.lines[0] for each in disassembly.headings if each.kind == "note"}
    above = dict.fromkeys(each for each in disassembly.headings if each.kind != "note")
    waiting = iter(sorted(above, key=lambda each: (each.start, LEVELS.index(each.kind))))
    heading = next(waiting, None)
    for entry in disassembly.entries:
        while heading is not None and heading.start <= entry["index"]:
            yield _heading(heading, shown)
            heading = next(waiting, None)
        yield iter((columns.render(entry, notes.get(entry["index"], ())),))
    while heading is not None:
        yield _heading(heading, shown)
        heading = next(waiting, None)


def _heading(heading: Heading, shown: _Names) -> Iterator[Printed]:
    """A heading's lines; those of a segment form a list under its first line."""
    for at, line in enumerate(heading.lines):
        indent = "  " * max(LEVELS.index(heading.kind) - 1, bool(at))
        yield Printed(heading.kind, f"; {indent}{shown.line(line)}")


def _break(line: Printed, width: int) -> list[str]:
    """The line in pieces that fit: comments continue as comments, bare fields continue the instruction above."""
    if len(line.text) <= width:
        return [line.text]
    if line.kind != "instruction":
        return wrap(line.text, width, subsequent_indent=";      ", break_long_words=False, break_on_hyphens=False)
    if "=" not in line.text.partition(";")[0] and "(" not in line.text:
        return [line.text]
    indent = " " * min(line.fixed, width - NARROWEST + 10)
    return wrap(line.text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def image_named(program: Program, asked: str) -> str:
    """The file of this name, or of a memory's name: `weight` is weight.bin. Raises ArtefactError (E508)."""
    found = [name for name in sorted(program.files) if asked in (name, name.partition(".")[0])]
    if not found:
        known = sorted(program.files)
        raise ArtefactError("E508", f"no image '{asked}'.{closest(asked, known)}", limit=", ".join(known))
    return found[0]


def image_rows(data: bytes, held: Iterable[MemoryAnnotation]) -> list[dict[str, Any]]:
    """Rows of at most 16 bytes: address, hexadecimal bytes in order, contents, nodes.

    A row ends where the next annotation begins; annotations with the same start share a row.
    """
    places: dict[int, list[MemoryAnnotation]] = {}
    for each in held:
        places.setdefault(each.start, []).append(each)
    starts = sorted({0, *(start for start in places if 0 <= start < len(data))})
    found: list[dict[str, Any]] = []
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        here = places.get(start, [])
        what = "; ".join(dict.fromkeys(each.what for each in here)) or None
        nodes = list(dict.fromkeys(node for each in here for node in each.nodes))
        for at in range(start, end, ROW_BYTES):
            found.append(
                {"address": at, "hex": data[at : min(at + ROW_BYTES, end)].hex(), "what": what, "nodes": nodes}
            )
    return found


def image_view(name: str, size: int, found: Sequence[Mapping[str, Any]], form: str) -> str:
    """The rows as text, JSON or CSV."""
    if form == "json":
        return report_json({"status": "ok", "image": name, "bytes": size, "rows": list(found)})
    if form == "csv":
        lines = ((row["address"], row["hex"], row["what"], " ".join(row["nodes"])) for row in found)
        return csv_table(("address", "hex", "what", "nodes"), lines)
    text: list[str] = []
    told = ""
    for row in found:
        parts = [row["what"], ", ".join(row["nodes"])]
        comment = terminal(" ; ".join(filter(None, parts))) if row["what"] else ""
        spaced = bytes.fromhex(row["hex"]).hex(" ")
        shown = comment if comment != told else ""
        text.append(f"{row['address']:08x}  {spaced:<{3 * ROW_BYTES}} {shown}".rstrip())
        told = comment
    return "\n".join(text)
