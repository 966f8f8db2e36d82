"""Functions along axes: one vector per channel, as many at a time as local memory and the interface allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

from npuc.ir import Node
from npuc.ops.attributes import AXES, AXIS
from npuc.targets.bm1684.lowering import moves
from npuc.targets.bm1684.lowering.context import Lowering
from npuc.targets.bm1684.lowering.elementwise import ComposedFunction
from npuc.targets.bm1684.lowering.extents import MOST
from npuc.targets.bm1684.lowering.kernel import Call, Local, Padding, Pair, call
from npuc.targets.bm1684.lowering.orders import ordered
from npuc.targets.bm1684.lowering.tensors import ELEMENT, SystemView, Tensor, known, merged
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div

MOVES = 8
"""The most calls that store vectors directly into the result."""
TOGETHER = 6
"""Tensors of vectors that a function needs at a time, including the one that is being loaded."""


def rows_of(length: int) -> tuple[int, int] | None:
    """The rows and columns of a window that covers a vector; None if no window is small enough."""
    fits = (w for w in range(min(MOST.w, length), 0, -1) if length % w == 0 and length // w <= MOST.h)
    found = next(fits, None)
    return None if found is None else (length // found, found)


def pooled(
    name: str, x: Tensor, out: Tensor, kernel: tuple[int, ...], pads: Padding, strides: tuple[int, ...]
) -> Call:
    """max_pool2d or avg_pool2d."""
    return call(f"bdc_{name}_pool2d", out.at, x.at, x.shape, *kernel, pads, Pair(*strides))


def over_vector(name: str, x: Tensor, out: Tensor) -> Call:
    """The maximum or the average of every vector."""
    return pooled(name, x, out, (x.shape.h, x.shape.w), Padding(0, 0, 0, 0), (1, 1))


def with_one(lo: Lowering, name: str, out: Tensor, x: Tensor, one: Tensor) -> Call:
    """A binary function of every element of a vector and one number per vector."""
    repeated = one.stride(lo.machine)._replace(h=0, w=0)
    return call(f"bdc_{name}", out.at, x.at, one.at, x.shape, None, None, repeated)


def softmax(lo: Lowering, node: Node) -> None:
    """Softmax: exp(x - max) / sum."""
    if not _side_by_side(lo, node, AXIS(node)):
        _each(lo, node, (AXIS(node),), _softmax, keep=True)


MOST_BESIDE = 8
"""The most elements of a vector that are compared and summed image by image."""


def _side_by_side(lo: Lowering, node: Node, axis: int) -> bool:
    """Softmax of short vectors, with element i of all vectors in image i; False if that does not pay."""
    shape, machine = lo.graph.shape(node.output), lo.machine
    length, count = shape[axis], prod(shape[axis + 1 :])
    if prod(shape[:axis]) != 1 or not 1 < length <= MOST_BESIDE:
        return False
    width = min(
        (w for w in range(1, 513) if count % w == 0 and count // w <= MOST.c), default=0, key=_groups(count, lo)
    )
    form = Dim4(length, count // width, 1, width) if width else Dim4(0, 0, 0, 0)
    room = TOGETHER * Tensor(form, Local("")).bytes(machine) <= machine.local_bytes if width else False
    if not room or length * _groups(count, lo)(width) >= ceil_div(count, machine.npus):
        return False
    x = lo.fetch(f"{node.output}/vectors", lo.view(node.inputs[0]), form)
    found = _softmax_of_images(lo, x)
    view = ordered(lo.graph, node.output, found, lo.destination, machine) or lo.destination(node.output)
    lo.store(view, found)
    lo.define_view(node.output, view)
    return True


def _groups(count: int, lo: Lowering) -> Callable[[int], int]:
    """The groups of lanes that `count` vectors take, as a function of the number of vectors per row."""
    npus, lanes = lo.machine.npus, lo.machine.lanes
    return lambda width: ceil_div(count // width, npus) * ceil_div(width, lanes)


def _softmax_of_images(lo: Lowering, x: Tensor) -> Tensor:
    """exp(x - max) / sum, along the images."""
    one = lo.new(f"{lo.node.output}/of_vectors", x.shape._replace(n=1), x.at.npu)
    e = lo.new(f"{lo.node.output}/exponentials", x.shape, x.at.npu)
    f = ComposedFunction(lo, x, e, [])
    f.series("exp", (-80.0, None))
    lo.emit(*_over_images(lo, "max", x, one), _with_image(lo, "sub", x, x, one))
    lo.emit(*f.calls, *_over_images(lo, "add", e, one), _with_image(lo, "div", x, e, one))
    return x


def _over_images(lo: Lowering, name: str, x: Tensor, one: Tensor) -> Iterator[Call]:
    """The calls for the maximum or sum of the images, element by element."""
    images = [x.image(at, lo.machine) for at in range(x.shape.n)]
    for at, image in enumerate(images[1:]):
        first = images[0] if at == 0 else one
        yield call(f"bdc_{name}", one.at, first.at, image.at, one.shape, None, None, None)


def _with_image(lo: Lowering, name: str, out: Tensor, x: Tensor, one: Tensor) -> Call:
    """A binary function of every image and a single one."""
    repeated = one.stride(lo.machine)._replace(n=0)
    return call(f"bdc_{name}", out.at, x.at, one.at, x.shape, None, None, repeated)


def reduction(lo: Lowering, node: Node) -> None:
    """ReduceMean, ReduceSum, ReduceMax and ReduceMin."""
    _each(lo, node, tuple(sorted(AXES(node))), _reduced, keep=False)


def _softmax(lo: Lowering, x: Tensor) -> Tensor:
    one = lo.new(f"{lo.node.output}/of_vectors", x.shape._replace(h=1, w=1), x.at.npu)
    e = lo.new(f"{lo.node.output}/exponentials", x.shape, x.at.npu)
    lo.emit(over_vector("max", x, one), with_one(lo, "sub", x, x, one))
    f = ComposedFunction(lo, x, e, [])
    f.series("exp", (-80.0, None))
    g = ComposedFunction(lo, one, one, [])
    total = over_vector("avg", e, one)
    g.to("mul_C", float(x.shape.h * x.shape.w))
    lo.emit(*f.calls, total, *g.calls, with_one(lo, "div", x, e, one))
    return x


def _reduced(lo: Lowering, x: Tensor) -> Tensor:
    op, one = lo.node.op, lo.new(f"{lo.node.output}/of_vectors", x.shape._replace(h=1, w=1), x.at.npu)
    before, behind = ComposedFunction(lo, x, x, []), ComposedFunction(lo, one, one, [])
    if op == "ReduceMin":
        before.to("neg")
        behind.to("neg")
    if op == "ReduceSum":
        behind.to("mul_C", float(x.shape.h * x.shape.w))
    name = "max" if op in ("ReduceMax", "ReduceMin") else "avg"
    lo.emit(*before.calls, over_vector(name, x, one), *behind.calls)
    return one


def _each(
    lo: Lowering, node: Node, axes: Sequence[int], compute: Callable[[Lowering, Tensor], Tensor], *, keep: bool
) -> None:
    """Runs `compute` on vectors along axes, some block rows at a time. keep: its result has the vectors' size."""
    shape = lo.graph.shape(node.inputs[0])
    order = [axis for axis in range(len(shape)) if axis not in axes] + list(axes)
    length = prod(shape[axis] for axis in axes)
    form, count = rows_of(length), prod(shape) // length
    if form is None:
        raise lo.refusal(f"vectors of {length} elements, which no window of {MOST.h} x {MOST.w} covers")
    cuts = list(_cuts(lo, count, length))
    source = _flat(lo, lo.view(node.inputs[0]).transposed(order), (count, length), whole=len(cuts) == 1)
    to, found = _destination(lo, node, order, Dim4(1, count, *form), len(cuts)) if keep else _of_vectors(lo, node)
    for first, behind in cuts:
        part, target = (
            each if len(cuts) == 1 else known(each.sliced(0, first, behind - first)) for each in (source, to)
        )
        x = lo.fetch(f"{node.output}/vectors", part, Dim4(1, behind - first, *form))
        lo.store(target, compute(lo, x))
    lo.define_view(node.output, found)


