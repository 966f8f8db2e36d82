"""The output of a benchmark: a table or JSON, and with --check an exit code of 1 outside the limits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Protocol

import click
from networks import Network

from npuc.text.terminal import as_json, table


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
