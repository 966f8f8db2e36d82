"""Convolution and pooling: automatic padding becomes explicit."""

from __future__ import annotations

from collections.abc import Sequence

from npuc.errors import AMBIGUOUS, ModelError
from npuc.frontend.builder import Importer, NodeBuilder, OnnxNode, same

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def _per_axis(node: OnnxNode, key: str, rank: int, default: int = 1) -> tuple[int, ...]:
    """An attribute with one value per spatial dimension; the default is also the least value."""
    values: tuple[int, ...] = node.attrs.get(key) or (default,) * rank
    if len(values) != rank or min(values) < default:
        raise node.bad(f"{key} is {list(values)}", limit=f"{rank} values of at least {default}")
    return values


def _split_evenly(totals: Sequence[int], upper: bool) -> tuple[int, ...]:
    """Pads in ONNX order (all begins, then all ends); an odd element goes to the end if `upper`."""
    small = [total // 2 for total in totals]
    large = [total - total // 2 for total in totals]
    return (*small, *large) if upper else (*large, *small)


def _pads(node: OnnxNode, spatial: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    """The explicit pads. SAME_*: as many as make the output ceil(input / stride) long."""
    rank, kind = len(kernel), node.attrs["auto_pad"]
    if kind not in AUTO_PADS:
        raise node.bad(f"auto_pad is {kind!r}", limit=", ".join(AUTO_PADS))
    if kind == "NOTSET":
        return node.attrs.get("pads") or (0,) * (2 * rank)
    if kind == "VALID":
        return (0,) * (2 * rank)
    strides, dilations = _per_axis(node, "strides", rank), _per_axis(node, "dilations", rank)
    totals, undilated = (
        [
            max((-(-extent // s) - 1) * s + (k - 1) * d + 1 - extent, 0)
            for extent, k, s, d in zip(spatial, kernel, strides, each, strict=True)
        ]
        for each in (dilations, (1,) * rank)
    )
    pads, other = (_split_evenly(each, kind == "SAME_UPPER") for each in (totals, undilated))
    if node.op != "Conv" and pads != other:
        raise _padding_error(node, f"pads {list(pads)}", f"{list(other)}, without dilations,")
    return pads


def _padding_error(node: OnnxNode, of_onnx: str, of_onnxruntime: str) -> ModelError:
    """The error (AMBIGUOUS) for automatic padding that ONNX's text and onnxruntime read differently."""
    reason = f"{node.attrs['auto_pad']} means {of_onnx} by ONNX's text, and {of_onnxruntime} in onnxruntime"
    return ModelError(
        AMBIGUOUS, reason, node=node.source, op=node.op, remedy="write out pads in place of auto_pad"
    )


def _spatial(node: OnnxNode, to: NodeBuilder, kernel: Sequence[int]) -> tuple[int, ...]:
    """The input's spatial extents, which must be as many as the kernel's."""
    shape = to.shape(node.inputs[0])
    if len(shape) != len(kernel) + 2 or not kernel:
        reason = f"an input of shape {list(shape)} for a kernel of shape {list(kernel)}"
        raise node.bad(reason, tensor=node.inputs[0], limit="[N, C, ...] with one extent per kernel dimension")
    return shape[2:]


def _kernel(node: OnnxNode, to: NodeBuilder) -> tuple[int, ...]:
    """The weight's kernel; raises E105 if the attribute differs."""
    shape = to.shape(node.inputs[1])
    kernel: tuple[int, ...] = node.attrs.get("kernel_shape") or shape[2:]
    if kernel != shape[2:]:
        reason = f"kernel_shape is {list(kernel)}, the weight has shape {list(shape)}"
        raise node.bad(reason, tensor=node.inputs[1])
    return kernel


def _conv(node: OnnxNode, to: NodeBuilder) -> None:
    kernel = _kernel(node, to)
    spatial, rank = _spatial(node, to, kernel), len(kernel)
    to.emit(
        node,
        "Conv",
        node.inputs,
        strides=_per_axis(node, "strides", rank),
        pads=_pads(node, spatial, kernel),
        dilations=_per_axis(node, "dilations", rank),
        group=node.attrs["group"],
    )


def _conv_transpose(node: OnnxNode, to: NodeBuilder) -> None:
    """auto_pad and output_shape determine how much of the full result is cropped."""
    kernel = _kernel(node, to)
    spatial, rank = _spatial(node, to, kernel), len(kernel)
    strides, dilations = _per_axis(node, "strides", rank), _per_axis(node, "dilations", rank)
    extra = _per_axis(node, "output_padding", rank, 0)
    kind, wanted = node.attrs["auto_pad"], node.attrs.get("output_shape")
    if wanted:
        wanted = _per_axis(node, "output_shape", rank)
    elif kind in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(extent * s for extent, s in zip(spatial, strides, strict=True))
    if wanted:
        totals = [
            (extent - 1) * s + more + (k - 1) * d + 1 - size
            for extent, s, more, k, d, size in zip(spatial, strides, extra, kernel, dilations, wanted, strict=True)
        ]
        longer = tuple(more - min(total, 0) for more, total in zip(extra, totals, strict=True))
        if longer != extra and not node.attrs.get("output_shape"):
            found = [size + min(total, 0) for size, total in zip(wanted, totals, strict=True)]
            raise _padding_error(node, f"an output of {list(wanted)}", f"one of {found}")
        extra = longer
        pads = _split_evenly([max(total, 0) for total in totals], kind == "SAME_UPPER")
    else:
        pads = _pads(node, spatial, kernel)
    to.emit(
        node,
        "ConvTranspose",
        node.inputs,
        strides=strides,
        pads=pads,
        dilations=dilations,
        output_padding=extra,
        group=node.attrs["group"],
    )


def _pads_instead_of_ceil_mode(
    node: OnnxNode, spatial: Sequence[int], kernel: Sequence[int], pads: Sequence[int]
) -> tuple[int, ...]:
    """Pads that produce the windows of ceil_mode without it, if padding is not counted.

    A last window that would start after the input is left out (see Window.extents). If the kernel does not fit
    into the padded input at all, the pads stay, and the shape rule refuses the node.
    """
    rank = len(kernel)
    if len(pads) != 2 * rank:
        raise node.bad(f"pads is {list(pads)}", limit=f"{2 * rank} values")
    ends = list(pads[rank:])
    steps = zip(_per_axis(node, "strides", rank), _per_axis(node, "dilations", rank), strict=True)
    for axis, (stride, dilation) in enumerate(steps):
        reach, length = (kernel[axis] - 1) * dilation + 1, spatial[axis] + pads[axis]
        free = length + ends[axis] - reach
        if free >= 0:
            last = -(-free // stride) * stride
            last -= stride if last >= length else 0
            ends[axis] = max(last + reach - length, 0)
    return (*pads[:rank], *ends)


def _pool(node: OnnxNode, to: NodeBuilder) -> None:
    kernel: tuple[int, ...] = node.attrs["kernel_shape"]
    spatial, rank = _spatial(node, to, kernel), len(kernel)
    pads, ceil_mode = _pads(node, spatial, kernel), node.attrs.get("ceil_mode", 0)
    counted = {"count_include_pad": node.attrs["count_include_pad"]} if node.op == "AveragePool" else {}
    if ceil_mode and not any(counted.values()):
        explicit = _pads_instead_of_ceil_mode(node, spatial, kernel, pads)
        if all(end < extent for end, extent in zip(explicit[rank:], kernel, strict=True)):  # ONNX's limit
            pads, ceil_mode = explicit, 0
    to.emit(
        node,
        node.op,
        node.inputs,
        kernel_shape=kernel,
        strides=_per_axis(node, "strides", rank),
        pads=pads,
        dilations=_per_axis(node, "dilations", rank),
        ceil_mode=ceil_mode,
        **counted,
    )


IMPORTERS: dict[str, Importer] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "GlobalAveragePool": same(),
    "GlobalMaxPool": same(),
}
