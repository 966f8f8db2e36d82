"""Any tensor as an image (1, C, H, W), and back, for operators that a machine runs only on images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from npuc.frozen import frozen
from npuc.ir import Node
from npuc.ops.attributes import PERM
from npuc.passes.cleanup.clutter import drop_no_op
from npuc.passes.cleanup.sink_reshapes import merge_reshapes
from npuc.passes.rewriting.layout import inverse, moves_nothing
from npuc.passes.rewriting.rules import Rewriter, Rule

Shape = tuple[int, ...]


@frozen
class ImageLimits:
    """The images that a machine computes efficiently."""

    lanes: int
    """Channels computed in parallel."""
    channels: int
    """The most channels of an image."""
    extent: int
    """The most rows or columns of an image whose shape can be chosen."""
    pixels: int
    """The most pixels of the map made from a long vector: the kernel of a fully connected layer covers it."""
    batches: bool = False
    """Whether a tensor's first axis is a batch of images, and stays."""

    def image_of(self, shape: Sequence[int]) -> Shape:
        """The image of a tensor with elements: the shape itself if it is one.

        >>> ImageLimits(16, 256, 256, 64, batches=True).image_of((2, 7))
        (2, 7, 1, 1)
        """
        if is_image(shape) or (self.batches and len(shape) == 4):
            return tuple(shape)
        images = shape[0] if self.batches else 1
        return images, *self.image_shape(prod(shape) // images)[1:]

    def image_shape(self, elements: int) -> Shape:
        """The (1, C, H, W) of this many elements with the fewest idle lanes; among these, the most pixels.

        >>> limits = ImageLimits(lanes=16, channels=256, extent=256, pixels=64)
        >>> limits.image_shape(3072), limits.image_shape(60), limits.image_shape(7)
        ((1, 16, 12, 16), (1, 15, 2, 2), (1, 7, 1, 1))
        """

        def cost(channels: int) -> tuple[bool, int, int]:
            pixels = elements // channels
            return sides(pixels)[1] > self.extent, -(-channels // self.lanes) * pixels, channels

        most = min(elements, self.channels)
        channels = min((each for each in range(1, most + 1) if elements % each == 0), key=cost)
        return 1, channels, *sides(elements // channels)

    def fold(self, elements: int, most_extent: int | None = None) -> tuple[int, int, int]:
        """(C, H, W) with C*H*W = elements: one pixel if C is within the limit, otherwise as few as fill all lanes.

        H and W are at most most_extent; if nothing fits, all elements are channels.

        >>> limits = ImageLimits(lanes=16, channels=256, extent=256, pixels=64)
        >>> limits.fold(128), limits.fold(432), limits.fold(640), limits.fold(257 * 61, 32)
        ((128, 1, 1), (144, 1, 3), (160, 2, 2), (15677, 1, 1))
        """
        if elements <= self.channels:
            return elements, 1, 1
        for multiple in (self.lanes, 1):
            for pixels in range(2, self.pixels + 1):
                channels = elements // pixels
                fits = sides(pixels)[1] <= (most_extent or pixels)
                if fits and elements % pixels == 0 and channels <= self.channels and channels % multiple == 0:
                    return channels, *sides(pixels)
        return elements, 1, 1


def is_image(shape: Sequence[int]) -> bool:
    """Whether a shape is (1, C, H, W) or (1, C)."""
    return len(shape) in (2, 4) and shape[0] == 1


def sides(count: int) -> tuple[int, int]:
    """The two factors of a number that are closest to a square, the smaller one first.

    >>> sides(12), sides(7)
    ((3, 4), (1, 7))
    """
    height = next(side for side in range(int(count**0.5), 0, -1) if count % side == 0)
    return height, count // height


def to_image(
    rewriter: Rewriter, tensor: str, perm: Sequence[int], shape: Shape, sources: Sequence[str]
) -> tuple[str, list[Node]]:
    """The tensor with its axes permuted, then reshaped: its name, and the nodes that compute it.

    perm: of the tensor's axes, preceded by axes of extent 1 up to its length.
    """
    nodes: list[Node] = []
    before = rewriter.shape(tensor)

    def step(op: str, key: str, value: Shape) -> str:
        result = rewriter.fresh(f"{tensor}@{'x'.join(map(str, value))}")
        nodes.append(Node(op, (tensor,), (result,), {key: value}, result, tuple(sources)))
        return result

    aligned = (1,) * (len(perm) - len(before)) + before
    if not moves_nothing(aligned, perm):
        if aligned != before:
            tensor = step("Reshape", "shape", aligned)
        tensor, before = step("Transpose", "perm", tuple(perm)), tuple(aligned[axis] for axis in perm)
    if before != shape:
        tensor = step("Reshape", "shape", shape)
    return tensor, nodes


def from_image(
    rewriter: Rewriter, image: str, perm: Sequence[int], result: str, sources: Sequence[str]
) -> list[Node]:
    """The nodes that compute a result of the graph from its image, undoing `to_image` with this permutation."""
    shape = rewriter.shape(result)
    if moves_nothing(shape, perm):
        return [Node("Reshape", (image,), (result,), {"shape": shape}, result, tuple(sources))]
    moved = tuple(shape[axis] for axis in perm)
    inner = rewriter.fresh(f"{result}@{''.join(map(str, perm))}")
    return [
        Node("Reshape", (image,), (inner,), {"shape": moved}, inner, tuple(sources)),
        Node("Transpose", (inner,), (result,), {"perm": inverse(perm)}, result, tuple(sources)),
    ]


def front(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """The permutation that moves some axes to the front and keeps the order of the others."""
    return (*axes, *(axis for axis in range(rank) if axis not in axes))


def extents(shape: Sequence[int], axes: Sequence[int]) -> int:
    """The number of elements along some axes together."""
    return prod(shape[axis] for axis in axes)


def merge_transposes(rewriter: Rewriter, node: Node) -> bool:
    """Transpose of Transpose becomes one."""
    first = rewriter.producer(node.inputs[0]) if node.op == "Transpose" else None
    if first is None or first.op != "Transpose":
        return False
    perm = tuple(PERM(first)[axis] for axis in PERM(node))
    sources = rewriter.sources(first, node)
    rewriter.replace(node, Node("Transpose", first.inputs, node.outputs, {"perm": perm}, node.name, sources))
    return True


TIDY: tuple[Rule, ...] = (merge_reshapes, merge_transposes, drop_no_op)
"""Rules that clean up between two operators that both compute on images of a tensor."""
