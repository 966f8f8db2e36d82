"""Text output of the command line: summaries and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuc.account import PLACES, Entry, fate, list_names, place_lines, reasons
from npuc.errors import IN_FLOAT
from npuc.program import Ranges
from npuc.reports.difference import changes_line
from npuc.reports.layers import figure_text, layer_facts, value_text
from npuc.reports.tables import Column, as_text
from npuc.text.escaping import Shown
from npuc.text.terminal import count, plural, short, table

if TYPE_CHECKING:
    from npuc.verification.metrics import Tolerance

NEAR = 3.0
"""A part is named if it loses, alone, at least half of the noise of all: dB."""
POOR = 20.0
"""Signal to noise in dB of outputs below which the summary of a compile says what to do."""
CHIP_MODELS = {
    "own": "npuc's model of the chip",
    "quick": "npuc's quick model of the chip",
    "vendor": "the vendor's model of the chip",
    "rtl": "the hardware description",
}


def _an_image(report: Mapping[str, Any]) -> str:
    """Cycles per image of a batch; empty if the program takes a single image."""
    each = report.get("cycles_per_image", report["cycles"])
    return "" if each == report["cycles"] else f" ({each:,.0f} an image)"


def compile_summary(report: Shown, entries: Sequence[Entry], directory: Path, *, verbose: bool) -> str:
    """The summary of `npuc compile`. entries: the account of the model."""
    lines = [
        f"{directory}: {report['target']}, machine {report['machine']}",
        f"  {plural(report['instructions'], 'instruction')} in {plural(report['segments'], 'segment')}, "
        f"{count(report['macs'])} MACs",
        f"  {count(report['cycles'])} cycles modelled{_an_image(report)}, "
        f"utilization {report['utilization'] or 0:.3f} (ideal {report['ideal_cycles']:,.0f})",
    ]
    if "busier_engine_cycles" in report:
        engines = f"BDC {count(report['bdc_cycles'])}, GDMA {count(report['gdma_cycles'])}"
        least = f"{count(report['macs'])} MACs, {count(report['least_traffic_bytes'])} bytes to move"
        lines += [
            f"  no order of its calls takes less than {count(report['busier_engine_cycles'])} cycles ({engines})",
            f"  no program takes less than {count(report['network_bound_cycles'])} cycles ({least})",
        ]
    lines += [
        f"  {name:<7}{count(use['peak_bytes']):>10}{_capacity(use)} bytes "
        f"(lower bound {count(use['lower_bound_bytes'])})"
        for name, use in report["memory"].items()
    ]
    traffic = report.get("host_traffic")
    if traffic:
        bounds = f"every program moves {count(traffic['least_bytes'])}"
        if traffic["optimum_bytes"] is not None:
            bounds += f", best plan {count(traffic['optimum_bytes'])}"
        lines.append(f"  {count(report['traffic_bytes'])} bytes moved by the host ({bounds})")
        if "transfer_cycles" in traffic:
            rate = f"{count(traffic['transfer_cycles'])} cycles at {traffic['bytes_per_cycle']} a cycle"
            whole = [traffic["cycles_with_transfers"], traffic.get("first_inference_cycles", 0)]
            first = f" ({count(whole[1])} for the first inference)" if whole[1] > whole[0] else ""
            lines.append(f"  {rate}, with computation {count(whole[0])}{first}")
        lines += _plans(traffic["plans"]) if verbose else []
    if report.get("padding_cycles"):
        lines.append(f"  {count(report['padding_cycles'])} cycles surround maps with zero points that are not 0")
    lines += [f"  {_proof(report['proof'])}"] if "proof" in report else []
    lines += [f"  {each}" for each in _whole(report.get("whole"))]
    origin = str(Ranges(**report.get("ranges", {})))
    lines += [f"  activation ranges: {origin}"] if origin else []
    lines += [f"  {each}" for each in place_lines(entries, [*reasons(entries)], verbose=verbose)]
    if verbose:
        done = [each["text"] for each in report.get("rewrites", [])]
        lines += ["", *done] if done else []
        lines += _accuracy(report.get("quantization"))
        lines += ["", _layers(report["layers"])]
    return "\n".join(lines)


def _proof(proof: Shown) -> str:
    """The comparisons made before the program was written."""
    if not proof["samples"]:
        return "not proved: the program was not run"
    against = "integer reference in every bit" if proof["bit_exact"] else "onnxruntime layer by layer"
    model = ", rewritten graph with the model" if proof["model"] else ""
    return f"proved on {plural(proof['samples'], 'sample')}: chip model agrees with {against}{model}"


def _whole(loss: Shown | None) -> Iterator[str]:
    """What the parts cost the outputs of the whole model, as far as it is much."""
    if loss is None:
        return
    poor = loss["sqnr_db"] is not None and loss["sqnr_db"] < POOR
    remedy = f"; {IN_FLOAT}" if poor else ""
    yield f"the whole model: {_decibels(loss['sqnr_db'])} on {plural(loss['samples'], 'held-out sample')}{remedy}"
    for each in loss["parts"]:
        if (
            loss["sqnr_db"] is not None
            and each["sqnr_db"] is not None
            and each["sqnr_db"] < loss["sqnr_db"] + NEAR
        ):
            yield f"  {each['path']} alone: {_decibels(each['sqnr_db'])}, most lost by '{short(each['node'])}'"


def _plans(plans: Sequence[Shown]) -> list[str]:
    """Transfers and recomputation of each objective's plan; empty if the plans coincide."""
    if len({(each["bytes"], each["halo_cycles"]) for each in plans}) < 2:
        return []
    return [
        f"    least {plan['objective']}: {count(plan['bytes'])} bytes, {count(plan['halo_cycles'])} halo cycles"
        for plan in plans
    ]


