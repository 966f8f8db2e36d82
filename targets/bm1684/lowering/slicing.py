"""Rewrites graphs whose maps exceed local memory: into slices that fit, or a batch into its images.

A group is a run of layers with one result. It is computed slice by slice: some rows of the result, from the rows
of the group's inputs that they depend on (including the halo), with all intermediates in local memory.
Inputs and result of a group are in system memory, where a Concat joins the slices. The groups and their numbers of
slices are found by dynamic programming over the cycles of the timing model, which weighs recomputed rows against
bytes moved. A slice of a batch may be some of its images instead; those are then sliced by rows if need be.

Or each image of a batch gets a copy of the whole network, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf

from npuc.frozen import frozen
from npuc.ir import Graph, Node, TensorType
from npuc.ops.attributes import AXES, AXIS, GROUP, PERM, SCALES, SIDES, SIZES
from npuc.targets.bm1684.lowering.elementwise import BINARY
from npuc.targets.bm1684.lowering.functions import RECIPES
from npuc.targets.bm1684.lowering.slices import (
    IMAGES,
    ROWS,
    WINDOWS,
    Rows,
    divide_rows,
    factor,
    is_sliceable,
    needed_rows,
    operands,
    shape_of,
    slice_nodes,
    window_at,
)
from npuc.targets.bm1684.machine import timing
from npuc.targets.bm1684.machine.local_memory import Dim4, okk_128_byte_aligned_stride_for_32bit
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.quantisation.operators import LOOKUP, PRODUCT, SUM
from npuc.text.escaping import Names

ELEMENT = 4
SHARE = 5 / 8
"""The share of local memory for maps; the rest is for weights that are being loaded."""
LONGEST = 24
"""The most layers in a group."""
ROW_BY_ROW = {*RECIPES, *BINARY, "BatchNormalization", "Identity", "IntRelu", SUM, PRODUCT, LOOKUP}
"""Operators for which a row of the result depends only on the same row of the operands."""
WORK = {"IntRelu": 2, SUM: 2, LOOKUP: 2, PRODUCT: 4}
"""Words of the firmware's intermediate for a word of the result, of as many channels as there are NPUs."""


def fit(graph: Graph, machine: Machine) -> Graph:
    """The graph with its large layers in slices; the same graph if there are none, or slicing does not help."""
    sliced_graph, _, by_images = slice_layers(graph, machine)
    return fit(sliced_graph, machine) if by_images else sliced_graph


def slice_layers(graph: Graph, machine: Machine) -> tuple[Graph, dict[str, str], bool]:
    """The same once, the tensor that each slice is one of, and whether some slices are images of a batch."""
    nodes, tensors, groups = list[Node](), dict(graph.tensors), list(_divide(graph, machine))
    fresh, wholes = graph.names(), dict[str, str]()
    for group in groups:
        if group.slices == 1:
            nodes += graph.nodes[group.first : group.behind]
            continue
        run = graph.nodes[group.first : group.behind]
        for node, types, whole in slice_nodes(
            graph, run, _results(graph, run)[0], group.axis, group.slices, fresh
        ):
            nodes.append(node)
            tensors |= types
            wholes[node.output] = whole
    if len(nodes) == len(graph.nodes):
        return graph, {}, False
    rewritten = replace(graph, nodes=tuple(nodes), tensors=tensors)
    return rewritten, wholes, any(group.axis == IMAGES for group in groups)


@frozen
class _Slices:
    """Nodes first..behind - 1, the axis along which their result is sliced, and the number of slices."""

    first: int
    behind: int
    slices: int
    cost: float
    axis: int = ROWS


def _divide(graph: Graph, machine: Machine) -> Iterator[_Slices]:
    """All nodes in groups; only runs of sliceable nodes that contain a large one are searched."""
    first = 0
    while first < len(graph.nodes):
        behind = first
        while behind < len(graph.nodes) and _is_sliceable(graph, graph.nodes[behind]):
            behind += 1
        if all(_fits_whole(graph, node, machine) for node in graph.nodes[first:behind]):
            behind = max(behind, first + 1)
            yield _Slices(first, behind, 1, 0.0)
        else:
            yield from _groups(graph, first, behind, machine)
        first = behind


def _groups(graph: Graph, first: int, behind: int, machine: Machine) -> list[_Slices]:
    """The cheapest division of a run into groups; best[i]: the cost of nodes i and later, and the first group."""
    best = {behind: (0.0, _Slices(behind, behind, 1, 0.0))}
    for start in reversed(range(first, behind)):
        best[start] = (inf, _Slices(start, start + 1, 1, inf))
        for end in range(start + 1, min(behind, start + LONGEST) + 1):
            group = _cheapest(graph, start, end, machine)
            if group is not None and group.cost + best[end][0] < best[start][0]:
                best[start] = (group.cost + best[end][0], group)
    found, at = list[_Slices](), first
    while at < behind:
        found.append(best[at][1])
        at = found[-1].behind
    return found