def _flat(lo: Lowering, view: SystemView, shape: tuple[int, int], *, whole: bool) -> SystemView:
    """The view as vectors (count, length); for parts of it, with a single dimension of vectors."""
    flat = view.reshaped(shape)
    if flat is None or not (whole or len(merged(flat.axes[0])) == 1):
        return known(lo.continuous(view).reshaped(shape))
    return flat


def _of_vectors(lo: Lowering, node: Node) -> tuple[SystemView, SystemView]:
    """The destination of one number per vector: flat, and in the result's shape."""
    view = lo.destination(node.output)
    return known(view.reshaped((prod(view.shape), 1))), view


def _destination(
    lo: Lowering, node: Node, order: Sequence[int], form: Dim4, cuts: int
) -> tuple[SystemView, SystemView]:
    """The destination of vectors: directly in the result if a few moves suffice, else contiguous in scratch."""
    view = lo.destination(node.output)
    direct = view.transposed(order).reshaped(form)
    tensor = Tensor(form, Local(""))
    if cuts == 1 and direct is not None and len(moves.stores(direct, tensor, lo.machine)) <= MOVES:
        return direct, view
    shape = lo.graph.shape(node.output)
    rows = lo.scratch_view((form.c, form.h * form.w))
    ordered = known(rows.reshaped([shape[axis] for axis in order]))
    return rows, ordered.transposed([order.index(axis) for axis in range(len(shape))])


def _cuts(lo: Lowering, count: int, length: int) -> Iterator[tuple[int, int]]:
    """Ranges [first, behind) of vectors that are in local memory at a time."""
    npus, size = lo.machine.npus, ELEMENT * ceil_div(length, 32) * 32
    rows = max(1, min(MOST.c // npus, lo.machine.local_bytes // (TOGETHER * size)))
    for first in range(0, count, rows * npus):
        yield first, min(count, first + rows * npus)
