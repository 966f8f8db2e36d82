"""One scale per tensor, chosen jointly where operators constrain several tensors.

On a machine that requantises only by shifts, an operator with weights leaves its input and output scales free (the
weights absorb their ratio), but pooling, addition and data movement require scales that are equal or a power of
two apart. Tensors with equal scales form a class; classes that are a power of two apart form a group with one free
real base. Each group's base and exponents minimise the sum, over its tensors, of the quantisation error relative
to the tensor's energy: for every base the best exponents there are (module elimination).

The assignment of a number to each of several names with the least total cost, under bounds on differences.

Every number has a cost of its own; their sum is minimised. Names are eliminated one after the other: for every
choice of its neighbours a name has a best number, whose cost becomes part of theirs. This is exact for any costs,
and fast if every name has few neighbours, as with sums, pools and movements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache, reduce

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.quantize.calibration.histograms import BEYOND, Histogram, octaves_above, range_cost

Bounds = Sequence[tuple[str, str, int, int]]
"""coarse, fine, least, most: least <= number of coarse - number of fine <= most."""

LARGEST_TABLE = 1 << 20
"""The most entries in a table of costs."""
BELOW_FLOOR = 1e3
"""The cost of an octave below a floor: it outweighs the rounding errors, about 1 a tensor, but not BEYOND."""
NOT_GIVEN = 1e12
"""The cost of an octave from a given scale: nothing else outweighs even the smallest difference from it."""
NO_RANGE = 1e-12
"""The cost of an octave where values are all 0: it decides only between scales that cost the same."""


def least_cost(cost: Mapping[str, Array], bounds: Bounds) -> dict[str, int]:
    """The number of each name, an index into its costs, with the least sum within the bounds.

    cost: equally many for every name. bounds: satisfied if all numbers are equal. If names have more neighbours
    than a table allows, the search covers numbers near the last result and repeats until nothing changes.
    """
    chosen, before = _raise_to_bounds(cost, bounds), None
    if not bounds:
        return chosen
    order, width = _order(tuple(cost), tuple(bounds))
    reach = int(LARGEST_TABLE ** (1 / width) - 1) // 2
    while chosen != before:
        before = chosen
        window = {name: _near(chosen[name], reach, len(values)) for name, values in cost.items()}
        chosen = _eliminate({name: cost[name][window[name]] for name in cost}, window, bounds, order)
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


def _raise_to_bounds(cost: Mapping[str, Array], bounds: Bounds) -> dict[str, int]:
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


def _eliminate(
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


FRACTIONS = 16
"""Candidate bases per octave."""
EXPONENTS = np.arange(-50, 51)
"""Exponents of scales, relative to the base, for tensors of ordinary size."""
MARGIN = 10
"""Exponents beyond the ranges of a group's tensors, for groups of smaller or larger values."""

TIE = 1e-9
"""Costs that differ by less than this share count as equal."""
LIMIT = 1e-4
"""The cost of a scale above the ceiling: the Clip then needs an operation of its own."""


@frozen
class Ratio:
    """log2(scale of `coarse` / scale of `fine`) must be an integer between least and most."""

    coarse: str
    fine: str
    least: int
    most: int


@frozen
class ScaleConstraints:
    """The constraints that operators impose on scales."""

    equal: tuple[tuple[str, str], ...] = ()
    ratios: tuple[Ratio, ...] = ()
    ceilings: Mapping[str, float] = field(default_factory=dict[str, float])
    """The largest scale of a tensor at which saturation can replace a Clip: values stop there."""
    powers: tuple[str, ...] = ()
    """Tensors whose scale must be a power of two (factors of a product)."""
    given: Mapping[str, float] = field(default_factory=dict[str, float])
    """Scales fixed from outside."""
    floors: Mapping[str, float] = field(default_factory=dict[str, float])
    """The scale below which finer steps would only resolve the error of the tensor's inputs; ceilings take
    precedence."""
    unsaturated: frozenset[str] = frozenset()
    """Tensors whose calibration values must not saturate, whatever the method."""
    sums: tuple[tuple[str, str, str], ...] = ()
    """Operands and results of sums that multiply each operand by a factor of 8 bits."""


def in_powers_of_two(constraints: ScaleConstraints, tensors: Iterable[str]) -> ScaleConstraints:
    """The same constraints, with power-of-two scales for these tensors."""
    return replace(constraints, powers=tuple(tensors))


def next_power(scale: float) -> float:
    """The smallest power of two that is at least the scale."""
    return 2.0 ** math.ceil(math.log2(scale))


