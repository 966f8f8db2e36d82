"""The order in which to store a tensor so that later Reshapes and Transposes make it contiguous.

A store can write any order at the cost of its runs; a view that is not contiguous is copied once more before it is
loaded, unless a few calls can load it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from npuc.ir import Graph
from npuc.ops.attributes import PERM
from npuc.targets.bm1684.lowering import moves
from npuc.targets.bm1684.lowering.kernel import Call, Local
from npuc.targets.bm1684.lowering.tensors import SystemView, Tensor, local_shape
from npuc.targets.bm1684.machine.parameters import Machine

DIRECT = 8
"""The most calls that load a view without a copy before."""


def ordered(
    graph: Graph, name: str, tensor: Tensor, home: Callable[[str], SystemView], machine: Machine
) -> SystemView | None:
    """Where to store a tensor so that the result of its moves is contiguous; None if that does not pay.

    home: returns the contiguous view that a tensor of the graph is stored to.
    """
    end, moved = _moved(graph, name)
    dims = [dim for axis in moved.axes for dim in axis if dim[0] > 1]
    if dims == sorted(dims, key=lambda dim: -dim[1]) or prod(tensor.shape) != prod(graph.shape(name)):
        return None
    steps = [prod(extent for extent, _ in dims[at + 1 :]) for at in range(len(dims))]
    before = sorted(zip(dims, steps, strict=True), key=lambda each: -each[0][1])
    axis = tuple((extent, step) for (extent, _), step in before)
    view = SystemView("", 0, (axis,)).reshaped(graph.shape(name))
    if view is None or not _pays(graph.shape(name), view, moved, tensor, end in graph.outputs, machine):
        return None
    to = home(end)
    return SystemView(to.region, to.offset, view.axes)


def _moved(graph: Graph, name: str) -> tuple[str, SystemView]:
    """The last of a chain of Reshapes and Transposes (sole readers), as a view of the contiguous tensor."""
    view = SystemView.continuous("", 0, graph.shape(name))
    reader = graph.only_reader(name)
    while reader is not None and reader.op in ("Reshape", "Transpose"):
        shape = graph.shape(reader.output)
        after = view.transposed(PERM(reader)) if reader.op == "Transpose" else view.reshaped(shape)
        if after is None:
            break
        name, view = reader.output, after
        reader = graph.only_reader(name)
    return name, view


def _pays(
    shape: Sequence[int], view: SystemView, moved: SystemView, tensor: Tensor, delivered: bool, machine: Machine
) -> bool:
    """Whether a store in another order costs less than a plain one with the copy or loads that follow it."""
    stored = _stored(view, tensor, machine)
    plain = _stored(SystemView.continuous("", 0, shape), tensor, machine)
    if stored is None or plain is None:
        return False
    continuous = SystemView.continuous("", 0, moved.shape)
    after = moves.price(moves.copies(continuous, moved), machine)
    form = local_shape(moved.shape)
    if not delivered and len(moved.shape) > 2:
        local, as_it_is, at_once = Tensor(form, Local("")), moved.reshaped(form), continuous.reshaped(form)
        assert at_once is not None
        if as_it_is is not None and len(calls := moves.loads(local, as_it_is, machine)) <= DIRECT:
            after = moves.price(calls, machine) - moves.price(moves.loads(local, at_once, machine), machine)
    return moves.price(stored, machine) < moves.price(plain, machine) + after


def _stored(view: SystemView, tensor: Tensor, machine: Machine) -> tuple[Call, ...] | None:
    shaped = view.reshaped(tensor.shape)
    return None if shaped is None else moves.stores(shaped, tensor, machine)