def _capacity(use: Shown) -> str:
    return "" if use["capacity_bytes"] is None else f" of {count(use['capacity_bytes'])}"


def _accuracy(quantization: Shown | None) -> list[str]:
    """The steps tried for accuracy, one line each."""
    if not quantization or not quantization["steps"]:
        return []
    header = ("tried for accuracy", "kept", "before dB", "with it dB", "CPU s")
    rows = [
        (step["name"], "yes" if step["kept"] else "no", step["before_db"], step["after_db"], step["seconds"])
        for step in quantization["steps"]
    ]
    return ["", table(header, rows)]


def _layers(layers: Sequence[Shown]) -> str:
    return as_text(layers, [column for column in COLUMNS if all(column.key in layer for layer in layers)])


COLUMNS = (
    Column("layer", "name", lambda layer: short(layer["name"])),
    Column("op", "op"),
    Column("tile", "tile", lambda layer: f"{layer['tile'][0]}x{layer['tile'][1]}"),
    Column("tried", "tile_candidates"),
    Column("MACs", "macs"),
    Column("cycles", "cycles"),
    Column("BDC", "bdc_cycles"),
    Column("GDMA", "gdma_cycles"),
    Column(
        "util.",
        "ideal_cycles",
        lambda layer: layer["ideal_cycles"] / layer["cycles"] if layer["macs"] and layer["cycles"] else None,
    ),
    Column("weight words", "weight_words"),
    Column("weights as", "weight_form"),
    Column("table LSB", "table_error_lsb"),
)


def verify_summary(report: Shown, tolerance: Tolerance) -> str:
    """The results of `npuc verify`."""
    rows = [
        (
            short(layer["name"]),
            layer["op"],
            layer["bit_exact"],
            *_errors(layer["entire"]),
            *_errors(layer["single"]),
        )
        for layer in report["layers"]
    ]
    header = ("layer", "op", "bit exact", "entire dB", "cosine", "single dB", "cosine")
    lines = [table(header, rows), ""]
    lines += [
        f"output {each['name']}: {_decibels(each['sqnr_db'])}, cosine {each['cosine']:.6f}, "
        f"largest error {each['max_abs_error']:.4g}"
        for each in report["outputs"]
    ]
    lines += [
        f"output {each['name']}: onnxruntime itself gives NaN for {plural(each['nan_samples'], 'sample')}: "
        "give data that the model can process (--data DATA.npz)"
        for each in report["outputs"]
        if each["nan_samples"]
    ]
    lines += [
        f"output {each['name']}: left out {plural(each['jumps'], 'element')} at a threshold or a tie, "
        "where rounding decides"
        for each in report["outputs"]
        if each["jumps"]
    ]
    lines += [
        f"{each['rewrite']}: {'WRONG' if each['wrong'] else _decibels(each['sqnr_db'])} from onnxruntime"
        for each in report.get("read_as", ())
    ]
    lines += [report["reference"]] if report.get("reference") else []
    if report["argmax_agreement"] is not None:
        lines.append(f"argmax as fp32: {report['argmax_agreement']:.4f} of {plural(report['samples'], 'sample')}")
    lines += _task(report["task"])
    if report["bit_exact"] is not None:
        exact = "agree in every bit" if report["bit_exact"] else "DIFFER"
        lines.append(f"simulator and integer reference {exact}")
    if report.get("cycles") is not None:
        lines.append(f"{count(report['cycles'])} cycles a sample on {CHIP_MODELS[report['chip_model']]}")
    asked = [
        f"{short(each['name'])} at least {each['sqnr_db']:.1f} dB and cosine {each['cosine']:.4f}"
        for each in report["criterion"] or ()
        if each["sqnr_db"] is not None
    ]
    limits = "; ".join(asked) or "every bit"
    lines += [f"criterion: {limits}"] if asked else []
    lines += _bisection_lines(report["bisect"]) if "bisect" in report else []
    lines += [f"  {each}" for each in _whole(report.get("whole"))]
    origin = str(Ranges(**report.get("ranges", {})))
    lines += [f"activation ranges: {origin}"] if origin else []
    lines += [f"likely: {each['cause']}: {each['remedy']}" for each in report.get("causes", ())]
    judged = "verified" if tolerance.judges else "verified; synthetic data do not tell how accurate it is"
    lines.append(judged if report["status"] == "ok" else f"MISMATCH (tolerance: {limits})")
    return "\n".join(lines)


