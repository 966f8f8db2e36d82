"""The families of models.families on every target: the NPU's share, and the page docs/families.md.

    python benchmarks/families.py [--page] [TEXT ...]

Each is compiled, proved and verified bit for bit; a line has the share of multiply-accumulates on the NPU, and
below it the nodes on the host. With texts, only those whose line contains all of them. --page writes the page.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import click

from npuc import api, running
from npuc.account import account_of, groups, reasons
from npuc.errors import NEEDLESS, NpucError
from npuc.models.families import FAMILIES, STYLES, build
from npuc.samples.loading import synthetic
from npuc.target import FLOATING, Options

PAGE = Path(__file__).resolve().parents[1] / "docs" / "families.md"
MACHINES = {
    "easynpu": ("easynpu", "int8"),
    "nvdla-small": ("nvdla-small", "int8"),
    "nvdla-full int8": ("nvdla-full", "int8"),
    "nvdla-full fp16": ("nvdla-full", "fp16"),
    "bm1684": ("bm1684", "fp32"),
}
"""The target and precision of each column."""
SAMPLES = 2
"""Samples on which each program is verified, in addition to the one of its proof."""
USUAL_DB, LEAST_DB = 60, 40
"""SQNR that fp16 and fp32 usually reach, and that a deep network must reach; each layer is within rounding."""


@dataclass(frozen=True)
class Row:
    """A network on a target."""

    family: str
    style: str
    machine: str
    share: float | None = None
    exact: bool | None = None
    sqnr_db: float = inf
    """SQNR of the least accurate output against onnxruntime."""
    parts: int = 0
    regions: int = 0
    host: Mapping[str, str] | None = None
    """The reasons for host nodes, by operator with its count; without nodes there only for their neighbours."""
    failure: str = ""

    @property
    def text(self) -> str:
        """One line for a terminal."""
        return f"{self.family:20} {self.style:11} {self.machine:16} {self.cell}"

    @property
    def cell(self) -> str:
        """The NPU's share, whether the parts are bit-exact or the SQNR, and the numbers of parts and regions."""
        if self.failure:
            return f"failed: {self.failure}"
        precise = f"{self.sqnr_db:.1f} dB" if self.sqnr_db < USUAL_DB else f"{USUAL_DB} dB"
        exact = {True: "exact", False: "DIFFERS", None: precise}[self.exact]
        return f"{100 * (self.share or 0):.1f} %, {exact}, {self.parts} + {self.regions}"


def row(family: str, style: str, machine: str) -> Row:
    """Compiles and verifies one network."""
    target, precision = MACHINES[machine]
    model = build(family, style)
    try:
        compiled = api.compile(model, target, options=Options(precision=precision))
        samples = synthetic(running.program_inputs(compiled.program), SAMPLES, seed=1)
        floating: dict[str, float] = (
            {"min_sqnr_db": LEAST_DB, "min_cosine": 0.999} if precision in FLOATING else {}
        )
        found = api.verify(model, compiled, samples.inputs, **floating)
    except NpucError as error:
        return Row(family, style, machine, failure="; ".join(map(str, error.problems)))
    report = compiled.report
    parts: Sequence[Any] = report["partitions"]
    on_npu = sum(part["place"] == "npu" for part in parts)
    told = [each for each in groups(reasons(account_of(compiled.program.manifest))) if each["code"] != NEEDLESS]
    share, exact = report["npu_macs_share"], found["bit_exact"]
    errors = [each["sqnr_db"] for each in found["outputs"] if each["sqnr_db"] is not None]
    if found["status"] == "mismatch":
        return Row(family, style, machine, share, exact, failure="verification: mismatch")
    regions = len(parts) - on_npu
    return Row(family, style, machine, share, exact, min(errors, default=inf), on_npu, regions, _grouped(told))


def _grouped(told: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The first reason of each operator and code, by operator with its count."""
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    for each in told:
        key = (str(each["op"]), str(each["code"]))
        counts[key] += each["count"]
        first.setdefault(key, each["reason"])
    return {f"{counts[key]} {key[0]} ({key[1]})": reason for key, reason in first.items()}


def rows(texts: Sequence[str]) -> Iterator[Row]:
    """All networks on all targets, or those that have all the texts."""
    for family in FAMILIES:
        for style in STYLES:
            for machine in MACHINES:
                if all(text in f"{family} {style} {machine}" for text in texts):
                    yield row(family, style, machine)


HEAD = """# Families of networks on every target

Seven networks as TensorFlow, PyTorch's dynamo exporter and Paddle export them (`npuc.models.families`; small
inputs, random weights), compiled, proved and verified on every target by `python benchmarks/families.py --page`.
A cell has the share of multiply-accumulates on the NPU, whether its parts are bit-exact, and the number of NPU
parts plus host regions. fp16 and fp32 have no integer network: every single layer is within rounding errors, and
the cell has the signal-to-noise ratio of the whole network against onnxruntime ("60 dB" means 60 dB or more).

On EasyNPU and NVDLA the host runs products of two activations and, unless NVDLA computes in fp16 or int16, LSTM
and GRU. The integers are exact, but on synthetic samples this says nothing about the networks' accuracy.

"""


def page(found: Sequence[Row]) -> str:
    """The page: a table of shares, and a table of the nodes on the host."""
    lines = [f"| network | styles | {' | '.join(MACHINES)} |", f"|--|--|{'--|' * len(MACHINES)}"]
    for family in FAMILIES:
        alike: dict[tuple[str, ...], list[str]] = {}
        for style in STYLES:
            known = {each.machine: each.cell for each in found if (each.family, each.style) == (family, style)}
            alike.setdefault(tuple(known.get(machine, "-") for machine in MACHINES), []).append(style)
        lines += [f"| {family} | {', '.join(styles)} | {' | '.join(cells)} |" for cells, styles in alike.items()]
    return HEAD + "\n".join([*lines, "", "## What the host runs, and why", "", *_on_host(found)]) + "\n"


def _on_host(found: Sequence[Row]) -> list[str]:
    """A table with a line for each operator and reason: the targets and the networks that have it."""
    told: dict[tuple[str, str], list[Row]] = {}
    for each in found:
        for name, reason in (each.host or {}).items():
            told.setdefault((name.split(" ", 1)[1], reason), []).append(each)
    lines = ["| operator | reason | targets | networks |", "|--|--|--|--|"]
    for (name, reason), members in sorted(told.items()):
        machines, families = {each.machine for each in members}, {each.family for each in members}
        targets = ", ".join(each for each in MACHINES if each in machines)
        lines.append(
            f"| {name} | {reason} | {targets} | {', '.join(each for each in FAMILIES if each in families)} |"
        )
    return lines


@click.command()
@click.option("--page", "wanted", is_flag=True, help="Write docs/families.md.")
@click.argument("texts", nargs=-1)
def main(wanted: bool, texts: tuple[str, ...]) -> None:
    """Compiles and verifies the families on every target."""
    warnings.simplefilter("ignore")
    found: list[Row] = []
    for each in rows(texts):
        found.append(each)
        click.echo(each.text)
        for name, reason in (each.host or {}).items():
            click.echo(f"    {name}: {reason}")
    if wanted:
        PAGE.write_text(page(found), encoding="utf-8")
    if any(each.failure for each in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
