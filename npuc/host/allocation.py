"""Allocation of buffers to addresses by lifetime: buffers that are alive together must not overlap."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from itertools import accumulate

from npuc.frozen import frozen


@frozen
class Buffer:
    """A region of `size` consecutive units, occupied from step `first` to step `last` inclusive."""

    name: str
    size: int
    first: int
    last: int


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """The most units alive in any step: a lower bound for every placement."""
    changes = sorted([(b.first, 0, b.size) for b in buffers] + [(b.last, 1, -b.size) for b in buffers])
    return max(accumulate(size for _, _, size in changes), default=0)


def allocate(buffers: Sequence[Buffer]) -> dict[str, int]:
    """An address for every buffer: the best of several greedy orders by peak, ties by order.

    Each buffer takes the lowest gap among those alive with it. The result is deterministic.
    """
    bound, plans = lower_bound(buffers), map(_first_fit, _orders(buffers))
    best = next(plans)
    while peak(buffers, best) > bound and (other := next(plans, None)) is not None:
        best = min(best, other, key=lambda plan: peak(buffers, plan))
    return best


def fits(buffers: Sequence[Buffer], capacity: int) -> bool:
    """Whether `allocate` finds a place for all of them."""
    if lower_bound(buffers) > capacity:
        return False
    if sum(b.size for b in buffers) <= capacity:
        return True
    return any(peak(buffers, _first_fit(order)) <= capacity for order in _orders(buffers))


def _orders(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """The orders of placement, one per attempt. Ties stay as given: names must not decide where a buffer is."""
    yield sorted(buffers, key=lambda b: (-b.size, b.first))
    yield sorted(buffers, key=lambda b: (b.first, -b.size))
    yield sorted(buffers, key=lambda b: (-(b.last - b.first), -b.size))


def peak(buffers: Sequence[Buffer], addresses: dict[str, int]) -> int:
    """The first unit beyond all buffers."""
    return max((addresses[b.name] + b.size for b in buffers), default=0)


def _first_fit(order: Sequence[Buffer]) -> dict[str, int]:
    addresses: dict[str, int] = {}
    placed: list[tuple[int, int, int, int]] = []  # start, end, first and last step, by address
    for buffer in order:
        address = 0
        for start, end, first, last in placed:
            if first > buffer.last or buffer.first > last:
                continue
            if address + buffer.size <= start:
                break
            address = max(address, end)
        addresses[buffer.name] = address
        insort(placed, (address, address + buffer.size, buffer.first, buffer.last))
    return addresses
