"""Networks of the families that users bring, compiled for every machine: what runs on the NPU, and how exactly.

    python benchmarks/public_networks.py [--network NAME].. [--target T].. [--json] [--check]

Each of npuc.models.PUBLIC is compiled at -O0 with proof, on samples of noise, and verified on others. A figure is
the signal to noise ratio of its worst output in dB, behind the share of MACs on the NPU if not all are. "rounded"
is that of the model under onnxruntime with the results of all nodes rounded to 8 bits: weights are random, so that
only the distance from it says something of npuc.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np
import onnx
from onnx import helper, numpy_helper

from npuc import api
from npuc.account import account_of, groups, macs_share, reasons
from npuc.errors import NpucError
from npuc.models import PUBLIC
from npuc.reference import session
from npuc.text.terminal import as_json, table
from npuc.verification.metrics import Difference

TARGETS = ("easynpu", "nvdla-small", "nvdla-full", "bm1684", "bm1684 int8")
HEAVY = {"GRU", "LSTM", "MatMul"}
"""Recurrence, and products of two activations: a host that runs these may have any share of the MACs."""
LEAST_SHARE = 0.9
MOST_NAMED = 4
CALIBRATION, TEST = 4, 2
"""Samples to compile with and to verify on."""


@dataclass(frozen=True)
class Row:
    """A network on a target; share: of its MACs on the NPU, None if it was refused."""

    network: str
    target: str
    status: str
    """`ok`, `mismatch`, or the refusal."""
    share: float | None = None
    decibels: float | None = None
    host: tuple[str, ...] = ()
    """The operators that the target refused, those with the most MACs first."""

    @property
    def within(self) -> bool:
        """Whether the program is right, and nearly all else than HEAVY operators on the NPU."""
        return self.status == "ok" and ((self.share or 0) >= LEAST_SHARE or bool(HEAVY & {*self.host}))


def samples(model: onnx.ModelProto, count: int, seed: int) -> dict[str, Any]:
    """Noise with mean 0.3 for the one input of a model, (count, 1, ...) float32."""
    (given,) = model.graph.input
    shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    return {given.name: np.random.default_rng(seed).normal(0.3, 1, (count, *shape)).astype(np.float32)}


def row(network: str, model: onnx.ModelProto, name: str) -> Row:
    """Compiles, proves and verifies a network for a target."""
    target, _, precision = name.partition(" ")
    flags: dict[str, Any] = {"precision": precision} if precision else {}
    try:
        program = api.compile(model, target, calibration=samples(model, CALIBRATION, 5), level=0, **flags)
        report = api.verify(model, program, samples(model, TEST, 9))
    except NpucError as error:
        return Row(network, name, str(error).splitlines()[0])
    entries = account_of(program.program.manifest)
    found = [each for each in groups(reasons(entries)) if each["code"].startswith("E")]
    host = tuple(dict.fromkeys(each["op"] for each in sorted(found, key=lambda each: -each["macs"])))
    least = min(each["sqnr_db"] or np.inf for each in report["outputs"])
    return Row(network, name, report["status"], macs_share(entries), least, host)


def rounding_noise(model: onnx.ModelProto) -> float:
    """The signal to noise ratio in dB of the worst output if every float tensor between nodes has 8 bits."""
    outputs, shown, cut = [each.name for each in model.graph.output], onnx.ModelProto(), onnx.ModelProto()
    inner = [name for node in model.graph.node for name in node.output if name not in outputs]
    shown.CopyFrom(model)
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    seen = results(shown, samples(model, CALIBRATION, 5))
    scales = {
        name: np.array(max(np.abs(seen[name]).max() / 127, 1e-30), np.float32)
        for name in inner
        if seen[name].dtype == np.float32
    }
    cut.CopyFrom(model)
    del cut.graph.node[:]
    cut.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.int8), "int8/zero"))
    for node in model.graph.node:
        cut.graph.node.append(node)
        for at, name in enumerate(node.input):
            cut.graph.node[-1].input[at] = f"{name}/8" if name in scales else name
        for name in filter(scales.__contains__, node.output):
            cut.graph.initializer.append(numpy_helper.from_array(scales[name], f"{name}/scale"))
            for op, x, y in (("Quantize", name, f"{name}/q"), ("Dequantize", f"{name}/q", f"{name}/8")):
                cut.graph.node.append(helper.make_node(f"{op}Linear", [x, f"{name}/scale", "int8/zero"], [y]))
    test = samples(model, TEST, 9)
    exact, found = results(model, test), results(cut, test)
    apart = {name: Difference() for name in outputs}
    for name, each in apart.items():
        each.add(exact[name], found[name])
    return min(each.sqnr_db or np.inf for each in apart.values())


def results(model: onnx.ModelProto, given: dict[str, Any]) -> dict[str, Any]:
    """All outputs of all samples under onnxruntime."""
    run = session(model.SerializeToString())
    names = [each.name for each in run.get_outputs()]
    ((name, x),) = given.items()
    rows = [run.run(names, {name: each}) for each in x]
    return {name: np.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def cells(network: str, model: onnx.ModelProto, rows: Sequence[Row]) -> tuple[str, ...]:
    """A network's line of the table."""
    shares = [f"{100 * each.share:.1f} %, " if each.share is not None and each.share < 1 else "" for each in rows]
    shown = [
        each.status if each.decibels is None else f"{share}{each.decibels:.1f}"
        for share, each in zip(shares, rows, strict=True)
    ]
    host = dict.fromkeys(op for each in rows for op in each.host)
    return (f"`{network}`", *shown, f"{rounding_noise(model):.1f}", ", ".join([*host][:MOST_NAMED]))


@click.command(help=__doc__)
@click.option("--network", "names", type=click.Choice(list(PUBLIC)), multiple=True, help="A network [all].")
@click.option("--target", "targets", type=click.Choice(TARGETS), multiple=True, help="A target [all].")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object on stdout.")
@click.option("--check", is_flag=True, help="Exit code 1 if a program is wrong, or too little is on the NPU.")
def main(names: tuple[str, ...], targets: tuple[str, ...], json_wanted: bool, check: bool) -> None:
    """Prints a line for each network."""
    found, lines = list[Row](), list[tuple[str, ...]]()
    for name in names or PUBLIC:
        model = PUBLIC[name]()
        rows = [row(name, model, target) for target in targets or TARGETS]
        found += rows
        lines.append(cells(name, model, rows))
    header = ("network", *(targets or TARGETS), "rounded", "refused")
    rows = [{**asdict(each), "within": each.within} for each in found]
    click.echo(as_json(rows) if json_wanted else table(header, lines))
    if check and not all(each.within for each in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
