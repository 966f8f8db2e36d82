"""The rules of the stock runtime, driver and firmware for a loadable: one function per rule, with it as docstring.

Source: The loadable (facts). Three loadables of NVDLA's own compiler keep every rule.
"""

from __future__ import annotations

from collections.abc import Iterator

from npuc.targets.nvdla.loadable import schema
from npuc.targets.nvdla.loadable.rules import lists, operations
from npuc.targets.nvdla.loadable.task import engine_tasks, read
from npuc.targets.nvdla.machine.parameters import Machine


def broken(loadable: schema.Loadable, machine: Machine) -> Iterator[tuple[str, str]]:
    """Every broken rule, and where. Raises ArtefactError (E502) for unreadable descriptors."""
    for rule in lists.RULES:
        yield from (((rule.__doc__ or "").strip(), where) for where in rule(loadable))
    for entry in engine_tasks(loadable):
        task = read(loadable, entry)
        found = operations.Checked(loadable, entry, task, machine)
        for check in operations.RULES:
            yield from (((check.__doc__ or "").strip(), f"task {entry.id}: {where}") for where in check(found))


RULES = tuple(rule.__name__ for rule in (*lists.RULES, *operations.RULES))
"""The names of all rules."""

__all__ = ["RULES", "broken"]
