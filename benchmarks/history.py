"""The end of a benchmark: rows printed and held against limits, and ratios kept in benchmarks/history.json.

    python benchmarks/history.py [BENCHMARK]

prints the file, a line per benchmark and release. A benchmark with `--history compare` prints which of its ratios
have grown by more than NOISE since the last release (or, if there is none, since the last line of this one) and
ends with exit code 1 if any has; with `--history append` it prints them and writes its line, replacing one of the
same version. Ratios are to a baseline in the same run, so that machine and load matter little; seconds are not
recorded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import click

from npuc import __version__
from npuc.text.terminal import as_json, table

if TYPE_CHECKING:
    from networks import Network

FILE = Path(__file__).with_name("history.json")
NOISE = 1.2
"""Growth of a ratio below this may be chance."""
history_option = click.option(
    "--history",
    type=click.Choice(("compare", "append")),
    help="Compare the ratios with benchmarks/history.json; append writes them too.",
)


note_option = click.option(
    "--note", default="", help="What a reader of the history must know: the machine, its load."
)


class Measured(Protocol):
    """A row: a frozen dataclass with its limits."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def within(self) -> bool:
        """Whether all limits are met."""
        ...


def conclude(
    header: Sequence[str], rows: Sequence[Measured], found: Sequence[Network], *, json_wanted: bool, check: bool
) -> None:
    """Prints the rows and the origin of the networks; exits with 1 if checked and a limit is exceeded."""
    if json_wanted:
        entries = [{**asdict(row), "within": row.within} for row in rows]
        click.echo(as_json({"networks": {each.name: each.origin for each in found}, "rows": entries}))
    else:
        click.echo(table((*header, "within"), [(*asdict(row).values(), row.within) for row in rows]))
        click.echo("\n".join(f"{each.name}: {each.origin}" for each in found))
    if check and not all(row.within for row in rows):
        sys.exit(1)


@dataclass(frozen=True)
class Entry:
    """One run of a benchmark: smaller ratios are better."""

    benchmark: str
    version: str
    commit: str
    date: str
    note: str
    ratios: Mapping[str, float]


def entries() -> list[Entry]:
    """The lines of the file, the oldest first."""
    return [Entry(**each) for each in json.loads(FILE.read_text(encoding="utf-8"))] if FILE.exists() else []


def regressions(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """A sentence for each ratio that has grown by more than NOISE.

    >>> regressions({"a": 1.0, "b": 2.0, "gone": 1.0}, {"a": 1.1, "b": 2.5, "new": 9.0})
    ['b: 2.500, before 2.000 (+25 %)']
    """
    return [
        f"{name}: {ratio:.3f}, before {before[name]:.3f} (+{100 * (ratio / before[name] - 1):.0f} %)"
        for name, ratio in now.items()
        if name in before and ratio > NOISE * before[name]
    ]


def follow(benchmark: str, ratios: Mapping[str, float], asked: str | None, note: str = "") -> None:
    """Does what `--history` asks for; nothing if it is None. note: a remark for readers of the line."""
    if asked is None:
        return
    known = entries()
    own = [each for each in known if each.benchmark == benchmark]
    before = next((each for each in reversed(own) if each.version != __version__), own[-1] if own else None)
    grown = regressions(before.ratios, ratios) if before else []
    if before is not None:
        since = f"since {before.version} ({before.commit}, {before.date})"
        click.echo("\n".join([f"ratios that have grown {since}: {len(grown)}", *grown]), err=True)
    if asked == "append":
        kept = [each for each in known if (each.benchmark, each.version) != (benchmark, __version__)]
        today = datetime.now(timezone.utc).date().isoformat()
        rounded = {name: round(ratio, 3) for name, ratio in ratios.items()}
        _write([*kept, Entry(benchmark, __version__, _commit(), today, note, rounded)])
    elif grown:
        sys.exit(1)


def _write(lines: list[Entry]) -> None:
    text = ",\n".join(json.dumps(asdict(each)) for each in lines)
    FILE.write_text(f"[\n{text}\n]\n", encoding="utf-8")


def _commit() -> str:
    """The measured commit, with a + if files differ from it."""
    command = ("git", "-C", str(FILE.parent), "describe", "--always", "--dirty=+", "--abbrev=9", "--exclude=*")
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


@click.command()
@click.argument("benchmark", required=False)
def main(benchmark: str | None) -> None:
    """Print what is known of a benchmark, or of all."""
    found = [each for each in entries() if benchmark in (None, each.benchmark)]
    rows = [
        (each.benchmark, each.version, each.commit, each.date, name, ratio)
        for each in found
        for name, ratio in each.ratios.items()
    ]
    click.echo(table(("benchmark", "version", "commit", "date", "what", "ratio"), rows))
    click.echo("\n".join(f"{each.benchmark} {each.version}: {each.note}" for each in found if each.note))


if __name__ == "__main__":
    main()
