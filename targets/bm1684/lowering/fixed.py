"""8-bit layers as calls of the firmware library: convolutions, pooling, sums.

The graph lowered here counts words: an 8-bit map (N, C, H, W) is stored in 4N mode, as a map of
(ceil(N / 4), C, H, W) 32-bit words whose bytes belong to four images. Layouts, moves, plans and operators that
only move elements are therefore those of fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops.attributes import AVERAGE, GROUP, KERNEL_SHAPE, RELU, VALUE
from npuc.ops.movement import MOVEMENT
from npuc.ops.windows import Window, window_of
from npuc.quantize.network.construction import Quantised
from npuc.targets.bm1684.lowering import first_convs, rearrangements, rules, slicing
from npuc.targets.bm1684.lowering.context import WEIGHTS, Lowering
from npuc.targets.bm1684.lowering.conv_calls import ConvForm, Image, block_diagonal, block_rows, in_rows, padding
from npuc.targets.bm1684.lowering.convolutions import single_rows, streams
from npuc.targets.bm1684.lowering.kernel import Call, Pair, SystemPlace, call
from npuc.targets.bm1684.lowering.tensors import ELEMENT, Lowered, Tensor
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.quantisation.operators import FACTORS, LOOKUP, PRODUCT, SHIFTS, SUM, UNSIGNED, ZEROS
from npuc.targets.bm1684.quantisation.steps import chip_bias

IMAGES = 4
"""Images in a word."""
LAYERS = ("IntConv", "IntRelu", "MaxPool", "Pad", SUM, PRODUCT, LOOKUP)
"""Operators with 8-bit calls."""


@frozen
class IntegerParts:
    """The integer graph in parts: the host's conversions before and after the chip, the chip's part in words."""

    before: tuple[Node, ...]
    words: Graph
    after: tuple[Node, ...]


def parts(graph: Graph) -> IntegerParts:
    """The parts of an integer graph whose 8-bit layers all run on the chip."""
    chip, after = list[Node](), list[Node]()
    behind: set[str] = set()
    for node in graph.nodes:
        integers = all(graph.tensors[name].dtype == "int8" for name in (node.inputs[0], node.output))
        if node.op in LAYERS or (node.op in MOVEMENT and integers):
            chip.append(node)
            behind.update(node.outputs)
        elif behind.intersection(node.inputs):
            after.append(node)
            behind.update(node.outputs)
    before = [node for node in graph.nodes if node not in chip and node not in after]
    made = {name for node in chip for name in node.outputs}
    read = {name for node in chip for name in node.inputs if name and name not in graph.constants}
    wanted = {name for node in after for name in node.inputs} | set(graph.outputs)
    inputs = tuple(name for name in graph.tensors if name in read - made)
    outputs = tuple(name for name in graph.tensors if name in made & wanted)
    types = {name: _in_words(each) if name in made | read else each for name, each in graph.tensors.items()}
    words = Graph(graph.name, tuple(chip), inputs, outputs, graph.constants, types, graph.operators)
    return IntegerParts(tuple(before), words, tuple(after))


def _in_words(each: TensorType) -> TensorType:
    images, *others = each.shape
    return TensorType((ceil_div(images, IMAGES), *others), each.dtype)


def slice_maps(quantised: Quantised, machine: Machine) -> Quantised:
    """The network with maps that exceed local memory in slices of rows; the same one if that does not help."""
    found = parts(quantised.graph)
    words, wholes, _ = slicing.slice_layers(found.words, machine)
    if words is found.words:
        return quantised
    graph, types, zeros = quantised.graph, dict(quantised.graph.tensors), dict(quantised.zeros)
    for name, whole in wholes.items():
        types.setdefault(name, TensorType((graph.shape(whole)[0], *words.shape(name)[1:]), "int8"))
        zeros[name] = zeros.get(whole, 0)
    nodes = (*found.before, *words.nodes, *found.after)
    return replace(quantised, graph=replace(graph, nodes=nodes, tensors=types), zeros=zeros)


def lower(words: Graph, quantised: Quantised, machine: Machine, *, inside: bool = True) -> Lowered:
    """The steps of a graph of words. inside: rows and columns are moved in local memory."""
    tables = _Tables.of(words, quantised.zeros)
    if tables.words.nbytes > machine.l2_bytes:
        raise DoesNotFit("E302", f"{len(tables.words)} tables", limit=f"{machine.l2_bytes} bytes of L2 memory")
    return rules.lower(
        words,
        machine,
        {
            **rules.RULES,
            "IntConv": partial(_conv, quantised),
            "MaxPool": partial(_max_pool, quantised),
            "Pad": partial(_pad, quantised.zeros),
            SUM: _sum,
            PRODUCT: _product,
            LOOKUP: partial(_lookup, quantised, tables),
            "IntRelu": partial(_relu, quantised.zeros),
        },
        inside=inside,
    )


Zeros = Mapping[str, int]
TABLE = 256
"""Entries of a table."""


@frozen
class _Tables:
    """The tables of a graph, (count, 256) words in the order of the bytes, and the number of each node's."""

    words: Array
    numbers: Mapping[str, int]

    @classmethod
    def of(cls, graph: Graph, zeros: Zeros) -> _Tables:
        found, numbers = dict[bytes, int](), dict[str, int]()
        for node in graph.nodes:
            if node.op == LOOKUP:
                table = _in_bytes(graph.constants[node.inputs[1]], *_ends(zeros, node))
                numbers[node.output] = found.setdefault(table.tobytes(), len(found))
        return cls(np.frombuffer(b"".join(found), "<i4").reshape(-1, TABLE), numbers)