def _task(counted: Shown | None) -> list[str]:
    """Top-1 and top-5 shares of samples, one line per computation."""
    if counted is None:
        return []
    lines: list[str] = []
    for name, share in counted.items():
        if share is not None:
            top5 = "" if share["top5"] is None else f", top-5 {100 * share['top5']:.2f} %"
            lines.append(f"{name:<9}  top-1 {100 * share['top1']:.2f} %{top5}")
    return lines


def _bisection_lines(found: Shown) -> list[str]:
    """The first difference, or the layer that adds the most noise."""
    match found["kind"]:
        case "difference":
            lines = _first_difference(found)
        case "loss":
            of = (("alone", "single_db"), ("within the network", "entire_db"), ("its worst input", "inputs_db"))
            told = ", ".join(f"{said} {found[key]:.1f} dB" for said, key in of if found[key] is not None)
            lines = [f"the largest loss is in layer {found['layer']} ({found['op']}): {told}"]
        case _:
            return ["nothing differs, and no layer can be compared with fp32"]
    return [*lines, f"  nodes {', '.join(found['nodes'])}", f"  to reproduce it: {found['folder']}/reproduce.sh"]


def _first_difference(found: Shown) -> list[str]:
    """The first differing element, and the instruction that computed it."""
    at = "[" + ", ".join(map(str, found["element"])) + "]"
    lines = [
        f"first difference: layer {found['layer']} ({found['op']}), tensor {found['tensor']}{at}, "
        f"sample {found['sample']}: {found['found']} where {found['expected']} is right "
        f"({plural(found['differing'], 'element')} of it differ)"
    ]
    origin = found["origin"]
    if origin is not None:
        tile = "" if origin["tile"] is None else f", tile {tuple(origin['tile'])}"
        lines.append(f"  instruction {origin['instruction']}{tile}: {origin['text']}")
    return lines


def dump_summary(report: Shown) -> str:
    """Differences of hardware dumps from the integer network."""
    rows = [(each["tensor"], each["file"], each["differing"]) for each in report["dumps"]]
    lines = [table(("tensor", "dump", "elements that differ"), rows)]
    if report["difference"] is None:
        samples = plural(report["samples"], "sample")
        return "\n".join([*lines, f"verified: {plural(len(rows), 'dump')} of {samples} agree"])
    found = report["difference"]
    nodes = [f"  nodes {', '.join(found['nodes'])}"] if found["nodes"] else []
    return "\n".join([*lines, *_first_difference(found), *nodes, "MISMATCH"])


def _errors(each: Shown | None) -> tuple[str | None, float | None]:
    return (None, None) if each is None else (_decibels(each["sqnr_db"]).removesuffix(" dB"), each["cosine"])


def _decibels(sqnr: float | None) -> str:
    return "exact" if sqnr is None else f"{sqnr:.1f} dB"


