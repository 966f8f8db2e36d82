"""`npuc accuracy` and `npuc quantize`: how well a network does its task, and the integer network as a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import click

from npuc.cli.options import (
    TargetCommand,
    artefact_options,
    calibration_option,
    cut_options,
    data_option,
    input_option,
    json_option,
    labels_option,
    limit_options,
    machine_option,
    parse_options,
    precision_option,
    removed_options,
    scheduler_option,
    search_options,
    shape_option,
    target_flags,
    target_option,
    tell_cache,
)
from npuc.cli.output import PATH, answer, open_artefact, working, write_output
from npuc.text.escaping import Shown, escape_report
from npuc.text.terminal import count, plural, table


def _count(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    """A number of samples, or all."""
    if value is None or value == "all":
        return value
    if not value.isdecimal() or not 0 < int(value) < 1 << 31:
        raise click.BadParameter(f"'{value}' is neither a number of samples nor 'all'", ctx, param)
    return int(value)


@click.command()
@click.argument("model", type=PATH)
@click.argument("artefact", type=PATH)
@data_option
@click.option(
    "--metric",
    metavar="NAME",
    help="top1, detections, ctc, regression, or FILE.py:FUNCTION, which gives a sample's number for its outputs by"
    " name and its label [default: by the shapes of outputs and labels].",
)
@labels_option
@removed_options("qdq", "truth", "layout", "box_format", "score_threshold", "nms_iou")
@removed_options("background", "score_function", "blank")
@click.option(
    "--simulate",
    metavar="N|all",
    callback=_count,
    help="Simulate the words of this many samples; the integer network computes the others [default: 8].",
)
@scheduler_option
@artefact_options
def accuracy(
    model: Path,
    artefact: Path,
    data: tuple[Path, ...],
    labels: Path | None,
    simulate: int | str | None,
    scheduler: str | None,
    allow_modified: bool,
    as_json: bool,
    metric: str | None,
) -> int:
    """Measure the accuracy of MODEL and its program. The task is to find classes, boxes, sequences or values.

    Labels are `y` in the data, or of pictures their folders or list. Without them the outputs are compared with
    those of MODEL in fp32. The words of the first samples are simulated and compared with the integer network,
    which computes the others.

    \b
    Examples:
      npuc accuracy resnet8.onnx resnet8.npu --data test.npz
      npuc accuracy resnet8.onnx resnet8.npu --data test.npz --json
      npuc accuracy ssd.onnx ssd.npu --data 'images/*.npz' --metric my.py:map
    """
    from npuc.cutting import compiled_part
    from npuc.images.description import labels_of
    from npuc.program import with_labels
    from npuc.regions.variants import choose_variant
    from npuc.verification import accuracy as judging
    from npuc.verification.judging.choosing import Asked, NotTaken

    if not data:
        raise click.UsageError("Missing option '--data'.")
    artefact = choose_variant(artefact, data, allow_modified=allow_modified)
    program = open_artefact(artefact, allow_modified).program
    if labels is not None:
        program = with_labels(program, labels_of(labels))
    model, data = click.get_current_context().with_resource(compiled_part(model, program, data))
    subject = judging.JudgedFiles(model.absolute(), artefact.absolute(), allow_modified)
    try:
        with working("accuracy") as bar:
            report = judging.accuracy(
                subject, program, data, Asked(metric), simulate=simulate, scheduler=scheduler, bar=bar
            )
    except NotTaken as error:
        raise click.UsageError(str(error)) from None
    answer(report, _as_text(escape_report(report)), as_json)
    return 0 if report["status"] == "ok" else 1


WIDTH = 80
COMPUTATIONS = ("fp32", "integer", "simulator")
Cells = Callable[[Shown], Sequence[object]]


def _as_text(report: Shown) -> str:
    """The table, the number of samples, and the reason for the choice of metric."""
    from npuc.program import Ranges

    header, cells = COLUMNS.get(report["metric"], OWN)
    rows = [(name, *cells(report[name])) for name in COMPUTATIONS if report[name] is not None]
    lines = [table(("run", *header), rows), f"{plural(report['samples'], 'sample')}{_more(report)}"]
    if report["metric"] == "regression":
        lines += _outputs(report)
    told = [_simulation_line(report), *_decoding(report), f"metric {report['metric']}: {report['chosen']}"]
    told += [f"activation ranges: {origin}"] if (origin := str(Ranges(**report["ranges"]))) else []
    return "\n".join([*lines, *(part for line in told for part in wrap(line, WIDTH))])


def _simulation_line(report: Shown) -> str:
    """What the words computed and what the integer network."""
    known = report["simulated"]
    first = "all samples" if known["others"] is None else f"the first {plural(known['samples'], 'sample')}"
    if known["bit_exact"] is None:
        return f"simulator: the words of {first}; nothing else computes their bits"
    if not known["bit_exact"]:
        rest = "" if known["others"] is None else ", so that it cannot stand for them: --simulate all"
        return f"simulator: the words of {first} differ from the integer network{rest}"
    rest = "" if known["others"] is None else "; the integer network computed the others"
    return f"simulator: the words of {first}, bit-exact with the integer network{rest}"


def _more(report: Shown) -> str:
    """Further counts besides samples, and the reference."""
    match report["metric"]:
        case "top1":
            return f", {count(report['classes'])} classes"
        case "detections":
            boxes = f"{count(report['boxes'])} true boxes of {plural(report['classes'], 'class', 'classes')}"
            return f", {boxes} ({_truth(report)})"
        case "ctc":
            return f", {count(report['characters'])} characters ({_truth(report)})"
        case _:
            return f", against {_truth(report)}"


def _truth(report: Shown) -> str:
    return "labels" if report["truth"] == "labels" else "fp32's own"


def _outputs(report: Shown) -> list[str]:
    """A table of every output, if there are several."""
    if len(report["fp32"]["outputs"]) < 2:
        return []
    rows = [
        (name, each["name"], each["pearson"], f"{each['l1']:.4g}")
        for name in COMPUTATIONS
        if report[name] is not None
        for each in report[name]["outputs"]
    ]
    return ["", table(("run", "output", "Pearson", "L1"), rows)]


def _decoding(report: Shown) -> list[str]:
    """How the outputs are interpreted."""
    known = report.get("decoding")
    if known is None:
        return []
    if report["metric"] == "ctc":
        where = "a row" if known["layout"] == "rows" else "a column"
        return [
            f"'{known['output']}': {where} for each of {known['steps']} steps, the {known['blank']} class is blank"
        ]
    layout = {
        "pair": f"boxes '{known['boxes']}' and scores '{known['scores']}'",
        "rows": f"'{known['boxes']}': rows of box, objectness and classes",
        "columns": f"'{known['boxes']}': columns of box and classes",
    }[known["layout"]]
    units = "pixels" if known["units"] == "pixels" else "parts of the image"
    return [
        layout,
        f"boxes: {known['box_format']} in {units}; scores: {known['score_function']}, "
        f"background {known['background']}",
        f"detections: score {known['score_threshold']:g} or more, best class of a box, suppressed above IoU "
        f"{known['nms_iou']:g}",
        "recall and box px: against the detections of fp32",
    ]


def _top1(row: Shown) -> Sequence[object]:
    return (
        100 * row["top1"],
        _range(row["interval"], 100, 2),
        None if row["top5"] is None else 100 * row["top5"],
        100 * row["agreement"],
        100 * row["difference"],
        _range(row["difference_interval"], 100, 2),
    )


def _detections(row: Shown) -> Sequence[object]:
    return (
        100 * row["map50"],
        _range(row["interval"], 100),
        100 * row["difference"],
        _range(row["difference_interval"], 100),
        100 * row["recall"],
        row["box_error_px"],
    )


def _ctc(row: Shown) -> Sequence[object]:
    return (
        100 * row["cer"],
        _range(row["interval"], 100),
        100 * row["right"],
        100 * row["agreement"],
        100 * row["difference"],
        _range(row["difference_interval"], 100),
    )


def _regression(row: Shown) -> Sequence[object]:
    return (
        row["pearson"],
        _range(row["pearson_interval"], 1, 3),
        f"{row['l1']:.4g}",
        _range(row["l1_interval"], 1, None),
        f"{row['difference']:.4g}",
    )


def _own(row: Shown) -> Sequence[object]:
    return (
        f"{row['mean']:.4g}",
        _range(row["interval"], 1, None),
        f"{row['difference']:.4g}",
        _range(row["difference_interval"], 1, None),
    )


COLUMNS: dict[str, tuple[Sequence[str], Cells]] = {
    "top1": (("top-1 %", "95 % interval", "top-5 %", "as fp32 %", "vs fp32", "95 % interval"), _top1),
    "detections": (("mAP50 %", "95 % interval", "vs fp32", "95 % interval", "recall %", "box px"), _detections),
    "ctc": (("CER %", "95 % interval", "right %", "as fp32 %", "vs fp32", "95 % interval"), _ctc),
    "regression": (("Pearson", "95 % interval", "L1", "95 % interval", "vs fp32"), _regression),
}
"""The columns after the name of the computation."""
OWN: tuple[Sequence[str], Cells] = (("mean", "95 % interval", "vs fp32", "95 % interval"), _own)
"""Those of a metric of the user's own."""


