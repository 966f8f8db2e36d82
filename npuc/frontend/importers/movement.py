"""Operators that move elements: side inputs become attributes, and several operators become Reshape."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx

from npuc.errors import ModelError
from npuc.frontend.builder import Importer, NodeBuilder, OnnxNode, broadcast
from npuc.ir import Array
from npuc.ops.attributes import TO


def _slice(node: OnnxNode, to: NodeBuilder) -> None:
    """Attributes before opset 10, inputs since. Bounds are clamped; an empty slice becomes 0:0.

    A backward slice that starts before the first element starts at it, where numpy's is empty.
    """
    shape = to.shape(node.inputs[0])
    if node.opset < 10:
        starts, ends, given, steps = node.attrs["starts"], node.attrs["ends"], node.attrs.get("axes"), None
    else:
        starts, ends = to.integers(node, 1), to.integers(node, 2)
        given = to.integers(node, 3) if node.has_input(3) else None
        steps = to.integers(node, 4) if node.has_input(4) else None
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
    value = to.scalar(node, 2) if node.has_input(2) else node.attrs.get("value", 0.0)
    if node.has_input(3):
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


def _reshape(node: OnnxNode, to: NodeBuilder) -> None:
    """0 keeps the extent of the same axis (unless allowzero), and one -1 is computed from the rest."""
    shape, wanted = to.shape(node.inputs[0]), list(to.integers(node, 1))
    for axis, extent in enumerate(wanted):
        if extent == 0 and not node.attrs.get("allowzero"):
            if axis >= len(shape):
                raise node.bad(f"0 at axis {axis} of {wanted}, the input has {len(shape)} dimensions")
            wanted[axis] = shape[axis]
    if wanted.count(-1) == 1:
        known, size = prod(extent for extent in wanted if extent != -1), prod(shape)
        if known == 0 or size % known:
            raise node.bad(f"{size} elements do not fit into {wanted}", tensor=node.inputs[0])
        wanted[wanted.index(-1)] = size // known
    to.emit(node, "Reshape", node.inputs[:1], shape=tuple(wanted))


def _flatten(node: OnnxNode, to: NodeBuilder) -> None:
    shape, axis = to.shape(node.inputs[0]), node.attrs["axis"]
    if not -len(shape) <= axis <= len(shape):
        raise node.bad(f"axis {axis} of a tensor with {len(shape)} dimensions")
    axis += len(shape) if axis < 0 else 0
    to.emit(node, "Reshape", node.inputs, shape=(prod(shape[:axis]), prod(shape[axis:])))


def _axes(node: OnnxNode, to: NodeBuilder) -> tuple[int, ...] | None:
    """The axes: an attribute, or an input since opset 13."""
    return to.integers(node, 1) if node.has_input(1) else node.attrs.get("axes")


def _squeeze(node: OnnxNode, to: NodeBuilder) -> None:
    shape, given = to.shape(node.inputs[0]), _axes(node, to)
    ones = tuple(axis for axis, extent in enumerate(shape) if extent == 1)
    if given == () and ones:  # onnxruntime removes these, ONNX nothing
        raise node.support_error(
            "an empty list of axes", "leave the axes out, or the node", limit="at least one axis"
        )
    axes = ones if given is None else node.axes(given, len(shape))
    if not set(axes) <= set(ones):
        raise node.bad(f"axes {list(axes)} of shape {list(shape)} are not all 1", tensor=node.inputs[0])
    kept = tuple(extent for axis, extent in enumerate(shape) if axis not in axes)
    to.emit(node, "Reshape", node.inputs[:1], shape=kept)


def _unsqueeze(node: OnnxNode, to: NodeBuilder) -> None:
    shape, given = to.shape(node.inputs[0]), _axes(node, to) or ()
    rank = len(shape) + len(given)
    axes, rest = node.axes(given, rank), iter(shape)
    to.emit(
        node, "Reshape", node.inputs[:1], shape=tuple(1 if axis in axes else next(rest) for axis in range(rank))
    )


def _transpose(node: OnnxNode, to: NodeBuilder) -> None:
    rank = len(to.shape(node.inputs[0]))
    to.emit(node, "Transpose", node.inputs, perm=node.attrs.get("perm") or tuple(reversed(range(rank))))


def _expand(node: OnnxNode, to: NodeBuilder) -> None:
    """Broadcasting is bidirectional; if nothing is repeated, it is a Reshape."""
    shape, wanted = to.shape(node.inputs[0]), to.integers(node, 1)
    result = broadcast(node, shape, wanted)
    to.emit(node, "Reshape" if prod(result) == prod(shape) else "Expand", node.inputs[:1], shape=result)


def _tile(node: OnnxNode, to: NodeBuilder) -> None:
    """An axis of extent 1 is inserted before every axis and expanded, then each pair is merged."""
    shape, repeats = to.shape(node.inputs[0]), to.integers(node, 1)
    if len(repeats) != len(shape) or any(count < 0 for count in repeats):
        raise node.bad(f"repeats {list(repeats)} of shape {list(shape)}", limit="one count per axis")
    pairs = list(zip(repeats, shape, strict=True))
    apart = to.emit(node, "Reshape", node.inputs[:1], (), shape=tuple(n for _, e in pairs for n in (1, e)))
    repeated = to.emit(node, "Expand", (apart,), (), shape=tuple(n for pair in pairs for n in pair))
    to.emit(node, "Reshape", (repeated,), shape=tuple(count * extent for count, extent in pairs))


def _concat(node: OnnxNode, to: NodeBuilder) -> None:
    axis = node.axis(node.attrs["axis"], len(to.shape(node.inputs[0])))
    if len(node.inputs) == 1:
        to.alias(node, node.inputs[0])
    else:
        to.emit(node, "Concat", node.inputs, axis=axis)


def _split(node: OnnxNode, to: NodeBuilder) -> None:
    """Sizes from the attribute, the input (opset 13) or equal parts; the last part may be smaller."""
    shape, parts = to.shape(node.inputs[0]), len(node.outputs)
    axis = node.axis(node.attrs["axis"], len(shape))
    sizes = to.integers(node, 1) if node.has_input(1) else node.attrs.get("split")
    if node.attrs.get("num_outputs") not in (None, parts):
        raise node.bad(f"num_outputs is {node.attrs['num_outputs']}, the node has {parts} outputs")
    if sizes is None:
        size = -(-shape[axis] // parts)
        sizes = (*(size,) * (parts - 1), shape[axis] - size * (parts - 1))
        if sizes[-1] != size and "num_outputs" not in node.attrs:
            raise node.bad(f"{shape[axis]} elements in {parts} equal parts", tensor=node.inputs[0])
    outputs = tuple(name or to.fresh(f"{node.name}/unused") for name in node.outputs)
    to.emit(node, "Split", node.inputs[:1], outputs, axis=axis, split=tuple(sizes))


def _gather(node: OnnxNode, to: NodeBuilder) -> None:
    shape = to.shape(node.inputs[0])
    axis = node.axis(node.attrs["axis"], len(shape))
    indices = to.constants.get(node.inputs[1])
    if indices is not None:
        _expect_indices(node, indices, shape[axis])
    to.emit(node, "Gather", node.inputs, axis=axis)


def _expect_indices(node: OnnxNode, indices: Array, extent: int) -> None:
    """Raises E105 for an index outside -extent..extent-1."""
    if indices.size and not -extent <= indices.min() <= indices.max() < extent:
        reason, limit = f"indices from {indices.min()} to {indices.max()}", f"-{extent}..{extent - 1}"
        raise node.constant_error(reason, node.inputs[1], limit)


def _gather_elements(node: OnnxNode, to: NodeBuilder) -> None:
    """Indices that vary only along the axis select slices, as in Gather; constants allow any indices."""
    x, shape, indices = node.inputs[0], to.shape(node.inputs[0]), to.value(node, 1)
    axis = node.axis(node.attrs["axis"], len(shape))
    kept = indices.shape[:axis] + shape[axis : axis + 1] + indices.shape[axis + 1 :]
    if indices.ndim != len(shape) or any(few > all_ for few, all_ in zip(kept, shape, strict=True)):
        raise node.bad(f"indices of shape {list(indices.shape)} for a tensor of shape {list(shape)}", tensor=x)
    _expect_indices(node, indices, shape[axis])
    if x in to.constants:
        corner = to.constants[x][tuple(map(slice, kept))]
        to.add_constant(node.outputs[0], np.take_along_axis(corner, indices.astype(np.int64) % shape[axis], axis))
        return
    line = np.moveaxis(indices, axis, 0).reshape(indices.shape[axis], -1)
    if not indices.size or (line != line[:, :1]).any():
        reason, limit = "the indices vary along several axes", "indices that are alike along all other axes"
        raise node.support_error(reason, "use Gather where it does", limit=limit)
    cut = [at for at, extent in enumerate(kept) if extent != shape[at]]
    if cut:
        ends, ones = tuple(kept[at] for at in cut), (1,) * len(cut)
        x = to.emit(node, "Slice", (x,), (), axes=tuple(cut), starts=(0,) * len(cut), ends=ends, steps=ones)
    to.emit(node, "Gather", (x, to.constant(node, "indices", line[:, 0])), axis=axis)


def _gather_nd(node: OnnxNode, to: NodeBuilder) -> None:
    """Constant indices along the first axes select slices of these as a single axis, as in Gather."""
    x, shape, indices = node.inputs[0], to.shape(node.inputs[0]), to.value(node, 1)
    if node.attrs.get("batch_dims"):
        raise node.support_error("indices of their own for each sample (batch_dims)", "use Gather", limit="0")
    depth = indices.shape[-1] if indices.ndim else 0
    extents = np.array(shape[:depth], np.int64)
    if not 0 < depth <= len(shape) or not extents.all() or ((indices < -extents) | (indices >= extents)).any():
        reason = f"indices {list(indices.shape)} into a tensor of shape {list(shape)}"
        raise node.bad(reason, tensor=node.inputs[1], limit="indices within its first axes")
    flat = np.ravel_multi_index(tuple(np.moveaxis(indices % extents, -1, 0)), tuple(extents))
    joined = to.emit(node, "Reshape", (x,), (), shape=(prod(shape[:depth]), *shape[depth:]))
    to.emit(node, "Gather", (joined, to.constant(node, "indices", np.asarray(flat, np.int64))), axis=0)


OF_CONSTANTS = ("float16", "bfloat16", "float64")


def _cast(node: OnnxNode, to: NodeBuilder) -> None:
    code = node.attrs["to"]
    if code not in onnx.helper.get_all_tensor_dtypes():
        raise node.bad(f"cast to the unknown element type {code}")
    _cast_to(node, to, str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code))))


def _cast_like(node: OnnxNode, to: NodeBuilder) -> None:
    _cast_to(node, to, to.types[node.inputs[1]].dtype)


def _cast_to(node: OnnxNode, to: NodeBuilder, dtype: str) -> None:
    """Other types are for constants only: in numpy, but for those that saturate or are strings."""
    x = node.inputs[0]
    if to.types[x].dtype == dtype:
        to.alias(node, x)
    elif x in to.constants and dtype in (*TO.choices, *OF_CONSTANTS) and to.types[x].dtype != "object":
        with np.errstate(all="ignore"):
            to.add_constant(node.outputs[0], to.constants[x].astype(np.dtype(dtype)))
    elif dtype not in TO.choices:
        raise ModelError(
            "E107",
            f"cast to {'string' if dtype == 'object' else dtype}",
            node=node.source,
            op=node.op,
            tensor=node.outputs[0],
            limit="float32",
            remedy="convert the model to float32",
        )
    else:
        to.emit(node, "Cast", (x,), to=dtype)


def _space_to_depth(node: OnnxNode, to: NodeBuilder) -> None:
    """Channels-last order within a block (mode CRD, opset 28) is expressed by Reshape and Transpose."""
    block, shape = node.attrs["blocksize"], to.shape(node.inputs[0])
    if node.attrs.get("mode", "DCR") == "DCR":
        to.emit(node, "SpaceToDepth", node.inputs, blocksize=block)
        return
    if len(shape) != 4 or block < 1 or shape[2] % block or shape[3] % block:
        raise node.bad(f"blocksize {block} of shape {list(shape)}", tensor=node.inputs[0])
    n, c, h, w = shape[0], shape[1], shape[2] // block, shape[3] // block
    blocks = to.emit(node, "Reshape", node.inputs, (), shape=(n, c, h, block, w, block))
    turned = to.emit(node, "Transpose", (blocks,), (), perm=(0, 1, 3, 5, 2, 4))
    to.emit(node, "Reshape", (turned,), shape=(n, c * block * block, h, w))


def _depth_to_space(node: OnnxNode, to: NodeBuilder) -> None:
    """The mode is an attribute since opset 11; before, it was DCR."""
    mode = node.attrs.get("mode", "DCR")
    to.emit(node, "DepthToSpace", node.inputs, blocksize=node.attrs["blocksize"], mode=mode)


IMPORTERS: dict[str, Importer] = {
    "Slice": _slice,
    "Pad": _pad,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
    "Concat": _concat,
    "Split": _split,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Cast": _cast,
    "CastLike": _cast_like,
    "SpaceToDepth": _space_to_depth,
    "DepthToSpace": _depth_to_space,
}
