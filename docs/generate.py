"""Writes the pages that derive from the code: error codes, supported operators, instruction set.

python docs/generate.py writes them; tests/test_documentation.py checks that they are up to date.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import onnx

from npuc.errors import CODES, REMEDIES
from npuc.ops import OPS, Parameter
from npuc.ops.attributes import Attribute
from npuc.registry import TARGETS
from npuc.target import target
from npuc.targets.easynpu.machine import isa

DOCS = Path(__file__).parent
NOTE = "<!-- written by docs/generate.py from the code -->"


def errors() -> str:
    """docs/errors.md."""
    rows = [f"| {code} | {meaning} | {REMEDIES.get(code, '')} |" for code, meaning in CODES.items()]
    return "\n".join(
        [
            "# Error codes",
            NOTE,
            "",
            "Every refusal is one block: code, operator, node, tensor, reason, limit, remedy; exit code 1. What a",
            "code means never changes. A usage error has exit code 2 and, with `--json`, the code `usage`.",
            "Warnings have the same fields and are printed. In the compile report, W2.. are among the",
            "`problems` of the `account`, W3.. in `warnings`.",
            "",
            "| code | meaning | what to do, if the error does not say it |",
            "|--|--|--|",
            *rows,
        ]
    )


def operators() -> str:
    """docs/operators.md."""
    lines = ["# Supported operators", NOTE]
    lines += ["", "The frontend reads more operators than any target runs: a target refuses the rest by name."]
    families: dict[type, list[str]] = {}
    for name in TARGETS:
        families.setdefault(type(target(name)), []).append(name)
    for names in families.values():
        lines += ["", f"## {', '.join(names)}", "", *_supported(names)]
    return "\n".join([*lines, "", *declarations()])


def _supported(names: Sequence[str]) -> list[str]:
    """The operators of targets of one kind: those with the same text in one row, and only where they differ."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for name in names:
        for row in target(name).operators():
            places.setdefault((row["op"], row["runs_as"], row["constraints"]), []).append(name)
    rows: dict[tuple[str, str, str], list[str]] = {}
    for (op, how, constraints), found in places.items():
        rows.setdefault(("all" if found == names else ", ".join(found), how, constraints), []).append(op)
    single = len(names) == 1
    order = [op for op, _, _ in places]
    letters = _letters(constraints for _, _, constraints in rows)
    lines = [*(f"- ({letter}) {sentence}" for sentence, letter in letters.items()), ""]
    lines += ["| operators | runs as | constraints |", "|--|--|--|"]
    if not single:
        lines[-2:] = ["| operators | on | runs as | constraints |", "|--|--|--|--|"]
    for (on, how, constraints), ops in sorted(rows.items(), key=lambda row: order.index(row[1][0])):
        text = " ".join(f"({letters[each]})" if each in letters else each for each in _sentences(constraints))
        lines.append(f"| {', '.join(ops)} |{'' if single else f' {on} |'} {how} | {text} |")
    return lines


def _letters(texts: Iterable[str]) -> dict[str, str]:
    """The sentences that three rows or more would repeat, and a letter for each."""
    counts = Counter(each for text in texts for each in _sentences(text))
    repeated = [each for each, count in counts.items() if count > 2 and len(each) > LONG]
    return dict(zip(repeated, ascii_lowercase, strict=False))


LONG = 40
"""Characters of a sentence that is worth a letter."""


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.) ", text) if text else []


