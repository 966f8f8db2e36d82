"""The assignment of a number to each of several names with the least total cost, under bounds on differences.

Every number has a cost of its own; their sum is minimised. Names are eliminated one after the other: for every
choice of its neighbours a name has a best number, whose cost becomes part of theirs. This is exact for any costs,
and fast if every name has few neighbours, as with sums, pools and movements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array

Bounds = Sequence[tuple[str, str, int, int]]
"""coarse, fine, least, most: least <= number of coarse - number of fine <= most."""

LARGEST_TABLE = 1 << 20
"""The most entries in a table of costs."""


def least_cost(cost: Mapping[str, Array], bounds: Bounds) -> dict[str, int]:
    """The number of each name, an index into its costs, with the least sum within the bounds.

    cost: equally many for every name. bounds: satisfied if all numbers are equal. If names have more neighbours
    than a table allows, the search covers numbers near the last result and repeats until nothing changes.
    """
    chosen, before = _allowed(cost, bounds), None
    if not bounds:
        return chosen
    order, width = _order(tuple(cost), tuple(bounds))
    reach = int(LARGEST_TABLE ** (1 / width) - 1) // 2
    while chosen != before:
        before = chosen
        window = {name: _near(chosen[name], reach, len(values)) for name, values in cost.items()}
        chosen = _eliminated({name: cost[name][window[name]] for name in cost}, window, bounds, order)
        if all(len(window[name]) == len(values) for name, values in cost.items()):
            break
    return chosen


def _near(number: int, reach: int, count: int) -> range:
    """The numbers within `reach` of one; all of them if that window is no smaller."""
    return (
        range(count) if 2 * reach + 1 >= count else range(max(number - reach, 0), min(number + reach + 1, count))
    )


@lru_cache
def _order(names: tuple[str, ...], bounds: Bounds) -> tuple[list[str], int]:
    """The names in the order of elimination, fewest neighbours first, and the dimensions of the largest table."""
    tied: dict[str, set[str]] = {name: set() for name in names}
    for coarse, fine, *_ in bounds:
        tied[coarse] |= {fine} - {coarse}
        tied[fine] |= {coarse} - {fine}
    order, width = list[str](), 1
    while tied:
        name = min(tied, key=lambda each: len(tied[each]))
        others = tied.pop(name)
        for other in others:
            tied[other] = (tied[other] | others) - {name, other}
        order.append(name)
        width = max(width, len(others) + 1)
    return order, width


def _allowed(cost: Mapping[str, Array], bounds: Bounds) -> dict[str, int]:
    """The best number of each name alone, raised as far as the bounds require."""
    chosen = {name: int(np.argmin(values)) for name, values in cost.items()}
    for _ in cost:
        for coarse, fine, least, most in bounds:
            chosen[coarse] = max(chosen[coarse], chosen[fine] + least)
            chosen[fine] = max(chosen[fine], chosen[coarse] - most)
    return chosen


@frozen
class _Table:
    """A cost for every combination of some names' numbers, one axis per name."""

    names: tuple[str, ...]
    values: Array

    def along(self, names: Sequence[str]) -> Array:
        """The costs with an axis for each of these names, of length 1 if they do not depend on it."""
        moved = self.values.transpose([self.names.index(name) for name in names if name in self.names])
        return moved[tuple(slice(None) if name in self.names else None for name in names)]


def _eliminated(
    cost: Mapping[str, Array], numbers: Mapping[str, range], bounds: Bounds, order: Sequence[str]
) -> dict[str, int]:
    """The best number of each name in its range; `cost` covers that range."""
    tables = [_Table((name,), values) for name, values in cost.items()]
    tables += [_bound_table(each, numbers) for each in bounds]
    best: list[tuple[str, tuple[str, ...], Array]] = []
    for name in order:
        mine = [table for table in tables if name in table.names]
        tables = [table for table in tables if name not in table.names]
        others = tuple(dict.fromkeys(each for table in mine for each in table.names if each != name))
        joint = reduce(np.add, [table.along((*others, name)) for table in mine])
        best.append((name, others, joint.argmin(axis=-1)))
        tables.append(_Table(others, joint.min(axis=-1)))
    index: dict[str, int] = {}
    for name, others, choice in reversed(best):
        index[name] = int(choice[tuple(index[other] for other in others)])
    return {name: numbers[name][index[name]] for name in cost}


def _bound_table(bound: tuple[str, str, int, int], numbers: Mapping[str, range]) -> _Table:
    """0 where the bound holds, infinite elsewhere."""
    coarse, fine, least, most = bound
    if coarse == fine:
        return _Table((coarse,), np.full(len(numbers[coarse]), 0.0 if least <= 0 <= most else np.inf))
    return _Table((coarse, fine), _within(numbers[coarse], numbers[fine], least, most))


@lru_cache
def _within(coarse: range, fine: range, least: int, most: int) -> Array:
    """0 where the difference of two numbers is within the limits, infinite elsewhere."""
    gap = np.subtract.outer(np.array(coarse), np.array(fine))
    return np.where((gap >= least) & (gap <= most), 0.0, np.inf)
