"""Steps in bundles: moves that may run beside a computation stand with it.

A store runs beside the next computation, or already beside the one before if that computes something else; what is
fetched from system memory runs beside the one before. All this unless one of them needs the other's result.
All other moves have a bundle of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from npuc.targets.bm1684.lowering.kernel import Call, Step, System
from npuc.targets.bm1684.lowering.tensors import ELEMENT


@dataclass(frozen=True)
class Bundle:
    """A step, and the moves beside it in their order."""

    step: Step
    beside: tuple[Step, ...] = ()

    @property
    def moves(self) -> tuple[Call, ...]:
        """The calls of the moves."""
        return tuple(call for each in self.beside for call in each.calls)

    @property
    def calls(self) -> tuple[Call, ...]:
        """All of them."""
        return (*self.moves, *self.step.calls)


def bundled(steps: Sequence[Step]) -> list[Bundle]:
    """The steps in an order that has the same effects, computations in their own."""
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
    """Removes from the waiting stores those that have to end before the step, which overwrites what they read."""
    written = {call.writes for call in step.calls}
    clashes = [at for at, each in enumerate(waiting) if any(written & set(call.reads) for call in each.calls)]
    count = clashes[-1] + 1 if clashes else 0
    before = waiting[:count]
    del waiting[:count]
    return before


def _leaves_alone(bundle: Bundle, store: Step) -> bool:
    """Whether a computation runs in the bundle, and nothing of the bundle writes what the store reads."""
    written = {call.writes for call in bundle.calls}
    return not bundle.step.on_gdma and not any(written & set(call.reads) for call in store.calls)


def _all(step: Step, direction: str) -> bool:
    return all(call.name.endswith(direction) for call in step.calls)


def _may_precede(fetch: Step, bundle: Bundle, waiting: Sequence[Step]) -> bool:
    """Whether data can be fetched beside a bundle: not what waiting stores write, nor where the bundle is."""
    if bundle.step.on_gdma or not _all(fetch, "S2L"):
        return False
    touched = {name for call in bundle.calls for name in call.buffers}
    read = [_span(call, 1) for call in fetch.calls]
    written = [_span(call, 0) for each in waiting for call in each.calls]
    apart = all(a[0] != b[0] or a[2] <= b[1] or b[2] <= a[1] for a in read for b in written)
    return apart and not any(call.writes in touched for call in fetch.calls)


def _span(call: Call, index: int) -> tuple[str, int, int]:
    """Region and bytes [start, end) of system memory that a call reads or writes, gaps included."""
    place, args = call.args[index], call.args
    assert isinstance(place, System)
    if "matrix" in call.name:
        rows, stride = args[2], args[5]
        assert isinstance(rows, int) and isinstance(stride, int)
        return place.region, place.offset, place.offset + ELEMENT * rows * stride
    shape, strides = args[2], args[3 + index]
    assert isinstance(shape, tuple) and isinstance(strides, tuple)
    last = sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
    return place.region, place.offset, place.offset + ELEMENT * (last + 1)