def declarations() -> list[str]:
    """The operators of graphs, by their declarations, and the attributes that they have, each once."""
    lines = [
        "## The operators of the graph",
        "",
        "What the frontend makes of a model, passes rewrite and targets read. A pattern names extents: a capital",
        "name stands for one extent, one in small letters for an attribute, a name behind `*` for any number of",
        "extents. `Graph.check` refuses every other form, after every pass; `npuc/ops` has what else must hold,",
        "and, like the targets, the integer operators.",
        "",
        "| operator | from | inputs | outputs | attributes | meaning |",
        "|--|--|--|--|--|--|",
    ]
    owners: dict[tuple[str, str], list[str]] = {}
    plain: list[str] = []
    for row in OPS.values():
        if row.origin not in ("ONNX", "passes"):
            continue
        inputs, outputs = (", ".join(map(_parameter, each)) for each in (row.inputs, row.outputs))
        names = [each.name for each in row.attributes]
        defined = set(onnx.defs.get_schema(row.name).attributes) if onnx.defs.has(row.name) else set[str]()
        for each in row.attributes:
            if each.name not in defined:
                owners.setdefault((each.name, _attribute(each)), []).append(row.name)
        if row.origin == "ONNX" and not set(names) - defined:
            plain.append(row.name)
            continue
        summary = row.summary.replace("|", "\\|")
        lines.append(f"| {row.name} | {row.origin} | {inputs} | {outputs} | {', '.join(names)} | {summary} |")
    lines += ["", f"As ONNX defines them: {', '.join(plain)}."]
    lines += [
        "",
        "Attributes that ONNX does not define:",
        "",
        "| attribute | of | meaning (limit, default) |",
        "|--|--|--|",
    ]
    several = Counter(name for name, _ in owners)
    for (name, text), ops in owners.items():
        lines.append(f"| `{name}` | {', '.join(ops) if several[name] > 1 else ''} | {text} |")
    return lines


def _parameter(each: Parameter) -> str:
    """Name and pattern; brackets around what is optional."""
    shape = f" `[{', '.join(each.shape.split())}]`" if each.shape != "*" else ""
    text = f"{each.name}{'...' if each.variadic else ''}{shape}"
    return f"({text})" if each.optional else text


def _attribute(each: Attribute[Any]) -> str:
    default = "" if each.required or each.default in ((), "", None) else f", {each.default}"
    return f"{each.meaning} ({each.limit}{default})"


def instruction_set() -> str:
    """docs/easynpu-isa.md."""
    lines = [
        "# EasyNPU instruction set",
        NOTE,
        "",
        "A word has 128 bits and is stored little endian. The opcode selects the word type; `+0x20` continues the",
        "layer with the next word (fused), `+0x40` keeps its result in the skip DTCM as well (stored). Extension",
        "words stand before the layer word that they speak of, each at most once; one that it has no use for is",
        "refused (E503).",
        "",
        "| opcode | mnemonic | category | weight stream | in the document | meaning |",
        "|--|--|--|--|--|--|",
    ]
    for row in isa.OPERATIONS:
        parts = (("bias-scale", row.quantises), ("weights", row.weights), (row.block, row.block))
        stream = " + ".join(part for part, has in parts if has)
        lines.append(
            f"| 0x{row.opcode:02X} | {row.mnemonic} | {row.category} | {stream or '-'} "
            f"| {'yes' if row.documented else 'no'} | {row.meaning} |"
        )
    for role, extension in isa.EXTENSIONS.items():
        lines.append(f"| 0x{extension.opcode:02X} | {role} | extension | - | no | {extension.meaning} |")
    lines.append(f"| 0x{isa.HALT:02X} | halt | - | - | no | the end of the program |")
    for name, fields in isa.layout().items():
        lines += ["", f"## {name}", "", "| bits | field | stored | meaning |", "|--|--|--|--|"]
        lines += [f"| {f['bits']} | {f['field']} | {f['stored']} | {f['meaning']} |" for f in fields]
    written = (DOCS / "easynpu-isa.md").read_text(encoding="utf-8")
    return "\n".join([*lines, "", written[written.index(BY_HAND) :].rstrip("\n")])


BY_HAND = "## Where maps lie without extension words"
"""From here on the page of the instruction set is written by hand."""
PAGES = {"errors.md": errors, "operators.md": operators, "easynpu-isa.md": instruction_set}


if __name__ == "__main__":
    for page, text in PAGES.items():
        (DOCS / page).write_text(text() + "\n", encoding="utf-8")