def _in_bytes(table: Array, x_zero: int, y_zero: int) -> Array:
    """A table (256,) int8 from -128 on as the chip's bytes index it, and with its bytes as results."""
    entries = table.astype("<i4") - (y_zero if y_zero == UNSIGNED else 0)
    return entries if x_zero == UNSIGNED else np.roll(entries, TABLE // 2)


def _ends(zeros: Zeros, node: Node) -> tuple[int, int]:
    """The zero points of a node's first input and of its result."""
    return zeros.get(node.inputs[0], 0), zeros.get(node.output, 0)


def _images(quantised: Quantised, node: Node) -> int:
    return quantised.graph.shape(node.output)[0]


def _words(tensors: Sequence[Tensor], images: int, machine: Machine) -> Iterator[tuple[list[Tensor], int]]:
    """Each word of four images of some tensors, and how many it has."""
    for n in range(tensors[0].shape.n):
        yield [each.image(n, machine) for each in tensors], min(IMAGES, images - IMAGES * n)


@frozen
class _ConvLayer:
    """A convolution: weight bytes (O, columns), the chip's biases and the parameters of the call."""

    window: Window
    rows: Array
    bias: Array
    depthwise: bool
    shift: int
    in_signed: bool
    relu: bool
    upper: int
    images: int

    def channels(self, first: int, last: int) -> _ConvLayer:
        """The layer restricted to output channels [first, last)."""
        return replace(self, rows=self.rows[first:last], bias=self.bias[first:last])


def _pad(zeros: Zeros, lo: Lowering, node: Node) -> None:
    """Pad: the value's byte four times in a word, which moves as the float with the same bits."""
    byte = int(VALUE(node)) - (UNSIGNED if zeros.get(node.output) == UNSIGNED else 0)
    word = np.full(ELEMENT, byte, "<i8").astype("u1").view("<f4")
    pad = rearrangements.pad if lo.inside else rearrangements.pad_by_moves
    pad(lo, node.with_attrs(value=float(word[0])))


def _conv(quantised: Quantised, lo: Lowering, node: Node) -> None:
    """IntConv: dense or depthwise."""
    layer = _layer(quantised, lo, node, lo.graph.shape(node.inputs[0])[1])
    shape = Dim4(*lo.graph.shape(node.output))
    if not layer.depthwise and streams(lo, node) and lo.view(node.inputs[0]).slice_axis(3, 0, 1) is not None:
        out = lo.output(node.output, shape)
        _stream(lo, node, layer, out)
        lo.define(node.output, out)
        return
    x = lo.load(node.inputs[0])
    out = lo.output(node.output, shape, x.at.npu if layer.depthwise else None)
    free = lo.free_bytes(x, out)
    size = layer.rows.shape[1]
    whole = ceil_div(out.at.npu + shape.c, lo.machine.npus)
    together = shape.n > 1 and not any(_wraps(each, lo.machine) for each in (x, out))
    if together and whole * (size + ELEMENT) <= free:
        _piece(lo, layer, [(x, out, layer.images)], whole)
    else:
        words = list(_words((x, out), layer.images, lo.machine))
        for first, behind, rows in block_rows(lo, out, shape.c, size, free):
            targets = [
                (_part(lo, layer, a, first, behind), b.channels(first, behind, lo.machine), count)
                for (a, b), count in words
            ]
            _piece(lo, layer.channels(first, behind), targets, rows)
    lo.define(node.output, out)


def _stream(lo: Lowering, node: Node, layer: _ConvLayer, out: Tensor) -> None:
    """A dense convolution of a network input, strip by strip; all strips use the same weights."""
    form = ConvForm(layer.window, lo.graph.constants[node.inputs[1]], None, False)
    images: list[Image] = []
    ranges = list(single_rows(out, lo.machine.npus))
    for part, x, first, count in first_convs.strips(lo, node, form, out.shape):
        streamed = replace(layer, window=part.window, rows=_dense_rows(part.weights))
        pieces = [streamed.channels(*each) for each in ranges]
        targets = [_rows(out.channels(*each, lo.machine), first, count) for each in ranges]
        if not images:
            pairs = zip(pieces, targets, strict=True)
            images = [_weight_image(lo, piece, target.at.npu, 1) for piece, target in pairs]
        for piece, image, target in zip(pieces, images, targets, strict=True):
            lo.emit(_call(piece, image, x, target, layer.images))


def _rows(tensor: Tensor, first: int, count: int) -> Tensor:
    """Rows of a tensor of one block row."""
    return Tensor(tensor.shape._replace(h=count), tensor.at.shift(ELEMENT * first * tensor.shape.w))


def _wraps(tensor: Tensor, machine: Machine) -> bool:
    """Whether its channels take more block rows than from NPU 0: the firmware then computes four images only."""
    rows, channels = ceil_div(tensor.at.npu + tensor.shape.c, machine.npus), ceil_div(tensor.shape.c, machine.npus)
    return rows > channels


def _part(lo: Lowering, layer: _ConvLayer, x: Tensor, first: int, behind: int) -> Tensor:
    return x.channels(first, behind, lo.machine) if layer.depthwise else x


def _layer(quantised: Quantised, lo: Lowering, node: Node, channels: int) -> _ConvLayer:
    w, bias, shift = (lo.graph.constants[name] for name in node.inputs[1:4])
    ends = _ends(quantised.zeros, node)
    depthwise = GROUP(node) == channels == len(w) and (channels > 1 or bool(AVERAGE(node)))
    unsigned = ends[1] == UNSIGNED
    assert not (depthwise and RELU(node))
    assert len(set(shift.tolist())) == 1
    return _ConvLayer(
        window_of(node, w.shape[2:]),
        _depthwise_rows(w) if depthwise else _dense_rows(block_diagonal(w, GROUP(node))),
        chip_bias(w, bias, shift, *ends).astype("<i2"),
        depthwise,
        int(shift[0]),
        ends[0] != UNSIGNED,
        unsigned or bool(RELU(node)),
        127 if RELU(node) and not unsigned else 0,
        _images(quantised, node),
    )


def _depthwise_rows(w: Array) -> Array:
    """(C, kh * kw) bytes."""
    return w.reshape(len(w), -1).view(np.uint8)


def _dense_rows(w: Array) -> Array:
    """(O, kh * kw * input channels rounded up to 4) bytes."""
    outputs, inputs, kh, kw = w.shape
    rows = np.zeros((outputs, kh * kw, ceil_div(inputs, 4) * 4), np.int8)
    rows[:, :, :inputs] = w.reshape(outputs, inputs, -1).swapaxes(1, 2)
    return rows.reshape(outputs, -1).view(np.uint8)


def _piece(lo: Lowering, layer: _ConvLayer, words: Sequence[tuple[Tensor, Tensor, int]], rows: int) -> None:
    """Emits one step: weights in `rows` block rows, used for every word. words: input, output, images."""
    at, bias = _weight_image(lo, layer, words[0][1].at.npu, rows)
    lo.emit(*(_call(layer, (at, bias), *each) for each in words))


def _call(layer: _ConvLayer, image: Image, x: Tensor, out: Tensor, images: int) -> Call:
    w = layer.window
    places, window = (out.at, x.at, *image, x.shape), (*w.kernel, padding(w, x.shape, out.shape), Pair(*w.strides))
    numbers = (layer.shift, layer.in_signed, layer.relu)
    if layer.depthwise:
        return call("bdc_fix8b_depthwise2d", *places, *window, *numbers, images)
    return call("bdc_fix8b_conv2d", *places, out.shape.c, *window, Pair(*w.dilations), *numbers, layer.upper)


def _weight_image(lo: Lowering, layer: _ConvLayer, npu: int, rows: int) -> Image:
    """Places weights and, behind them, biases in block rows, starting at an NPU; returns both addresses."""
    start, npus = (npu, len(layer.rows)) if rows == 1 else (0, lo.machine.npus)
    grids = [
        in_rows(values, npu - start, rows, npus)
        for values in (layer.rows, np.ascontiguousarray(layer.bias[:, None]).view(np.uint8))
    ]
    words = [_whole_words(grid) for grid in grids]
    at = replace(lo.rows(f"{lo.node.output}/weights", np.concatenate(words, axis=1).view("<f4"), start), npu=npu)
    return at, at.shift(words[0].shape[1])


def _whole_words(values: Array) -> Array:
    return np.pad(values, ((0, 0), (0, -values.shape[1] % ELEMENT)))


def _max_pool(quantised: Quantised, lo: Lowering, node: Node) -> None:
    """MaxPool; tensors that wrap (see `_wraps`) one word of images at a time."""
    x = lo.load(node.inputs[0])
    shape = Dim4(*lo.graph.shape(node.output))
    out = lo.output(node.output, shape, x.at.npu)
    w = window_of(node, KERNEL_SHAPE(node))
    signed = quantised.zeros.get(node.output, 0) != UNSIGNED
    words = [([x, out], _images(quantised, node))]
    if any(_wraps(each, lo.machine) for each in (x, out)):
        words = list(_words((x, out), _images(quantised, node), lo.machine))
    pads = padding(w, x.shape, shape)

    def pool_call(source: Tensor, target: Tensor, images: int) -> Call:
        window = (*w.kernel, pads, Pair(*w.strides))
        return call("bdc_fix8b_max_pool2d", target.at, source.at, source.shape, *window, signed, images)

    lo.emit(*(pool_call(pair[0], pair[1], images) for pair, images in words))
    lo.define(node.output, out)


Calls = Callable[[Tensor, Sequence[Tensor], Tensor, int], Call]
"""The call on a result, its operands, a work tensor and the number of images."""


def _sum(lo: Lowering, node: Node) -> None:
    """The sum of operands, each multiplied and shifted to 16 bits; of a single operand, its rescaling."""
    *zeros, zero = ZEROS(node)
    factors, shifts, unsigned = FACTORS(node), SHIFTS(node), zero == UNSIGNED

    def sum_call(out: Tensor, operands: Sequence[Tensor], work: Tensor, _images: int) -> Call:
        signed = [z != UNSIGNED for z in zeros]
        places = (out.at, *(each.at for each in operands), work.at, out.shape)
        if len(operands) == 1:
            return call("bdc_fix8b_rescale", *places, factors[0], shifts[0], signed[0], unsigned)
        return call("bdc_fix8b_sum", *places, Pair(*factors), Pair(*shifts), *signed, unsigned)

    _by_block_rows(lo, node, node.inputs, sum_call)


def _relu(zeros: Zeros, lo: Lowering, node: Node) -> None:
    """IntRelu on signed elements: max(x, 0)."""
    assert zeros.get(node.output, 0) != UNSIGNED

    def rescale_call(out: Tensor, operands: Sequence[Tensor], work: Tensor, _images: int) -> Call:
        return call("bdc_fix8b_rescale", out.at, operands[0].at, work.at, out.shape, 1, 0, True, True)

    _by_block_rows(lo, node, node.inputs[:1], rescale_call)


def _product(lo: Lowering, node: Node) -> None:
    """The product of two operands, the second of which may have a single row or column."""
    (factor,), (shift,) = FACTORS(node), SHIFTS(node)
    ordered = sorted(zip(node.inputs, ZEROS(node), strict=False), key=lambda each: -prod(lo.graph.shape(each[0])))
    names, zeros = zip(*ordered, strict=True)
    signed, unsigned = [zero != UNSIGNED for zero in zeros], ZEROS(node)[-1] == UNSIGNED

    def product_call(out: Tensor, operands: Sequence[Tensor], work: Tensor, _images: int) -> Call:
        places = (out.at, *(each.at for each in operands), work.at, *(each.shape for each in operands))
        return call("bdc_fix8b_product", *places, factor, shift, *signed, unsigned)

    _by_block_rows(lo, node, names, product_call, 4)


def _lookup(quantised: Quantised, tables: _Tables, lo: Lowering, node: Node) -> None:
    """The entries of a table; the first such node has all tables loaded."""
    number = tables.numbers[node.output]
    if node.output == next(iter(tables.numbers)):
        lo.emit(
            call(
                "gdma_fix8b_tables",
                SystemPlace(WEIGHTS, lo.weights.image(tables.words.view("<f4"))),
                len(tables.words),
            )
        )

    def looked_up(out: Tensor, operands: Sequence[Tensor], work: Tensor, images: int) -> Call:
        return call("bdc_fix8b_lookup", out.at, operands[0].at, work.at, out.shape, number, images)

    _by_block_rows(lo, node, node.inputs[:1], looked_up, images=_images(quantised, node))


def _by_block_rows(
    lo: Lowering, node: Node, names: Sequence[str], computed: Calls, width: int = 2, images: int = 0
) -> None:
    """Emits a call per 64 channels of four images; all calls share a work tensor of `width` words for each.

    images: of the result, if its calls depend on it.
    """
    first = lo.load(names[0])
    operands = [first, *(lo.load(name, npu=first.at.npu) for name in names[1:])]
    out = lo.output(node.output, first.shape, first.at.npu)
    piece = first.shape._replace(n=width, c=min(first.shape.c, lo.machine.npus))
    wraps = ceil_div(first.at.npu + piece.c, lo.machine.npus)
    work = lo.new_tensor(f"{node.output}/products", piece._replace(c=wraps * lo.machine.npus), 0)

    def block_calls() -> Iterator[Call]:
        for word, count in _words((out, *operands), images, lo.machine):
            for start in range(0, first.shape.c, piece.c):
                behind = min(start + piece.c, first.shape.c)
                target, *sources = (each.channels(start, behind, lo.machine) for each in word)
                between = replace(work, at=replace(work.at, npu=target.at.npu))
                yield computed(target, sources, between, count)

    lo.emit(*block_calls())
    lo.define(node.output, out)
