"""Writes the pages that derive from the code: error codes, supported operators, instruction set.

python docs/generate.py writes them; tests/test_documentation.py checks that they are up to date.
"""

from __future__ import annotations

from pathlib import Path

from npuc.errors import CODES
from npuc.target import TARGETS, target
from npuc.targets.easynpu.machine import isa

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
    return "\n".join(lines)


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
