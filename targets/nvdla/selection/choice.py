"""The weight form of each convolution: the one with the fewest modelled cycles, then the fewest bytes.

Every possible form is selected and costed as if the convolution ran alone. A tensor that the host loads can be an
image if only convolutions read it; all of them then read the image.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops.attributes import GROUP
from npuc.ops.movement import MOVEMENT
from npuc.ops.windows import window_of
from npuc.targets.nvdla.arithmetic.integer import WINOGRAD, kernel_extents, operands
from npuc.targets.nvdla.formats.pixels import FORMATS, PixelFormat, misreads
from npuc.targets.nvdla.formats.weights import DIRECT, KERNEL, POST_EXTENSIONS, TILE, WeightForm
from npuc.targets.nvdla.machine.parameters import MOST_KERNEL, Machine
from npuc.targets.nvdla.operations import pingpong, timing
from npuc.targets.nvdla.operations.surfaces import map_shape, tensor_precision
from npuc.targets.nvdla.operations.tiling import Geometry
from npuc.targets.nvdla.selection.context import Constants, Context, PlannedLayer, geometry, needs_batches
from npuc.targets.nvdla.selection.convolution import fits, may_compress, select_convolutions

PIXELS: Mapping[str, tuple[str, ...]] = {
    "int8": ("T_R8", "T_Y8___V8U8_N444", "T_A8B8G8R8"),
    "int16": ("T_R16_I", "T_A16B16G16R16"),
    "fp16": ("T_R16_F", "T_A16B16G16R16_F"),
}
"""Image formats by precision: rows of table 29; bytes become any precision. Two planes have three channels."""


Forms = Callable[[Context, Node], Iterator[WeightForm]]
"""Yields the possible forms of a convolution, the simplest first."""


@frozen
class Alternative:
    """A possible form of a convolution and its cost when run alone."""

    form: WeightForm
    cycles: int
    bytes: int
    """Moved between memory and NVDLA."""


@frozen
class FormChoice:
    """The form chosen for a convolution, and all possible ones."""

    form: WeightForm
    alternatives: tuple[Alternative, ...]


@frozen
class Choices:
    """The choice for every convolution by the name of its result, and the format of every image by tensor name."""

    convolutions: Mapping[str, FormChoice]
    images: Mapping[str, str]


def choose(
    context: Context,
    nodes: Sequence[Node],
    loaded: Sequence[str],
    raw: Collection[str],
    asked: str,
    *,
    inexact: bool = False,
) -> Choices:
    """The forms of all convolutions among nodes, given the placement of tensors as feature cubes.

    loaded: tensors that the host loads; raw: those that are bytes if they are images. asked: one of
    weight_form.asked_forms. inexact: Winograd may be chosen for weights that are not transformed yet, which
    changes results.
    """
    convolutions = [each for each in nodes if each.op == "NvConv"]
    forms = partial(_feature_forms, inexact=inexact, strided=asked == "winograd")
    found = {each.output: _alternatives(context, each, forms) for each in convolutions}
    chosen = {each.output: _cheapest(_possible_forms(each, found[each.output]), asked) for each in convolutions}
    images: dict[str, str] = {}
    for name in loaded if asked != "direct" else ():
        for pixels in _pixels(context.graph, name, raw=name in raw):
            if asked == "one-plane" and len(FORMATS[pixels].planes) > 1:
                continue
            trial = _with_image(context, name, pixels)
            others = {
                each.output: _alternatives(trial, each, _image_forms) for each in context.graph.readers[name]
            }
            if not all(others.values()):
                continue
            as_image = {each: _cheapest(alternatives, asked) for each, alternatives in others.items()}
            if _total(as_image.values()) < _total(chosen[each] for each in others):
                images[name] = pixels
                chosen |= as_image
            found |= {each: (*found[each], *alternatives) for each, alternatives in others.items()}
    return Choices({name: FormChoice(chosen[name].form, found[name]) for name in found}, images)


def _possible_forms(node: Node, alternatives: Sequence[Alternative]) -> Sequence[Alternative]:
    """The forms that the weights allow: weights that are transformed already can only be Winograd's."""
    return [each for each in alternatives if each.form.kind == "winograd" or not WINOGRAD(node)]


def _cheapest(alternatives: Sequence[Alternative], asked: str) -> Alternative:
    """The cheapest of the forms asked for, or of the uncompressed ones if none of those is possible."""
    plain = [each for each in alternatives if not each.form.compressed]
    wanted = {
        "auto": alternatives,
        "one-plane": alternatives,
        "direct": [each for each in alternatives if each.form == DIRECT],
        "sparse": [each for each in alternatives if each.form.compressed],
        "winograd": [each for each in plain if each.form.kind == "winograd"],
    }[asked]
    return min(wanted or plain, key=_cost)


def _cost(alternative: Alternative) -> tuple[int, int]:
    """The sort key of alternatives: cycles, then bytes."""
    return alternative.cycles, alternative.bytes


def _total(chosen: Iterable[Alternative]) -> tuple[int, int]:
    """The summed cost of several convolutions."""
    cycles, bytes_ = zip(*map(_cost, chosen), strict=True)
    return sum(cycles), sum(bytes_)