def choose_scales(
    histograms: Mapping[str, Histogram], constraints: ScaleConstraints, method: str = "mse"
) -> dict[str, float]:
    """A scale for every tensor, with the least relative error under the constraints.

    method: of calibration, one of clipping.METHODS.
    """
    class_of = components(histograms, constraints.equal)
    group_of = components(class_of.values(), ((class_of[r.coarse], class_of[r.fine]) for r in constraints.ratios))
    scales: dict[str, float] = {}
    for group in dict.fromkeys(group_of.values()):
        members = {c: [t for t in histograms if class_of[t] == c] for c in group_of if group_of[c] == group}
        ratios = tuple(
            (class_of[each.coarse], class_of[each.fine], each.least, each.most)
            for each in constraints.ratios
            if class_of[each.coarse] in members
        )
        chosen = _solve_group(members, ratios, histograms, constraints, method)
        scales.update({tensor: chosen[name] for name in members for tensor in members[name]})
    return {tensor: scales[tensor] for tensor in histograms}


def components(names: Iterable[str], links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """For each name the first name of its connected component."""
    leader = {name: name for name in names}
    order = {name: position for position, name in enumerate(leader)}

    def find(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    for left, right in links:
        first, second = sorted((find(left), find(right)), key=order.__getitem__)
        leader[second] = first
    return {name: find(name) for name in leader}


def _solve_group(
    members: Mapping[str, list[str]],
    ratios: Bounds,
    histograms: Mapping[str, Histogram],
    constraints: ScaleConstraints,
    method: str,
) -> dict[str, float]:
    """The scale of each class of a group: the best base within an octave, with the best exponents for it."""
    bases = [2.0 ** (k / FRACTIONS) for k in range(FRACTIONS)]
    if any(tensor in constraints.powers for tensors in members.values() for tensor in tensors):
        bases = [1.0]
    for tensors in members.values():
        for tensor in tensors:
            if tensor in constraints.given:
                bases = [constraints.given[tensor]]
            elif tensor in constraints.ceilings and len(bases) > 1:
                bases.append(constraints.ceilings[tensor])
    exponents = _exponents([histograms[each] for tensors in members.values() for each in tensors], bases)
    costs = {
        name: _class_cost(tensors, bases, exponents, histograms, constraints, method)
        for name, tensors in members.items()
    }
    best: tuple[float, dict[str, float]] | None = None
    for position, base in enumerate(bases):
        cost = {name: values[position] for name, values in costs.items()}
        chosen = least_cost(cost, ratios)
        total = sum(float(cost[name][chosen[name]]) for name in members)
        if best is None or total < best[0] * (1 - TIE):
            best = total, {name: base * 2.0 ** int(exponents[chosen[name]]) for name in members}
    assert best is not None
    return best[1]


def _exponents(values: Iterable[Histogram], bases: Sequence[float]) -> Array:
    """EXPONENTS, and further ones as far as some tensor's range needs them."""
    ranges = np.log2([each.largest / 127 for each in values if each.energy > 0] or [1.0])
    least = math.floor(ranges.min() - math.log2(max(bases))) - MARGIN
    most = math.ceil(ranges.max() - math.log2(min(bases))) + MARGIN
    return np.arange(min(least, EXPONENTS[0]), max(most, EXPONENTS[-1]) + 1, dtype=np.float64)


def _class_cost(
    tensors: Iterable[str],
    bases: Sequence[float],
    exponents: Array,
    histograms: Mapping[str, Histogram],
    constraints: ScaleConstraints,
    method: str,
) -> np.ndarray:
    """Relative error of a class of tensors for every base and exponent: (bases, exponents)."""
    scales = np.multiply.outer(np.array(bases), np.exp2(exponents))
    cost = np.zeros(scales.shape)
    empty = True
    for tensor in tensors:
        histogram = histograms[tensor]
        energy = histogram.energy
        ceiling = constraints.ceilings.get(tensor, math.inf)
        if energy > 0:
            empty = False
            cost += range_cost(histogram, scales, method, 127 * ceiling)
            if tensor in constraints.unsaturated:
                cost += BEYOND * octaves_above(min(histogram.largest / 127, ceiling), scales)
        if tensor in constraints.floors:
            cost += BELOW_FLOOR * octaves_above(min(constraints.floors[tensor], ceiling), scales)
        if tensor in constraints.ceilings:
            cost += np.where(octaves_above(scales, ceiling) > 0, LIMIT, 0.0)
        if tensor in constraints.given:
            cost += NOT_GIVEN * np.abs(np.log2(scales / constraints.given[tensor]))
    if empty:  # any scale represents zeros: use the permitted one next to a range of 1
        cost += NO_RANGE * np.abs(exponents + math.log2(127))
    return cost
