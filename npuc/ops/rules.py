"""What many shape rules share: checks that raise E105 / E107, and the broadcasting rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.errors import ModelError
from npuc.ir import Array, Node, TensorType
from npuc.ops.table import bad_node


def given(node: Node, index: int) -> bool:
    """Whether the node has the optional input with this index."""
    return index < len(node.inputs) and bool(node.inputs[index])


NUMBERS = ("float32", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def expect_types(node: Node, types: Sequence[TensorType], allowed: Sequence[str]) -> None:
    """Raises E107 unless every given input has one of the element types."""
    for name, each in zip(node.inputs, types, strict=True):
        if name and each.dtype not in allowed:
            raise ModelError(
                "E107",
                f"the element type is {each.dtype}",
                node=node.name,
                op=node.op,
                tensor=name,
                limit=", ".join(allowed),
                remedy="convert the model to float32",
            )


def expect_float(node: Node, types: Sequence[TensorType]) -> None:
    """Raises E107 unless every given input is float32."""
    expect_types(node, types, ("float32",))


def expect_rank(node: Node, x: TensorType, least: int, most: int | None = None) -> None:
    """Raises E105 unless the first input has between `least` and `most` dimensions."""
    if len(x.shape) < least or (most is not None and len(x.shape) > most):
        limit = f"{least} dimensions" if least == most else f"{least} or more dimensions"
        if most is not None and most > least:
            limit = f"{least} to {most} dimensions"
        raise bad_node(node, f"the input has shape {list(x.shape)}", tensor=node.inputs[0], limit=limit)


def expect_shape(node: Node, index: int, found: TensorType, wanted: tuple[int, ...]) -> None:
    """Raises E105 unless the input with this index has exactly this shape; an omitted one passes."""
    if given(node, index) and found.shape != wanted:
        reason = f"shape {list(found.shape)} where {list(wanted)} is needed"
        raise bad_node(node, reason, tensor=node.inputs[index])


def expect_axes(node: Node, axes: Sequence[int], rank: int) -> None:
    """Raises E105 unless the axes are distinct and inside 0..rank-1."""
    if len(set(axes)) != len(axes) or not all(0 <= axis < rank for axis in axes):
        reason = f"axes {list(axes)} of a tensor with {rank} dimensions"
        raise bad_node(node, reason, tensor=node.inputs[0], limit=f"distinct, 0..{rank - 1}")


def same_type(node: Node, types: Sequence[TensorType]) -> str:
    """The one element type of all given inputs; raises E105 if they differ."""
    found = {each.dtype for name, each in zip(node.inputs, types, strict=True) if name}
    if len(found) != 1:
        raise bad_node(node, f"the inputs have different element types {sorted(found)}")
    return found.pop()


def broadcast(node: Node, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape by numpy's broadcasting; raises E105 if there is none."""
    try:
        return tuple(int(extent) for extent in np.broadcast_shapes(*shapes))
    except ValueError:
        described = " and ".join(str(list(shape)) for shape in shapes)
        raise bad_node(node, f"shapes {described} do not broadcast") from None


def like_input(_node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The shape rule of operators of any element type whose output is typed as the first input."""
    return (types[0],)


def like_numeric_input(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The shape rule of elementwise operators on numbers."""
    expect_types(node, types, NUMBERS)
    return (types[0],)


def like_float_input(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The shape rule of elementwise operators on float32."""
    expect_float(node, types)
    return (types[0],)


def along(values: Array, axis: int, rank: int) -> Array:
    """A vector shaped so that it broadcasts along one axis of a tensor with `rank` dimensions."""
    return values.reshape([-1 if each == axis else 1 for each in range(rank)])
