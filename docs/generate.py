"""Writes the pages that derive from the code: error codes, supported operators, instruction set.

python docs/generate.py writes them; tests/test_documentation.py checks that they are up to date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npuc.errors import CODES
from npuc.ops import OPS, Parameter
from npuc.ops.attributes import Attribute
from npuc.ops.declaration import sentence
from npuc.target import TARGETS, target
from npuc.targets.easynpu.layers.operators import OPERATORS as EASYNPU
from npuc.targets.easynpu.machine import isa
from npuc.targets.nvdla.arithmetic.operators import OPERATORS as NVDLA

DOCS = Path(__file__).parent
NOTE = "<!-- written by docs/generate.py from the code; edit there -->"


def errors() -> str:
    """docs/errors.md."""
    rows = [f"| {code} | {meaning} |" for code, meaning in CODES.items()]
    return "\n".join(
        [
            "# Error codes",
            NOTE,
            "",
            "Every refusal is one block: code, operator, node, tensor, reason, limit, remedy; exit code 1. What a",
            "code means never changes. A usage error has exit code 2 and, with `--json`, the code `usage`.",
            "Warnings (W...) have the same fields; they are printed and stand in the compile report's `warnings`.",
            "",
            "| code | meaning |",
            "|--|--|",
            *rows,
        ]
    )


def operators() -> str:
    """docs/operators.md."""
    lines = ["# Supported operators", NOTE]
    lines += ["", "The frontend reads more operators than any target runs: a target refuses the rest by name."]
    for name in TARGETS:
        rows = [f"| {row['op']} | {row['runs as']} | {row['constraints']} |" for row in target(name).operators()]
        lines += ["", f"## {name}", "", "| operator | runs as | constraints |", "|--|--|--|", *rows]
    return "\n".join([*lines, "", *declarations()])


def declarations() -> list[str]:
    """The operators of graphs, by their declarations."""
    lines = [
        "## The operators of the graph",
        "",
        "What the frontend makes of a model, passes rewrite and targets read. A pattern names extents: a capital",
        "name stands for one extent, one in small letters for an attribute, a name behind `*` for any number of",
        "extents. `Graph.check` refuses every other form, after every pass.",
        "",
        "| operator | from | inputs | outputs | attributes | what must hold | meaning |",
        "|--|--|--|--|--|--|--|",
    ]
    for row in (
        *OPS.values(),
        *(row for table in (EASYNPU, NVDLA) for row in table.values() if row.name not in OPS),
    ):
        inputs, outputs = (", ".join(map(_parameter, each)) for each in (row.inputs, row.outputs))
        attributes = "<br>".join(map(_attribute, row.attributes))
        demands = "<br>".join(f"{sentence(rule)}." for rule in row.requires)
        lines.append(
            f"| {row.name} | {row.origin} | {inputs} | {outputs} | {attributes} | {demands} | {row.summary} |"
        )
    return lines


def _parameter(each: Parameter) -> str:
    """Name and pattern; brackets around what is optional."""
    shape = f" `[{', '.join(each.shape.split())}]`" if each.shape != "*" else ""
    text = f"{each.name}{'...' if each.variadic else ''}{shape}"
    return f"({text})" if each.optional else text


def _attribute(each: Attribute[Any]) -> str:
    default = "" if each.required or each.default in ((), "", None) else f", {each.default}"
    return f"`{each.name}`: {each.meaning} ({each.limit}{default})"


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
    return "\n".join(lines)


PAGES = {"errors.md": errors, "operators.md": operators, "easynpu-isa.md": instruction_set}


if __name__ == "__main__":
    for page, text in PAGES.items():
        (DOCS / page).write_text(text() + "\n", encoding="utf-8")