def difference(report: Shown, first: Path, second: Path, *, verbose: bool) -> str:
    """The results of `npuc diff`: a line for each changed layer, its fields and instructions if `verbose`."""
    if report["same"] and "accuracy" not in report:
        return f"{first} and {second} are the same program"
    sides = (str(first), str(second))
    rows = [(key, *map(figure_text, values)) for key, values in report["totals"].items()]
    lines = [table(("", *sides), rows), ""] if rows else []
    moved: dict[tuple[str, str], list[str]] = {}
    for node, (a, b) in report["places"].items():
        moved.setdefault((a, b), []).append(node)
    lines += [f"{list_names(nodes)}: {PLACES[a]} -> {PLACES[b]}" for (a, b), nodes in moved.items()]
    groups = report["layers"]
    if verbose:
        lines += [line for group in groups for line in _layer_lines(group, sides)]
    elif groups:
        lines += [table(("layer", "cycles", "then", "change", "what changed"), [*map(_change_row, groups)]), ""]
    unseen = "" if verbose or not groups else "; -v shows the fields and instructions of the others"
    lines += [f"{plural(report['unchanged_layers'], 'layer')} unchanged{unseen}"]
    lines += [
        f"output {each['name']}, second against first: {_decibels(each['sqnr_db'])}, "
        f"largest difference {each['max_abs_error']:.6g}"
        for each in report.get("outputs", ())
    ]
    if "accuracy" in report:
        rows = [(key, *values) for key, values in report["accuracy"].items()]
        lines += ["", table(("against fp32", *sides), rows)]
    return "\n".join(lines).lstrip("\n")


def _layers_named(group: Shown) -> str:
    """The layers of both programs, once if they have the same names."""
    before, after = (" + ".join(map(short, names)) or "nothing" for names in group["layers"])
    return before if before == after else f"{before} -> {after}"


def _change_row(group: Shown) -> tuple[object, ...]:
    """A changed layer in a line: cycles, and what else changed."""
    a, b = group["cycles"]
    return _layers_named(group), a, b, f"{b - a:+,}" if a != b else "", changes_line(group)


def _layer_lines(group: Shown, sides: tuple[str, str]) -> list[str]:
    """A changed layer with its nodes, its fields beside each other, and its instructions."""
    rows = [(key, *map(figure_text, values)) for key, values in group["changed"].items()]
    lines = [_layers_named(group), *([f"  nodes {list_names(group['nodes'])}"] if group["nodes"] else [])]
    lines += [f"  {line}" for line in table(("", *sides), rows).splitlines()] if rows else []
    lines += [f"  - {text}" for text in group["removed"]] + [f"  + {text}" for text in group["added"]]
    return [*lines, ""]


def explanation(report: Shown) -> str:
    """The results of `npuc explain`."""
    lines = [f"{report['asked']}: {', '.join(map(str, report['nodes']))}"]
    lines += [line for each in report["account"] for line in fate(each, report["asked"])]
    lines += ["", "passes", *(f"  {each['text']}" for each in report["passes"])] if report["passes"] else []
    for each in report["host_tensors"]:
        lines += ["", *_host_tensor(each)]
    for layer in report["layers"]:
        lines += ["", f"layer {layer['name']}: {layer['op']}", *(f"  {each}" for each in layer_facts(layer))]
    for each in report["tensors"]:
        lines += [
            "",
            f"tensor {each['tensor']}",
            f"  shape {value_text(each['shape'])}"
            + (f", scale {value_text(each['scale'])}" if each["scale"] else ""),
        ]
        lines += (
            [f"  error {_error_text(each['entire'])}, alone {_error_text(each['single'])}"]
            if each["entire"]
            else []
        )
        lines.append(f"  {each['kept']}")
        lines += [
            f"  {use['memory']} bytes {count(use['address'])} to {count(use['address'] + use['bytes'] - 1)}, "
            f"cycles {count(use['from_cycle'])} to {count(use['to_cycle'])}"
            for use in report["buffers"]
            if use["tensor"] == each["tensor"]
        ]
    if report["instructions"]:
        lines += ["", "instructions", *(f"  {each['index']}: {each['text']}" for each in report["instructions"])]
    return "\n".join(lines)


def _host_tensor(found: Shown) -> list[str]:
    """A tensor within a host region: its writer and readers, and what keeps them on the host."""
    lines = [f"tensor {found['tensor']} within {found['path'] or 'the host'}"]
    lines.append(f"  from {found['from']['op']} '{found['from']['node']}': {found['from']['reason']}")
    lines += [f"  to {each['op']} '{each['node']}': {each['reason']}" for each in found["to"]]
    return lines + [
        f"  kept on the host by {each['op']} '{each['node']}': {each['reason']}; {each['remedy'] or 'for good'}"
        for each in found["kept_by"]
    ]


def _error_text(error: Shown | None) -> str:
    if error is None:
        return "not measured"
    return f"{_decibels(error['sqnr_db'])}, cosine {error['cosine']:.6f}, at most {error['max_abs_error']:.6g}"
