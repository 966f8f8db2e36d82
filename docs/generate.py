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
from npuc.targets.easynpu.layers.operators import OPERATORS as EASYNPU
from npuc.targets.easynpu.machine import isa
from npuc.targets.nvdla.arithmetic.operators import OPERATORS as NVDLA

DOCS = Path(__file__).parent
NOTE = "<!-- written by docs/generate.py from the code; edit there -->"


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
        "extents. `Graph.check` refuses every other form, after every pass; `npuc/ops` has what else must hold.",
        "",
        "| operator | from | inputs | outputs | attributes | meaning |",
        "|--|--|--|--|--|--|",
    ]
    declared = [
        *OPS.values(),
        *(row for table in (EASYNPU, NVDLA) for row in table.values() if row.name not in OPS),
    ]
    owners: dict[tuple[str, str], list[str]] = {}
    for row in declared:
        inputs, outputs = (", ".join(map(_parameter, each)) for each in (row.inputs, row.outputs))
        names = [each.name for each in row.attributes]
        defined = set(onnx.defs.get_schema(row.name).attributes) if onnx.defs.has(row.name) else set[str]()
        if row.name == "IntReshape":
            defined = {each["field"] for each in isa.layout()["Reshape"]}
            names = ["flat, and the fields of a [reshape word](easynpu-isa.md#reshape)"]
        for each in row.attributes:
            if each.name not in defined:
                owners.setdefault((each.name, _attribute(each)), []).append(row.name)
        summary = row.summary.replace("|", "\\|")
        lines.append(f"| {row.name} | {row.origin} | {inputs} | {outputs} | {', '.join(names)} | {summary} |")
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
    return "\n".join([*lines, "", BETWEEN_WORDS.strip()])


BETWEEN_WORDS = """
## Where maps lie without extension words

- A run begins with the current map at the low end of the Fmap DTCM, and with the weight stream at word 0.
- A chain's first word reads the current map, and so does a word behind one with `keep_psum`, unless `src` says
  otherwise. Word a of a map lies at address a at the low end, at D - 1 - a at the high one (D = `fmap_words`).
- The result of a chain goes to the end at which the current map does not lie, wherever `src` took its input from.
  It is the current map from then on: the sides toggle once for each chain, whatever the number of its words.
- `dst` before the last word of a chain (the `reshape` word, if it ends with one) sends the result elsewhere, and
  the sides do not toggle, also where it names the Fmap DTCM or the very end that the result would go to. The
  current map stays the one that it was, and the next chain without `src` reads it again.
- A chain whose psums stay (its last word has `keep_psum` and is not fused) has no result, and the sides do not
  toggle.
- The second operand of `add` and `mul`, and a stored copy, lie from word 0 of the skip DTCM on, `[Ho][Wo][Co/16]`.

## Psums

- A dense word holds x * y * Zs psums per PE. A channel-wise word holds x * y: for every tile it goes through its
  groups of 16 channels, and each group through all its kernel positions, its results and the fused words behind
  it, before the next group begins. Its Zs must be ceil(Co / 16) all the same; neither the psums nor
  `weight_pad_entries` limit it. With R rows of PEs (`pe_rows`) x * y stands for ceil(x * y / R).
- `keep_psum` stands before `conv`, `dwconv` and `avgpool` words. A fused one hands its psums to the next word of
  its chain, which reads an ifmap of its own by a window of its own, and has the same Ho, Wo, Co, y and x; both are
  dense or both channel-wise. Words on one psum take turns: dense ones for every tile, channel-wise ones for every
  16 channels of it.
- From chain to chain, also across runs, psums stay only if the layer is one tile (y >= Ho, x >= Wo) and,
  channel-wise, has at most 16 channels. The chain that takes them has the same Ho, Wo, Co, y and x, and is dense
  if that one was.
- A ReLU in the opcode of a word that keeps its psums has no effect: the last word's counts.

## The blocks of words that share psums

Every word has its own block in the weight stream, in the order of the words: 5 words of bias and scale per 16
output channels, then its weights. Of these

| word | bias | scale |
|--|--|--|
| the first, with `keep_psum` | starts the psums | is not used |
| one between, with `keep_psum` | must be 0 | is not used |
| the last | must be 0 | requantises the sum |
| one with `take_psum` | must be 0: the kept psums start it | as above, by its place |

A bias other than 0 where it must be 0 is refused (E503); lanes beyond Co hold anything. The words share the
entries of the bias and scale pads: the first fills them, each of the others replaces the scales. Without
`set_weights` the stream goes on from chain to chain; `set_weights` sets the address of the block of the word that
it stands before.
"""


PAGES = {"errors.md": errors, "operators.md": operators, "easynpu-isa.md": instruction_set}


if __name__ == "__main__":
    for page, text in PAGES.items():
        (DOCS / page).write_text(text() + "\n", encoding="utf-8")
