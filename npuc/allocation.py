"""Allocation of buffers to addresses by lifetime: buffers that are alive together must not overlap."""

from __future__ import annotations

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

    def meets(self, other: Buffer) -> bool:
        """Whether both are alive in some step."""
        return self.first <= other.last and other.first <= self.last


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
    placed: list[tuple[Buffer, int]] = []
    for buffer in order:
        taken = sorted((at, at + other.size) for other, at in placed if buffer.meets(other))
        address = 0
        for start, end in taken:
            if address + buffer.size <= start:
                break
            address = max(address, end)
        placed.append((buffer, address))
    return {buffer.name: address for buffer, address in placed}
