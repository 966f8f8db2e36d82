"""Slice and Pad: their bounds were attributes in old opsets and are inputs now."""

from __future__ import annotations

from collections.abc import Sequence

from npuc.frontend.builder import NodeBuilder, OnnxNode
from npuc.frontend.importers.importer import Importer


def _slice(node: OnnxNode, to: NodeBuilder) -> None:
    """Attributes before opset 10, inputs since. Bounds are clamped; an empty slice becomes 0:0.

    A backward slice that starts before the first element starts at it, where numpy's is empty.
    """
    shape = to.shape(node.inputs[0])
    if node.opset < 10:
        starts, ends, given, steps = node.attrs["starts"], node.attrs["ends"], node.attrs.get("axes"), None
    else:
        starts, ends = to.integers(node, 1), to.integers(node, 2)
        given = to.integers(node, 3) if node.given(3) else None
        steps = to.integers(node, 4) if node.given(4) else None
    axes = node.axes(range(len(starts)) if given is None else given, len(shape))
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise node.bad(f"starts {list(starts)}, ends {list(ends)}, axes {list(axes)}, steps {list(steps)}")
    cuts = [
        slice(start if step > 0 else max(start, -shape[axis]), end, step).indices(shape[axis])
        for start, end, step, axis in zip(starts, ends, steps, axes, strict=True)
    ]
    cuts = [cut if len(range(*cut)) else (0, 0, 1) for cut in cuts]
    to.emit(
        node,
        "Slice",
        node.inputs[:1],
        starts=tuple(cut[0] for cut in cuts),
        ends=tuple(cut[1] for cut in cuts),
        axes=axes,
        steps=tuple(cut[2] for cut in cuts),
    )


def _pad(node: OnnxNode, to: NodeBuilder) -> None:
    """Attributes before opset 11; inputs pads, value and (opset 18) axes since."""
    rank = len(to.shape(node.inputs[0]))
    pads = to.integers(node, 1) if node.opset >= 11 else node.attrs["pads"]
    value = to.scalar(node, 2) if node.given(2) else node.attrs.get("value", 0.0)
    if node.given(3):
        axes = node.axes(to.integers(node, 3), rank)
        if len(pads) != 2 * len(axes):
            raise node.bad(f"{len(pads)} pads for {len(axes)} axes", limit=f"{2 * len(axes)} values")
        spread = dict(zip((*axes, *(rank + axis for axis in axes)), pads, strict=True))
        pads = tuple(spread.get(position, 0) for position in range(2 * rank))
    pads = _within(node, to.shape(node.inputs[0]), pads)
    to.emit(node, "Pad", node.inputs[:1], pads=pads, mode=node.attrs["mode"], value=float(value))


def _within(node: OnnxNode, shape: Sequence[int], pads: Sequence[int]) -> tuple[int, ...]:
    """The same pads without crops of more than a whole axis, which also take away what the other side adds.

    Raises ModelError (E105) for such crops unless a constant is put there: nothing is left that could be repeated.
    """
    if len(pads) != 2 * len(shape):
        return tuple(pads)
    found = list(pads)
    for axis, extent in enumerate(shape):
        for side, other in ((axis, axis + len(shape)), (axis + len(shape), axis)):
            excess = min(found[side] + extent, 0)
            if excess and node.attrs["mode"] != "constant":
                raise node.bad(f"it crops {-found[side]} of {extent} elements", limit="as many as there are")
            found[side], found[other] = found[side] - excess, found[other] + excess
    return tuple(found)


IMPORTERS: dict[str, Importer] = {"Slice": _slice, "Pad": _pad}
