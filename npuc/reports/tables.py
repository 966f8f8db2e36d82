"""Tables of programs, words, targets and operators: as text for people, as JSON or CSV with every figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npuc.frozen import frozen
from npuc.text.escaping import Shown, escape_report, terminal
from npuc.text.terminal import csv_table, report_json, table

Row = Mapping[str, Any]
NOT_IN_CSV = ("memory", "errors", "parameters", "front")


@frozen
class Column:
    """A column of a table: its header, and the value of a row by its key, or as shown."""

    header: str
    key: str
    show: Callable[[Row], Any] | None = None

    def value(self, row: Row) -> Any:
        """The value of a row in this column."""
        return self.show(row) if self.show else row[self.key]


def _decibels(row: Row) -> Any:
    return "exact" if row["exact"] else None if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f}"


def _machine(row: Row) -> str:
    """A target and, unless it is the default, its machine, in the notation of --targets."""
    usual = row["machine"] in ("default", row["target"])
    return row["target"] if usual else f"{row['target']}:{row['machine']}"


TARGET = Column("target", "target", _machine)
COSTS = (
    Column("cycles", "cycles"),
    Column("ms", "milliseconds"),
    Column("util.", "utilization"),
    Column("peak bytes", "peak_bytes"),
    Column("traffic", "traffic_bytes"),
    Column("instr.", "instructions"),
    Column("on NPU", "npu_macs_share"),
)
SCORES = (Column("SQNR dB", "sqnr_db", _decibels), Column("argmax", "argmax_agreement"), Column("top-1", "top1"))

COST_NAMES: Mapping[str, str] = {"peak_bytes": "peak bytes", "traffic_bytes": "traffic bytes"}


def comparison(report: Mapping[str, Any], form: str) -> str:
    """The results of `npuc compare`, as text, JSON or CSV."""
    rows = report["rows"]
    if form == "json":
        return report_json(report)
    if form == "csv":
        return as_csv(rows)
    rows = escape_report(report)["rows"]
    lines = [as_text(rows, (TARGET, *COSTS))]
    if filled_columns(rows, SCORES):
        lines.append(as_text(rows, (TARGET, *SCORES)))
    if report["fp32_top1"] is not None:
        lines.append(f"fp32 under onnxruntime: top-1 {report['fp32_top1']:.3f} of {report['samples']:,} samples")
    return "\n".join([*lines, *refusals(rows)])


def points_columns(report: Mapping[str, Any]) -> tuple[Column, ...]:
    """The columns of a sweep: the parameters, the costs of a point, and its Pareto fronts."""
    parameters = [_parameter(name) for name in report["grid"]]
    return (*parameters, *COSTS, Column("Pareto front", "front", _fronts))


def _parameter(name: str) -> Column:
    return Column(name, name, lambda row: row["parameters"][name])


def _fronts(row: Row) -> str | None:
    return ", ".join(COST_NAMES.get(cost, cost) for cost in row["front"]) or None


def sweep_text(report: Mapping[str, Any], form: str) -> str:
    """The results of `npuc sweep`, as text or CSV."""
    points = report["points"]
    if form == "csv":
        return as_csv(points)
    told_of = escape_report(report)
    return "\n".join([as_text(told_of["points"], points_columns(told_of)), *_refusal_lines(told_of)])


def _refusal_lines(report: Shown) -> list[str]:
    """A line per problem of each point."""
    return [f"{row['machine']}: {problem_line(problem)}" for row in report["points"] for problem in row["errors"]]


def as_text(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """The table, without columns that are empty in every row."""
    shown = filled_columns(rows, columns)
    return table([column.header for column in shown], [[column.value(row) for column in shown] for row in rows])


def filled_columns(rows: Sequence[Row], columns: Sequence[Column]) -> list[Column]:
    """The columns that have a value in some row."""
    return [column for column in columns if any(column.value(row) is not None for row in rows)]


def refusals(rows: Sequence[Shown]) -> list[str]:
    """A line per problem of each row."""
    return [
        f"{row['target']}, {row['machine']}: {problem_line(problem)}" for row in rows for problem in row["errors"]
    ]


def problem_line(problem: Shown) -> str:
    """A problem's code, place and reason, without the remedy, in one line."""
    where = " ".join(filter(None, (problem["op"], f"'{problem['node']}'" if problem["node"] else None)))
    limit = f" (limit: {problem['limit']})" if problem["limit"] else ""
    return f"{problem['code']} {where}{': ' if where else ''}{problem['reason']}{limit}"


def as_csv(rows: Sequence[Row]) -> str:
    """Every figure, machine parameters and the peak of every memory in columns of their own, problems by code."""
    flat = [_flat(row) for row in rows]
    header = list(dict.fromkeys(key for row in flat for key in row))
    return csv_table(header, [[row.get(key) for key in header] for row in flat])


def _flat(row: Row) -> dict[str, Any]:
    front = {"front": " ".join(row["front"])} if "front" in row else {}
    parameters = row.get("parameters", {})
    return {
        **parameters,
        **{key: value for key, value in row.items() if key not in (*NOT_IN_CSV, *parameters)},
        **{f"{name}_peak_bytes": use["peak_bytes"] for name, use in (row["memory"] or {}).items()},
        **front,
        "errors": " ".join(dict.fromkeys(problem["code"] for problem in row["errors"])),
    }


Report = Mapping[str, Any]
BRIEF = "brief"
"""The key of decoded values, which only text output shows."""


def listing(entries: Sequence[Report], form: str) -> str:
    """A disassembly for other programs: JSON or CSV."""
    if form == "json":
        told = [{key: each for key, each in entry.items() if key != BRIEF} for entry in entries]
        return report_json({"status": "ok", "instructions": told})
    rows = [(e["index"], e["word"], e["text"], " ".join(e["nodes"]), e["tensor"] or "") for e in entries]
    return csv_table(("index", "word", "text", "nodes", "tensor"), rows)


def layout(words: Mapping[str, Sequence[Report]], form: str) -> str:
    """The fields of every instruction word."""
    header = ("bits", "field", "width", "stored", "meaning")
    if form == "json":
        return report_json({"status": "ok", "words": words})
    if form == "csv":
        rows = [(name, *(field[key] for key in header)) for name, fields in words.items() for field in fields]
        return csv_table(("word", *header), rows)
    return "\n\n".join(
        f"{terminal(name)}\n{table(header, [[field[key] for key in header] for field in fields])}"
        for name, fields in words.items()
    )


def targets(found: Sequence[Report]) -> str:
    """The targets with their machines and number formats."""
    lists = ("machines", "precisions")
    rows = [(each["name"], each["summary"], *(", ".join(each[key]) for key in lists)) for each in found]
    return table(("target", "summary", *lists), rows)


def operators(found: Sequence[Report]) -> str:
    """The supported-operators table."""
    return table(("operator", "runs as", "constraints"), [list(each.values()) for each in found])