def _range(limits: Sequence[float] | None, factor: float, digits: int | None = 1) -> str | None:
    """An interval. digits: after the decimal point; None: three significant ones."""
    if limits is None:
        return None
    return "..".join(
        f"{factor * each:.3g}" if digits is None else f"{factor * each:.{digits}f}" for each in limits
    )


@click.command(cls=TargetCommand)
@click.argument("model", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="The quantised model to write (.onnx).")
@click.option(
    "--scales-out",
    type=PATH,
    metavar="FILE",
    help="Also write the table of scales (.toml, or .json for NVIDIA's); each tensor then has one scale.",
)
@target_option
@calibration_option
@input_option
@machine_option
@shape_option
@precision_option
@target_flags
@cut_options
@search_options
@limit_options
@json_option
def quantize(
    model: Path,
    output: Path,
    scales_out: Path | None,
    target: str,
    calibration: tuple[Path, ...],
    shapes: dict[str, tuple[int, ...]],
    cache: Path | None,
    level: str,
    precision: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Write MODEL quantised as a target computes it.

    The result is a standard ONNX model with QuantizeLinear and DequantizeLinear.

    \b
    Examples:
      npuc quantize resnet8.onnx -o q.onnx --target easynpu --calibration s.npz
      npuc quantize resnet8.onnx -o q.onnx --target nvdla-small -O2
      npuc quantize net.onnx -o q.onnx --target easynpu --scales-out scales.toml
    """
    from npuc import driver
    from npuc.quantize.calibration.cache import remembering
    from npuc.quantize.improvement.search import Trial
    from npuc.quantize.improvement.search import as_json as steps_of
    from npuc.quantize.table import as_table
    from npuc.registry import target as find
    from npuc.storage.files import replacing
    from npuc.target import FLOATING, Request

    kind = find(target)
    if not kind.has_integer_network:
        raise click.UsageError(f"{target} has no integer network that other runtimes could open")
    tried: list[Trial] = []
    if precision in FLOATING:
        raise click.UsageError(f"--precision {precision} has no integers")
    options = parse_options(kind, level=level, precision=precision or "int8", **flags)
    options = replace(options, notify=tried.extend, one_scale=scales_out is not None)
    said: list[str] = []
    with (
        working("quantizing") as bar,
        remembering(replace(options, stage=bar.begin), cache, (model, *calibration), said.append) as remembered,
    ):
        bar.begin("choosing scales")
        found, network = driver.quantise_model(
            Request(model, kind, remembered, calibration, shapes, synthetic=False)
        )
    tell_cache(said)
    if scales_out is not None:
        with replacing(scales_out) as staging:
            staging.write_text(as_table(network, scales_out.suffix), encoding="utf-8")
    write_output(output, found, as_json, quantization={"level": level, "steps": steps_of(tried)})