def _cheapest(graph: Graph, first: int, behind: int, machine: Machine) -> _Slices | None:
    """The cheapest group of these nodes, with the fewest slices that fit; None if it has no single result."""
    nodes = graph.nodes[first:behind]
    if len(nodes) == 1 and _fits_whole(graph, nodes[0], machine):
        return _Slices(
            first, behind, 1, _Way(graph, machine, nodes, nodes[0].output).price(_all_rows(graph, nodes[0]))
        )
    results = _results(graph, nodes)
    if len(results) != 1:
        return None
    ways = [_Way(graph, machine, nodes, results[0], axis) for axis in _axes(graph, nodes, results[0])]
    counts = {way.axis: way.fewest_slices() for way in ways}
    if all(slices is None for slices in counts.values()):
        counts = {way.axis: way.extent for way in ways if way.axis == IMAGES}
    groups = (
        _Slices(first, behind, slices, way.cost(slices), way.axis)
        for way in ways
        if (slices := counts.get(way.axis)) is not None and slices > 1
    )
    return min(groups, key=lambda group: group.cost, default=None)


def _axes(graph: Graph, nodes: tuple[Node, ...], result: str) -> list[int]:
    """The axes along which nodes can be sliced: rows, and the batch if every map has all its images.

    Words of four images are not cut.
    """
    images = graph.shape(result)[0] if graph.tensors[result].dtype == "float32" else 1
    names = {name for node in nodes for name in operands(graph, node)}
    constants = {name for node in nodes if node.op in BINARY for name in node.inputs if name in graph.constants}
    alike = images > 1 and all(graph.shape(name)[0] == images for name in names)
    alike = alike and all(len(graph.shape(name)) < 4 or graph.shape(name)[0] == 1 for name in constants)
    return [ROWS, IMAGES] if alike else [ROWS]