def _alternatives(context: Context, node: Node, forms: Forms) -> tuple[Alternative, ...]:
    """The cost of a convolution in each of these forms that fits the CBUF; nothing is stored."""
    found: list[Alternative] = []
    for form in forms(context, node):
        if form == DIRECT or fits(context, node, form):
            trial = replace(context, constants=Constants(context.machine, 0, counted=True))
            operations = list(select_convolutions(trial, PlannedLayer(node, form)))
            end = pingpong.sequence_clocks(operations, context.machine)
            moved = sum(timing.moved_bytes(each, context.machine) for each in operations)
            found.append(Alternative(form, ceil(end), moved))
    return tuple(found)


def _feature_forms(context: Context, node: Node, *, inexact: bool, strided: bool) -> Iterator[WeightForm]:
    """The forms for an input stored as a feature cube.

    strided: Winograd may be used for strided convolutions, whose channel extension has not been run on RTL.
    """
    plain = strided or max(window_of(node, kernel_extents(node, context.graph.shape(node.inputs[1]))).strides) == 1
    allowed = WINOGRAD(node) or (inexact and plain)
    kinds = ["direct", *(["winograd"] if allowed and _as_winograd(context, node) else [])]
    for compressed in (False, True) if may_compress(context, node) else (False,):
        yield from (WeightForm(kind, compressed=compressed) for kind in kinds)


def _as_winograd(context: Context, node: Node) -> bool:
    """Whether Winograd can compute a convolution: its kernel must be 3x3 after channel extension.

    A result of partial tiles is written as whole ones: its buffer must have room for them, and the convolution may
    read no operand per element.
    """
    graph = context.graph
    kernel = kernel_extents(node, graph.shape(node.inputs[1]))
    window = window_of(node, kernel)
    extended = [-(-size // stride) for size, stride in zip(kernel, window.strides, strict=True)]
    whole = all(extent % TILE == 0 for extent in graph.shape(node.output)[2:])
    return (
        context.machine.winograd
        and GROUP(node) == 1
        and max(window.dilations) == 1
        and max(extended) == KERNEL
        and window.begins[0] < kernel[0]  # else a tile might lie above the map
        and (whole or _has_own_maps(graph, node))
    )


def _has_own_maps(graph: Graph, node: Node) -> bool:
    """Whether a convolution reads no operand per element, and its result is not part of another tensor.

    A one-pixel result must not serve as an operand per channel either, which SDP reads without gaps.
    """
    per_element = (name for name in operands(node)[:4] if name and graph.shape(name)[-2:] != (1, 1))
    readers, pixel = graph.readers[node.output], graph.shape(node.output)[2:] == (1, 1)
    operand = pixel and any(each.op in MOVEMENT or node.output in each.inputs[1:] for each in readers)
    inside = any(each.op in ("Concat", "Interleave") for each in readers)
    return not any(per_element) and not operand and not inside


def _image_forms(context: Context, node: Node) -> Iterator[WeightForm]:
    """The forms for an image input: post-extension joins as many lines as fit a block of channels."""
    form = FORMATS[context.placed[node.inputs[0]].view.buffer.pixels]
    shape = geometry(context.graph, node, form.channels)
    zeros = _columns_of_zeros(context.machine, form, shape)
    if zeros is None:
        return
    for lines in POST_EXTENSIONS:
        block = max(shape.kernel_width + zeros, shape.stride_x) * form.channels * lines
        if lines == 1 or (lines <= shape.kernel_height and block <= context.machine.atomic_c):
            for compressed in (False, True) if may_compress(context, node) else (False,):
                yield WeightForm("image", lines, compressed, zeros, len(form.planes))


def _columns_of_zeros(machine: Machine, form: PixelFormat, shape: Geometry) -> int | None:
    """The fewest columns of zeros behind an image's kernel with which CSC reads it right and CDMA can pad it.

    None if there are none.
    """
    for zeros in range(MOST_KERNEL - shape.kernel_width + 1):
        wider = replace(shape, form=WeightForm("image", zeros=zeros))
        if not form.pads(machine.atom_bytes, shape.width, shape.left, wider.pad_right):
            return None
        if not misreads(machine, wider.kernel_shape[0], shape.out_width):
            return zeros
    return None


def _pixels(graph: Graph, name: str, *, raw: bool) -> Sequence[str]:
    """The image formats that a tensor can have; none if it cannot be an image."""
    readers = graph.readers[name]
    dense = all(
        each.op == "NvConv"
        and each.inputs.count(name) == 1
        and each.inputs[0] == name
        and GROUP(each) == 1
        and not WINOGRAD(each)
        and not needs_batches(each)
        and max(window_of(each, graph.shape(each.inputs[1])[2:]).dilations) == 1
        for each in readers
    )
    channels, _, _ = map_shape(graph.shape(name))
    one, *several = PIXELS["int8" if raw else tensor_precision(graph, name)]
    possible = (each for each in ([one] if channels == 1 else several) if channels <= FORMATS[each].channels)
    return list(possible) if readers and dense else ()


def _with_image(context: Context, name: str, pixels: str) -> Context:
    """The context with a tensor placed as an image."""
    held = context.placed[name]
    return replace(context, placed={**context.placed, name: replace(held, view=held.view.as_image(pixels))})
