"""Bundles of steps: a computation and the moves that may run beside it.

A store runs beside the next computation, or beside the preceding one if that computes something else; a load
from system memory runs beside the preceding one; neither does if one of the two needs the other's result.
Every other move is a bundle of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from npuc.frozen import frozen
from npuc.targets.bm1684.lowering.kernel import Call, Step, SystemPlace
from npuc.targets.bm1684.lowering.tensors import ELEMENT


@frozen
class Bundle:
    """A step, and the moves beside it in order."""

    step: Step
    beside: tuple[Step, ...] = ()

    @property
    def moves(self) -> tuple[Call, ...]:
        """The calls of the moves."""
        return tuple(call for each in self.beside for call in each.calls)

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls of the bundle."""
        return (*self.moves, *self.step.calls)


def bundled(steps: Sequence[Step]) -> list[Bundle]:
    """The steps, reordered with the same effects; computations keep their order."""
    bundles: list[Bundle] = []
    waiting: list[Step] = []
    for step in steps:
        if not step.on_gdma:
            bundles += _alone(_split(waiting, step))
            bundles.append(Bundle(step, tuple(waiting)))
            waiting = []
        elif _all(step, "L2S"):
            if bundles and not waiting and _leaves_alone(bundles[-1], step):
                bundles[-1] = replace(bundles[-1], beside=(*bundles[-1].beside, step))
            else:
                waiting.append(step)
        elif bundles and _may_precede(step, bundles[-1], waiting):
            bundles[-1] = replace(bundles[-1], beside=(*bundles[-1].beside, step))
        else:
            bundles += _alone([*waiting, step])
            waiting = []
    return bundles + _alone(waiting)


def _alone(steps: Iterable[Step]) -> list[Bundle]:
    return [Bundle(step) for step in steps]


def _split(waiting: list[Step], step: Step) -> list[Step]:
    """Removes and returns the waiting stores that must end before the step, which overwrites what they read."""
    written = {call.writes for call in step.calls}
    clashes = [at for at, each in enumerate(waiting) if any(written & set(call.reads) for call in each.calls)]
    count = clashes[-1] + 1 if clashes else 0
    before = waiting[:count]
    del waiting[:count]
    return before


def _leaves_alone(bundle: Bundle, store: Step) -> bool:
    """Whether the bundle has a computation, and no call of it writes what the store reads."""
    written = {call.writes for call in bundle.calls}
    return not bundle.step.on_gdma and not any(written & set(call.reads) for call in store.calls)


def _all(step: Step, direction: str) -> bool:
    return all(call.name.endswith(direction) for call in step.calls)


def _may_precede(fetch: Step, bundle: Bundle, waiting: Sequence[Step]) -> bool:
    """Whether a load can run beside a bundle: not of data that waiting stores write, nor into its buffers."""
    if _all(fetch, "tables"):
        return not bundle.step.on_gdma
    if bundle.step.on_gdma or not _all(fetch, "S2L"):
        return False
    touched = {name for call in bundle.calls for name in call.buffers}
    read = [_span(call, 1) for call in fetch.calls]
    written = [_span(call, 0) for each in waiting for call in each.calls]
    apart = all(a[0] != b[0] or a[2] <= b[1] or b[2] <= a[1] for a in read for b in written)
    return apart and not any(call.writes in touched for call in fetch.calls)


def _span(call: Call, index: int) -> tuple[str, int, int]:
    """The region and bytes [start, end) of system memory that a call reads or writes, gaps included."""
    place, args = call.args[index], call.args
    assert isinstance(place, SystemPlace)
    if "matrix" in call.name:
        rows, stride = args[2], args[5]
        assert isinstance(rows, int) and isinstance(stride, int)
        return place.region, place.offset, place.offset + ELEMENT * rows * stride
    shape, strides = args[2], args[3 + index]
    assert isinstance(shape, tuple) and isinstance(strides, tuple)
    last = sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
    return place.region, place.offset, place.offset + ELEMENT * (last + 1)
