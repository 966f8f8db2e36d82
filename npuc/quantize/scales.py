"""One scale per tensor, chosen jointly where operators tie tensors together.

On a machine that requantises by shifts only, an operator with weights leaves its input and output scales free
(the weights absorb their ratio), but pooling, addition and data movement tie them: equal, or a power of two
apart. Tensors with equal scales form a class; classes that are a power of two apart form a group with one free
real base. Each group's base and exponents minimise the sum, over its tensors, of the quantisation error
relative to the tensor's energy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from npuc.quantize.calibration import Spread
from npuc.quantize.clipping import BEYOND, octaves_above, range_cost

FRACTIONS = 16
"""Candidate bases per octave."""
EXPONENTS = np.arange(-40, 41)

POWER_OF_TWO = "power-of-two"
DEMANDS = ("free", POWER_OF_TWO)
"""What a machine may ask of all scales of activations."""


@dataclass(frozen=True)
class Ratio:
    """log2(scale of `coarse` / scale of `fine`) must be an integer between least and most."""

    coarse: str
    fine: str
    least: int
    most: int


@dataclass(frozen=True)
class Ties:
    """What the operators demand of the scales."""

    equal: tuple[tuple[str, str], ...] = ()
    ratios: tuple[Ratio, ...] = ()
    ceilings: Mapping[str, float] = field(default_factory=dict[str, float])
    """The largest scale a tensor may have, so that saturation does the work of a Clip."""
    powers: tuple[str, ...] = ()
    """Tensors whose scale must be a power of two (factors of a product)."""
    given: Mapping[str, float] = field(default_factory=dict[str, float])
    """Scales fixed from outside."""
    floors: Mapping[str, float] = field(default_factory=dict[str, float])
    """The scale of a tensor below which its steps hold nothing but the error that its inputs bring."""
    unsaturated: frozenset[str] = frozenset()
    """Tensors of which no calibration value may saturate, whatever the method."""


def in_powers_of_two(ties: Ties, tensors: Iterable[str]) -> Ties:
    """The same ties, with a power of two as the scale of each of these tensors.

    A ceiling rises to the next one: below it the range would be cut off, above it the limits of a Clip take over.
    """
    ceilings = {name: next_power(ceiling) for name, ceiling in ties.ceilings.items()}
    return replace(ties, powers=tuple(tensors), ceilings=ceilings)


def next_power(scale: float) -> float:
    """The least power of two that is not below a scale."""
    return 2.0 ** math.ceil(math.log2(scale))


def choose_scales(spreads: Mapping[str, Spread], ties: Ties, method: str = "mse") -> dict[str, float]:
    """A scale for every tensor that satisfies the ties with the least relative error.

    method: of calibration, one of clipping.METHODS.
    """
    class_of = components(spreads, ties.equal)
    group_of = components(class_of.values(), ((class_of[r.coarse], class_of[r.fine]) for r in ties.ratios))
    scales: dict[str, float] = {}
    for group in dict.fromkeys(group_of.values()):
        members = {c: [t for t in spreads if class_of[t] == c] for c in group_of if group_of[c] == group}
        ratios = tuple(
            (class_of[each.coarse], class_of[each.fine], each.least, each.most)
            for each in ties.ratios
            if class_of[each.coarse] in members
        )
        chosen = _solve_group(members, ratios, spreads, ties, method)
        scales.update({tensor: chosen[name] for name in members for tensor in members[name]})
    return {tensor: scales[tensor] for tensor in spreads}


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
    spreads: Mapping[str, Spread],
    ties: Ties,
    method: str,
) -> dict[str, float]:
    """The scale of each class of a group: best base of an octave, best exponents for it."""
    bases = [2.0 ** (k / FRACTIONS) for k in range(FRACTIONS)]
    if any(tensor in ties.powers for tensors in members.values() for tensor in tensors):
        bases = [1.0]
    for tensors in members.values():
        for tensor in tensors:
            if tensor in ties.given:
                bases = [ties.given[tensor]]
            elif tensor in ties.ceilings and len(bases) > 1:
                bases.append(ties.ceilings[tensor])
    best: tuple[float, dict[str, float]] | None = None
    for base in bases:
        cost = {name: _class_cost(tensors, base, spreads, ties, method) for name, tensors in members.items()}
        exponents = _exponents(cost, ratios)
        total = sum(float(cost[name][exponents[name]]) for name in members)
        if best is None or total < best[0]:
            best = total, {name: base * 2.0 ** int(EXPONENTS[exponents[name]]) for name in members}
    assert best is not None
    return best[1]


def _class_cost(
    tensors: Iterable[str], base: float, spreads: Mapping[str, Spread], ties: Ties, method: str
) -> np.ndarray:
    """Relative error of a class of tensors for every exponent."""
    scales = base * 2.0 ** EXPONENTS.astype(np.float64)
    cost = np.zeros(len(scales))
    for tensor in tensors:
        spread = spreads[tensor]
        energy = spread.energy
        if energy > 0:
            cost += range_cost(spread, scales, method)
            if tensor in ties.unsaturated:
                cost += BEYOND * octaves_above(spread.largest / 127, scales)
        if tensor in ties.floors:
            cost += 1e3 * octaves_above(ties.floors[tensor], scales)
        if tensor in ties.ceilings:
            cost += 1e9 * octaves_above(scales, ties.ceilings[tensor])
        if tensor in ties.given:
            cost += 1e12 * np.abs(np.log2(scales / ties.given[tensor]))
    if not cost.any():
        cost = np.abs(EXPONENTS + math.log2(127)) * 1e-12
    return cost


Bounds = tuple[tuple[str, str, int, int], ...]
"""coarse, fine, least, most: least <= exponent of coarse - exponent of fine <= most."""


def _exponents(cost: Mapping[str, np.ndarray], ratios: Bounds) -> dict[str, int]:
    """An index into EXPONENTS per class: descent from the separate optima, made feasible first.

    Each class in turn takes its best exponent between those tied to it; where that ends, a class moves by one step
    together with those that it pushes. Both only lower the cost.
    """
    chosen = {name: int(np.argmin(values)) for name, values in cost.items()}
    for _ in range(len(cost)):
        for coarse, fine, least, most in ratios:
            chosen[coarse] = max(chosen[coarse], chosen[fine] + least)
            chosen[fine] = max(chosen[fine], chosen[coarse] - most)
    while True:
        before = dict(chosen)
        for name, values in cost.items():
            low, high = _window(name, chosen, ratios)
            if low <= high:
                chosen[name] = low + int(np.argmin(values[low : high + 1]))
        if chosen == before:
            chosen = _joint_step(chosen, cost, ratios)
        if chosen == before:
            return chosen


def _window(name: str, chosen: Mapping[str, int], ratios: Bounds) -> tuple[int, int]:
    """The least and the largest index that a class may take while the others stay."""
    low, high = 0, len(EXPONENTS) - 1
    for coarse, fine, least, most in ratios:
        if coarse == name != fine:
            low, high = max(low, chosen[fine] + least), min(high, chosen[fine] + most)
        elif fine == name != coarse:
            low, high = max(low, chosen[coarse] - most), min(high, chosen[coarse] - least)
    return low, high


def _joint_step(chosen: dict[str, int], cost: Mapping[str, np.ndarray], ratios: Bounds) -> dict[str, int]:
    """The first step of one class, and of those that it pushes, that lowers the cost; else what was chosen."""
    for name in chosen:
        for step in (-1, 1):
            moved = _pushed(chosen, name, step, ratios)
            inside = all(0 <= index < len(EXPONENTS) for index in moved.values())
            if inside and sum(cost[each][moved[each]] - cost[each][chosen[each]] for each in moved) < 0:
                return moved
    return chosen


def _pushed(chosen: Mapping[str, int], name: str, step: int, ratios: Bounds) -> dict[str, int]:
    """The indices after a class has moved by a step, and others with it as far as the ratios demand."""
    moved = {**chosen, name: chosen[name] + step}
    for _ in chosen:
        for coarse, fine, least, most in ratios:
            gap = moved[coarse] - moved[fine]
            if (gap < least and step < 0) or (gap > most and step > 0):
                moved[fine] = moved[coarse] - (least if step < 0 else most)
            elif (gap < least) or (gap > most):
                moved[coarse] = moved[fine] + (least if step > 0 else most)
    return moved
