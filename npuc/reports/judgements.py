"""Output of `npuc accuracy`: a table by computation, and its basis. Tables fit 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap

from npuc.program import Ranges
from npuc.text.escaping import Shown
from npuc.text.terminal import count, plural, table

WIDTH = 80
COMPUTATIONS = ("fp32", "integer", "simulator")
Cells = Callable[[Shown], Sequence[object]]


def as_text(report: Shown) -> str:
    """The table, the number of samples, and the reason for the choice of metric."""
    header, cells = COLUMNS.get(report["metric"], OWN)
    rows = [(name, *cells(report[name])) for name in COMPUTATIONS if report[name] is not None]
    lines = [table(("run", *header), rows), f"{plural(report['samples'], 'sample')}{_more(report)}"]
    if report["metric"] == "regression":
        lines += _outputs(report)
    told = [_simulated(report), *_decoding(report), f"metric {report['metric']}: {report['chosen']}"]
    told += [f"activation ranges: {origin}"] if (origin := str(Ranges(**report["ranges"]))) else []
    return "\n".join([*lines, *(part for line in told for part in wrap(line, WIDTH))])


def _simulated(report: Shown) -> str:
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
