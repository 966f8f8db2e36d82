"""Lowering of a float graph to steps of OKK calls on local-memory buffers that have no addresses yet.

A tensor exists in local memory, in system memory, or in both; a rule asks for the form it needs and lowering moves
the data. Reshape, Transpose and the like are views of system memory that cost nothing until they are read.
Operands of a channel Concat are computed in place in its result, since a tensor may start at any NPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import inf, prod

from npuc.errors import UnsupportedOperator
from npuc.ir import Array, Graph, Node
from npuc.targets.bm1684.lowering import matrices, moves
from npuc.targets.bm1684.lowering.extents import split_extents
from npuc.targets.bm1684.lowering.kernel import Call, Load, Local, Step, SystemPlace, call
from npuc.targets.bm1684.lowering.moves import order_for_moves
from npuc.targets.bm1684.lowering.tensors import (
    ALIGNMENT,
    ELEMENT,
    ConstantRegion,
    Lowered,
    SystemView,
    Tensor,
    expect_view,
    local_shape,
    merge_dims,
)
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div
from npuc.targets.bm1684.machine.parameters import Machine

WEIGHTS, SCRATCH = "weights", "scratch"

Rule = Callable[["Lowering", Node], None]


class Lowering:
    """The state of lowering, while the rules of a graph's nodes run in order."""

    def __init__(self, graph: Graph, machine: Machine, *, inside: bool = False) -> None:
        """inside: rows and columns are joined, interleaved and cut in local memory."""
        self.graph, self.machine, self.inside = graph, machine, inside
        self.steps: list[Step] = []
        self.loads: dict[str, tuple[Load, ...]] = {}
        self.buffers: dict[str, int] = {}
        self.scratch = 0
        self.weights = ConstantRegion()
        self._local: dict[str, Tensor] = {}
        self._views: dict[str, SystemView] = {}
        self._residents: dict[str, set[str]] = {}
        self._homes: dict[str, tuple[str, int]] = {}
        self._joined: dict[str, tuple[str, int, int]] = {}
        self._wholes: dict[str, SystemView] = {}
        self._last = _last_readers(graph)
        self.node = Node("", (), ("",))
        self.sources: tuple[str, ...] = ()
        """The ONNX nodes of the current node and of the producers that are computed with it."""
        self.regions = {name: f"input{i}" for i, name in enumerate(graph.inputs)}
        self.outputs = {name: f"output{i}" for i, name in enumerate(graph.outputs)}
        for name, region in self.regions.items():
            self._views[name] = SystemView.continuous(region, 0, graph.shape(name))

    # buffers and steps

    def buffer(self, stem: str, size: int) -> str:
        """The name of a new local-memory buffer of `size` bytes per NPU, rounded up to the alignment."""
        name, count = stem, 1
        while name in self.buffers:
            count += 1
            name = f"{stem}#{count}"
        self.buffers[name] = ceil_div(size, ALIGNMENT) * ALIGNMENT
        return name

    def new_tensor(self, stem: str, shape: Dim4, npu: int = 0) -> Tensor:
        """A new tensor in its own buffer."""
        size = Tensor(shape, Local("", npu)).bytes(self.machine)
        return Tensor(shape, Local(self.buffer(stem, size), npu))

    def emit(self, *calls: Call) -> None:
        """Appends a step of the current node; calls beyond the interface's extents are split."""
        assert len({each.on_gdma for each in calls}) == 1, calls
        made = tuple(piece for each in calls for piece in split_extents(each, self.machine))
        self.steps.append(Step(made, self.node.output, self.sources, self.node.op))

    # constants

    def rows(self, stem: str, values: Array, npu: int = 0) -> Local:
        """A buffer with row i of `values` (rows, columns) in NPU npu + i, loaded before it is read."""
        count, columns = values.shape
        assert npu + count <= self.machine.npus
        at, source = Local(self.buffer(stem, ELEMENT * columns), npu), self.weights.image(values)

        @cache
        def loads(first: int, last: int) -> tuple[Call, ...]:
            strides = Dim4(columns * count, columns, columns, 1)
            shape, place = Dim4(1, count, 1, last - first), at.shift(ELEMENT * first)
            system = SystemPlace(WEIGHTS, source + ELEMENT * first)
            return (call("gdma_32bit_cpy_S2L", place, system, shape, strides, strides),)

        self.loads[at.buffer] = (Load(at.buffer, columns, loads),)
        return at

    def constant(self, stem: str, values: Array, npu: int = 0) -> Tensor:
        """A constant (N, C, H, W) in local memory, loaded before it is read."""
        shape = Dim4(*values.shape)
        tensor = self.new_tensor(stem, shape, npu)
        self.fill(tensor, SystemView.continuous(WEIGHTS, self.weights.image(values) // ELEMENT, shape))
        return tensor

    def fill(self, tensor: Tensor, view: SystemView, given: Dim4 | None = None) -> None:
        """Has a tensor loaded before it is read, from a view of weights or an input (present from the start).

        given: the strides of a part of a larger tensor, of one image.
        """
        stride, count = tensor.stride(self.machine).n, tensor.shape.n
        count = count if len(view.axes[0]) == 1 else 1

        @cache
        def loads(first: int, last: int) -> tuple[Call, ...]:
            if count == 1:
                return moves.loads(tensor, view, self.machine, given)
            part = Tensor(tensor.shape._replace(n=last - first), tensor.at.shift(ELEMENT * stride * first))
            return moves.loads(part, expect_view(view.slice_axis(0, first, last - first)), self.machine)

        load = Load(tensor.at.buffer, count, loads)
        self.loads[tensor.at.buffer] = (*self.loads.get(tensor.at.buffer, ()), load)

    def from_outside(self, name: str) -> bool:
        """Whether the tensor is an input, or a view of one, in system memory."""
        return name in self._views and self._views[name].region in self.regions.values()

    # tensors of the graph

    def load(self, name: str, width: int | None = None, npu: int | None = None) -> Tensor:
        """The tensor in local memory, loaded if need be. width: W of a matrix; npu: the NPU it has to start at."""
        found = self._local.get(name)
        if found is None or (width is not None and found.shape.w != width and len(self.graph.shape(name)) < 3):
            found = self._load_outside(name, width)
        if npu is None or found.at.npu == npu:
            return found
        moved = self.new_tensor(f"{name}@{npu}", found.shape, npu)
        self.emit(moves.copy(moved, found, self.machine))
        return moved

    def _load_outside(self, name: str, width: int | None) -> Tensor:
        value = self.graph.constant(name)
        if value is not None:
            shape = local_shape(value.shape, width or 1)
            rows = value.reshape(shape.n, -1)
            return self.constant(
                name, matrices.pad_columns(rows, shape) if value.ndim < 3 else value.reshape(shape)
            )
        extents = self.graph.shape(name)
        if len(extents) < 3 and width is None:
            width = ceil_div(prod(extents[-1:]), self.machine.npus)  # no rule asked for a width
        shape = local_shape(extents, width or 1)
        tensor = self.fetch(name, self.view(name), shape)
        self._local.setdefault(name, tensor)
        return tensor

    def fetch(self, stem: str, view: SystemView, shape: Dim4, npu: int = 0) -> Tensor:
        """A view of system memory loaded into local memory as `shape`.

        The shape has the view's number of elements, or is that of a matrix with a partial last channel.
        """
        if prod(view.shape) != prod(shape):
            return self._load_matrix(stem, view, shape, npu)
        shaped, tensor = self.reshape(view, shape), self.new_tensor(stem, shape, npu)
        if len(moves.loads(tensor, shaped, self.machine)) > 8:
            shaped = expect_view(self.make_continuous(shaped).reshape(shape))
        if self._from_start(shaped):
            self.fill(tensor, shaped)
            return tensor
        self.emit(*moves.loads(tensor, shaped, self.machine))
        return tensor

    def _load_matrix(self, stem: str, view: SystemView, shape: Dim4, npu: int) -> Tensor:
        """A loaded matrix whose last channel is partial."""
        columns = view.shape[-1]
        rows = view.reshape((shape.n, columns))
        if rows is None or len(merge_dims(rows.axes[1])) > 1:
            rows = expect_view(self.make_continuous(view).reshape((shape.n, columns)))
        tensor = self.new_tensor(stem, shape, npu)
        calls = matrices.loads(tensor, rows, self.machine)
        if self._from_start(rows):
            load = Load(tensor.at.buffer, 1, lambda _first, _last: calls)
            self.loads[tensor.at.buffer] = (*self.loads.get(tensor.at.buffer, ()), load)
        else:
            self.emit(*calls)
        return tensor

    def _from_start(self, view: SystemView) -> bool:
        """Whether the view's data exists before the first step: weights or an input."""
        return view.region in (WEIGHTS, *self.regions.values())

    def view(self, name: str) -> SystemView:
        """The tensor in system memory, in its shape in the graph; stored if need be."""
        if name not in self._views:
            value = self.graph.constant(name)
            if value is not None:
                view = SystemView.continuous(WEIGHTS, self.weights.image(value) // ELEMENT, value.shape)
            else:
                found = order_for_moves(self.graph, name, self._local[name], self.destination, self.machine)
                view = found or self.destination(name)
                self.store(view, self._local[name])
            self._views[name] = view
        return self._views[name]

    def make_continuous(self, view: SystemView) -> SystemView:
        """The view in the continuous layout, copied if need be."""
        to = self.scratch_view(view.shape)
        if SystemView(view.region, view.offset, to.axes) == view:
            return view
        self.emit(*moves.copies(to, view))
        return to

    def reshape(self, view: SystemView, shape: Sequence[int]) -> SystemView:
        """The view in another shape, copied if need be: a contiguous view can have every shape."""
        return view.reshape(shape) or expect_view(self.make_continuous(view).reshape(shape))

    def scratch_view(self, shape: Sequence[int]) -> SystemView:
        """A newly allocated view of the scratch region."""
        at = self.scratch // ELEMENT
        self.scratch += ceil_div(ELEMENT * prod(shape), ALIGNMENT) * ALIGNMENT
        return SystemView.continuous(SCRATCH, at, shape)

    def destination(self, name: str) -> SystemView:
        """The view that a tensor is stored to: its output region, or new scratch."""
        shape = self.graph.shape(name)
        return (
            SystemView.continuous(self.outputs[name], 0, shape)
            if name in self.outputs
            else self.scratch_view(shape)
        )

    def store(self, view: SystemView, tensor: Tensor) -> None:
        """Stores a local tensor to system memory, in the view's shape."""
        shape = tensor.shape
        if prod(view.shape) != prod(shape):
            rows = expect_view(view.reshape((shape.n, view.shape[-1])))
            self.emit(*matrices.stores(rows, tensor, self.machine))
            return
        shaped = view.reshape(shape)
        if shaped is None:
            raise self.refusal("the order of its elements needs more than four dimensions")
        self.emit(*moves.stores(shaped, tensor, self.machine))

    def output(self, name: str, shape: Dim4, npu: int | None = None) -> Tensor:
        """The tensor that a node writes: its part of a Concat if that starts at `npu`, else a new one."""
        home = self.home(name)
        if home is not None and npu in (None, home.at.npu):
            return home
        return self.new_tensor(name, shape, npu or 0)

    def home(self, name: str) -> Tensor | None:
        """The tensor's part of a Concat, whose buffer is created on first use; None if it belongs to none."""
        if name not in self._homes:
            return None
        first, inner = 0, name
        while inner in self._homes:
            inner, offset = self._homes[inner]
            first += offset
        root = self._local.get(inner)
        if root is None:
            root = self._local[inner] = self.new_tensor(inner, local_shape(self.graph.shape(inner)))
            self._residents.setdefault(root.at.buffer, set()).add(inner)
        channels = local_shape(self.graph.shape(name)).c
        return root.channels(first, first + channels, self.machine)

    def define(self, name: str, tensor: Tensor) -> None:
        """Records where a tensor of the graph is in local memory; an operand of a Concat is copied into it."""
        home = self.home(name)
        if home is not None and home != tensor:
            self.emit(moves.copy(home, tensor, self.machine))
            tensor = home
        self._local[name] = tensor
        self._residents.setdefault(tensor.at.buffer, set()).add(name)
        inner = name
        while inner in self._homes:
            inner = self._homes[inner][0]
            self._residents[tensor.at.buffer].add(inner)
        if name in self._joined:
            self._views[name] = self.part(name, *self._joined[name])
            self.store(self._views[name], tensor)

    def join(self, name: str, whole: str, axis: int, first: int) -> None:
        """Marks a tensor as part of a Concat in system memory, to be stored there when it is computed."""
        self._joined[name] = (whole, axis, first)

    def is_joined(self, name: str) -> bool:
        """Whether the tensor is stored in its Concat when it is computed."""
        return name in self._joined

    def concat_view(self, name: str) -> SystemView:
        """The view of a Concat in system memory."""
        if name not in self._wholes:
            self._wholes[name] = self.destination(name)
        return self._wholes[name]

    def part(self, name: str, whole: str, axis: int, first: int) -> SystemView:
        """The view of an operand's part of a Concat in system memory."""
        return expect_view(self.concat_view(whole).slice_axis(axis, first, self.graph.shape(name)[axis]))

    def define_view(self, name: str, view: SystemView) -> None:
        """Records where a tensor of the graph is in system memory."""
        self._views[name] = view

    def is_local(self, name: str) -> bool:
        """Whether the tensor is in local memory now."""
        return name in self._local

    def may_overwrite(self, tensor: Tensor) -> bool:
        """Whether nothing after the current node reads the content of the tensor's buffer."""
        at = self._position
        residents = self._residents.get(tensor.at.buffer, set())
        return bool(residents) and all(self._last.get(name, -1) <= at for name in residents)

    def free_bytes(self, *tensors: Tensor) -> int:
        """Free bytes per NPU beside these tensors and those that the current or a later node reads."""
        kept = (name for name in self._local if self._last[name] >= self._position and not self.is_joined(name))
        alive = {self._local[name].at.buffer for name in kept}
        return self.machine.local_bytes - sum(
            self.buffers[name] for name in alive.union(each.at.buffer for each in tensors)
        )

    def place(self, name: str, parent: str, channel: int) -> None:
        """Assigns a tensor to a channel Concat, starting at a channel."""
        self._homes.setdefault(name, (parent, channel))

    def refusal(self, reason: str) -> UnsupportedOperator:
        """The error (E202) for a form of the current node that no calls implement."""
        where = self.node.source
        return UnsupportedOperator("E202", reason, node=where, op=self.node.op, remedy=SEE_OPERATORS)

    # the whole

    def run(self, rules: Mapping[str, Rule], skip: frozenset[str]) -> Lowered:
        """Applies the rules in order. skip: outputs of nodes that are computed with their reader."""
        for position, node in enumerate(self.graph.nodes):
            if node.output in skip:
                continue
            self.node, self._position = node, position
            within = [self.graph.producers[name] for name in node.inputs if name in skip]
            self.sources = tuple(dict.fromkeys(name for each in (*within, node) for name in _sources(each)))
            rules[node.op](self, node)
        for name, region in self.outputs.items():
            view = self._views.get(name)
            if view is None or view.region != region:
                self._deliver(name, view)
        return Lowered(
            tuple(self.steps), self.loads, self.buffers, self.weights.content, self.scratch,
            self.regions, self.outputs, self._local,
        )  # fmt: skip

    def _deliver(self, name: str, view: SystemView | None) -> None:
        to = SystemView.continuous(self.outputs[name], 0, self.graph.shape(name))
        if view is None:
            self.store(to, self._local[name])
        else:
            self.emit(*moves.copies(to, view))


SEE_OPERATORS = "npuc operators --target bm1684"


def _sources(node: Node) -> tuple[str, ...]:
    return node.sources or ((node.name,) if node.name else ())


def _last_readers(graph: Graph) -> dict[str, float]:
    """The position of the last node that reads each tensor: -1 if none does, infinity for outputs."""
    last: dict[str, float] = dict.fromkeys(graph.tensors, -1)
    for position, node in enumerate(graph.nodes):
        last |= {name: position for name in node.inputs if name}
    return last | dict.fromkeys(graph.outputs, inf)