@frozen
class _Way:
    """Nodes with one result, in slices along an axis of it. part: rows or images of every tensor in a slice."""

    graph: Graph
    machine: Machine
    nodes: tuple[Node, ...]
    result: str
    axis: int = ROWS

    @property
    def extent(self) -> int:
        """The most slices."""
        return self.graph.shape(self.result)[self.axis]

    def cost(self, slices: int) -> float:
        """Cycles of a group: those of the busier engine, plus those of the other one for one slice."""
        parts = [self.part(rows) for rows in divide_rows(self.extent, slices)]
        computed, moved = sum(map(self.price, parts)), sum(map(self.move_cycles, parts))
        return max(computed, moved) + min(computed, moved) / slices

    def fewest_slices(self) -> int | None:
        """The smallest number of slices whose middle one, with halo on both sides, fits; None if none does."""
        low, high = 1, self.extent
        if not self.fits(high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits(middle) else (middle + 1, high)
        return low

    def fits(self, slices: int) -> bool:
        """Whether the middle slice fits."""
        part = self.part(divide_rows(self.extent, slices)[slices // 2])
        return self.peak(part) <= SHARE * self.machine.local_bytes

    def part(self, rows: Rows) -> Mapping[str, Rows]:
        """What a slice of the result needs."""
        return needed_rows(self.graph, self.nodes, self.result, rows, self.axis)

    def shape(self, name: str, part: Mapping[str, Rows]) -> tuple[int, ...]:
        """A tensor's shape in a slice."""
        return shape_of(self.graph, name, part, self.axis)

    def peak(self, part: Mapping[str, Rows]) -> int:
        """The most bytes per NPU that a slice's tensors take at a time."""
        met = [(node, operands(self.graph, node)) for node in self.nodes]
        last = {name: at for at, (node, names) in enumerate(met) for name in (*names, node.output)}
        live, peak = dict[str, int](), 0
        for at, (node, names) in enumerate(met):
            for name in (*names, node.output):
                live[name] = _bytes(self.shape(name, part), self.machine)
            first = self.shape(names[0], part) if names else ()
            peak = max(peak, sum(live.values()) + _intermediate_bytes(self.graph, node, first, self.machine))
            live = {name: size for name, size in live.items() if last[name] > at}
        return peak

    def price(self, part: Mapping[str, Rows]) -> float:
        """BDC cycles of a slice."""
        shapes = ((node, Dim4(*self.shape(node.output, part))) for node in self.nodes)
        return sum(_node_price(self.graph, node, out, self.machine) for node, out in shapes)

    def move_cycles(self, part: Mapping[str, Rows]) -> float:
        """GDMA cycles of a slice: its inputs, weights and result."""
        inside, constants = {node.output for node in self.nodes}, self.graph.constants
        read = dict.fromkeys(name for node in self.nodes for name in operands(self.graph, node))
        names = [*(name for name in read if name not in inside), self.result]
        elements = sum(TensorType(self.shape(name, part)).size for name in names)
        weights = (name for node in self.nodes for name in node.inputs if name in constants)
        elements += sum(self.graph.tensors[name].size for name in weights)
        return timing.READ_START * len(names) + ELEMENT * elements / self.machine.dram_bytes_per_cycle


def _all_rows(graph: Graph, node: Node) -> dict[str, Rows]:
    """All rows of a node's tensors."""
    return {name: (0, graph.shape(name)[2]) for name in (*operands(graph, node), node.output)}


# what can be sliced


def _is_sliceable(graph: Graph, node: Node) -> bool:
    """Whether rows of the node's result are a function of rows of its operands."""
    if len(node.outputs) != 1 or len(graph.shape(node.output)) != 4:
        return False
    if node.op in WINDOWS:
        window = window_at(graph, node)
        ragged = node.op == "AveragePool" and window.ceil_mode
        inside = max(window.begins[0], window.ends[0]) < window.reach[0]  # else a slice may be padding only
        return len(graph.shape(node.inputs[0])) == 4 and inside and not ragged
    if node.op in ("ConvTranspose", "Resize"):
        return len(graph.shape(node.inputs[0])) == 4 and is_sliceable(graph, node)
    if node.op == "Concat":
        return AXIS(node) in (1, -3) and not any(name in graph.constants for name in node.inputs)
    return node.op in ROW_BY_ROW and all(_whole_or_rows(graph, node, name) for name in node.inputs if name)


def _whole_or_rows(graph: Graph, node: Node, name: str) -> bool:
    """Whether an operand has the result's number of rows, or is a constant with the same value for all rows."""
    shape = graph.shape(name)
    if name in graph.constants:
        return len(shape) < 2 or shape[-2] == 1 or node.op == "BatchNormalization"
    return len(shape) == 4 and shape[2] == graph.shape(node.output)[2]


def _fits_whole(graph: Graph, node: Node, machine: Machine) -> bool:
    names = dict.fromkeys(name for name in (*node.inputs, *node.outputs) if name and name not in graph.constants)
    sizes = (_bytes(graph.shape(name), machine) for name in names if len(graph.shape(name)) == 4)
    return (
        sum(sizes) + _intermediate_bytes(graph, node, graph.shape(node.inputs[0]), machine)
        <= SHARE * machine.local_bytes
    )


def _intermediate_bytes(graph: Graph, node: Node, shape: tuple[int, ...], machine: Machine) -> int:
    """Bytes of a node's intermediate for an operand of this shape: an image with zeros, resized rows, products."""
    if node.op in WORK:
        return WORK[node.op] * _bytes((*shape[:1], min(shape[1], machine.npus), *shape[2:]), machine)
    if node.op == "Resize":
        return _bytes((*shape[:2], shape[2] * factor(graph, node), shape[3]), machine)
    if node.op != "ConvTranspose":
        return 0
    strides = window_at(graph, node).strides
    spread = [(extent - 1) * stride + 1 for extent, stride in zip(shape[2:], strides, strict=True)]
    return _bytes((*shape[:2], *spread), machine)


def _results(graph: Graph, nodes: tuple[Node, ...]) -> list[str]:
    """The tensors of a group that are outputs or are read outside it."""
    inside = {node.output for node in nodes}
    return [
        node.output
        for node in nodes
        if node.output in graph.outputs
        or any(reader.output not in inside for reader in graph.readers[node.output])
    ]


# sizes and prices


def _bytes(shape: tuple[int, ...], machine: Machine) -> int:
    extents = Dim4(*shape)
    return ELEMENT * extents.n * okk_128_byte_aligned_stride_for_32bit(0, extents, machine).n


def _node_price(graph: Graph, node: Node, out: Dim4, machine: Machine) -> float:
    groups = timing.groups(out, 0, machine)
    if node.op not in (*WINDOWS, "ConvTranspose"):
        return 2 * groups
    window = window_at(graph, node)
    (kernel_h, kernel_w), stride_w = window.kernel, window.strides[1]
    if "Conv" in node.op and GROUP(node) == 1:
        channels, stride_w = graph.shape(node.inputs[0])[1], stride_w if node.op == "Conv" else 1
        return timing.conv2d(groups, channels, kernel_h, kernel_w, stride_w, len(node.inputs) > 2, machine)
    return timing.depthwise2d(groups, kernel_h, kernel_w, stride_w, machine)


# a batch, one image after the other

MOST_NODES = 2000
"""The most nodes of all images together; beyond, loading the calls is no faster than computing."""
SINGLE = {
    *RECIPES, "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool",
    "BatchNormalization", "InstanceNormalization", "PRelu", "Identity", "DepthToSpace", "SpaceToDepth", "LRN",
}  # fmt: skip
"""Operators that compute each image of their first operand separately, all other operands being constant."""


def split_images(graph: Graph) -> Graph | None:
    """The graph with a copy of the network per image; None for one image, too many nodes, or dependent images."""
    batches = {graph.shape(name)[:1] for name in graph.inputs}
    images = next(iter(batches))[0] if len(batches) == 1 and () not in batches else 1
    if images < 2 or images * len(graph.nodes) > MOST_NODES:
        return None
    if not all(_is_separable(graph, node, images) for node in graph.nodes):
        return None
    nodes, tensors = list[Node](), dict(graph.tensors)
    fresh = graph.names()
    for image in range(images):
        for node, types in _one(graph, image, fresh):
            nodes.append(node)
            tensors |= types
    nodes += [
        Node("Concat", tuple(_name(fresh, name, at) for at in range(images)), (name,), {"axis": 0}, name)
        for name in graph.outputs
    ]
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def _is_separable(graph: Graph, node: Node, images: int) -> bool:
    """Whether each image of the result depends only on the same image of the computed operands."""
    computed = [name for name in node.inputs if name and name not in graph.constants]
    if not computed or any(graph.shape(name)[:1] != (images,) for name in (*computed, *node.outputs) if name):
        return False
    shape = graph.shape(node.inputs[0])
    match node.op:
        case "Concat":
            return AXIS(node) != 0 and len(computed) == len(node.inputs)
        case "Split" | "Softmax":
            return AXIS(node) != 0
        case "Slice" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceSum":
            return all(AXES(node))
        case "Pad":
            return not (SIDES(node)[0] or SIDES(node)[len(shape)]) and computed == [node.inputs[0]]
        case "Resize":
            return SCALES(node)[0] == 1
        case "Reshape":
            return True
        case "Transpose":
            return PERM(node)[0] == 0
        case "Gemm":
            return computed == [node.inputs[0]]
        case "MatMul":
            right = node.inputs[1]
            return node.inputs[0] in computed and len(graph.shape(right)) == (
                len(shape) if right in computed else 2
            )
        case op if op in BINARY:
            return all(_for_all(graph, node, name) for name in node.inputs[:2])
        case op:
            return op in SINGLE and computed == [node.inputs[0]]


def _for_all(graph: Graph, node: Node, name: str) -> bool:
    """Whether an operand is computed, or a constant that is the same for all images."""
    shape = graph.shape(name)
    rank = len(graph.shape(node.output))
    return (len(shape) == rank and (name not in graph.constants or shape[0] == 1)) or (
        name in graph.constants and len(shape) < rank
    )


def _one(graph: Graph, image: int, fresh: Names) -> Iterator[tuple[Node, dict[str, TensorType]]]:
    """The nodes of one image, with the types of their outputs."""

    def name_of(name: str) -> str:
        return _name(fresh, name, image)

    for name in graph.inputs:
        attrs = {"axes": (0,), "starts": (image,), "ends": (image + 1,), "steps": (1,)}
        cut = name_of(name)
        yield Node("Slice", (name,), (cut,), attrs, cut), {cut: _type(graph, name)}
    for node in graph.nodes:
        inputs = tuple(name if not name or name in graph.constants else name_of(name) for name in node.inputs)
        outputs = tuple(name and name_of(name) for name in node.outputs)
        made = replace(node, inputs=inputs, outputs=outputs, name=outputs[0])
        if node.op == "Reshape":
            made = made.with_attrs(shape=_type(graph, node.output).shape)
        if node.op == "Resize":
            made = made.with_attrs(sizes=(1, *SIZES(node)[1:]))
        yield made, {name_of(name): _type(graph, name) for name in node.outputs if name}


def _name(fresh: Names, tensor: str, image: int) -> str:
    return fresh.of(f"{tensor}@images{image}:{image + 1}")


def _type(graph: Graph, name: str) -> TensorType:
    each = graph.tensors[name]
    return TensorType((1, *each.shape[1:]), each.dtype)
