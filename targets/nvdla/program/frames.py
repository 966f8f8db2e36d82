"""Frames that CDMA converts: what the host would compute for them, as means, a scale and a shift.

The host's steps run on every value of a pixel; CDMA takes their place only if it gives the same integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from npuc.conditions.host import BORDER, host_step
from npuc.frozen import frozen
from npuc.host.step import HostStep
from npuc.ir import Array, Graph, Node
from npuc.targets.nvdla.formats.pixels import Conversion
from npuc.targets.nvdla.model.arithmetic import shift_right

PIXELS = np.arange(1 << 8, dtype=np.uint8)
MOST = (1 << 15) - 1
"""The largest offset and scale."""


@frozen
class RawFrame:
    """A frame of bytes, and how CDMA converts it."""

    tensor: str
    """The bytes, which the host only moves."""
    conversion: Conversion
    replaced: tuple[Node, ...]
    """The host's nodes that are no longer needed."""


def is_centre(node: Node) -> bool:
    """Whether a node takes a mean of each channel from a frame (quantisation/centring)."""
    return node.op == "Sub" and node.inputs[1] == f"{node.output}/mean"


def raw_frames(graph: Graph, images: Iterable[str]) -> dict[str, RawFrame]:
    """The frames among tensors that are loaded as images, by the name of the tensor."""
    found = ((name, _raw(graph, name)) for name in images)
    return {name: each for name, each in found if each is not None}


def _raw(graph: Graph, name: str) -> RawFrame | None:
    nodes = list(_before(graph, name))
    raw = nodes[-1].inputs[0] if nodes else name
    if graph.tensors[raw].dtype != "uint8" or graph.tensors[name].dtype != "int8":
        return None
    steps = [host_step(graph, node, "", at_border=True) for node in reversed(nodes)]
    means = graph.constants[nodes[1].inputs[1]].reshape(-1) if len(nodes) > 2 else np.zeros(graph.shape(name)[1])
    (first, zero), (last, middle) = steps[0].conversion_numbers(), steps[-1].conversion_numbers()
    offsets = np.rint(zero + means / first - middle * last / first).astype(int).tolist()
    wanted = _converted(graph, raw, name, steps)
    for truncate in range(15):
        factor = round((1 << truncate) * first / last)
        conversion = Conversion(tuple(offsets), factor, truncate)
        if max(factor, *map(abs, offsets)) <= MOST and np.array_equal(_by_cdma(conversion), wanted):
            return RawFrame(raw, conversion, tuple(nodes))
    return None


def _by_cdma(conversion: Conversion) -> Array:
    """What CDMA makes of every value of a pixel, (channels, 256)."""
    less = np.subtract(PIXELS, np.array(conversion.offsets)[:, None], dtype=np.int64)
    return np.clip(shift_right(less * conversion.scale, conversion.truncate), -128, 127)


def _before(graph: Graph, name: str) -> Iterator[Node]:
    """The conversions before a tensor, from the last on; nothing else reads what is between them."""
    while (node := graph.producers.get(name)) and (node.op in BORDER or is_centre(node)):
        yield node
        name = node.inputs[0]
        if len(graph.readers[name]) > 1 or name in graph.outputs:
            return


def _converted(graph: Graph, raw: str, name: str, steps: Iterable[HostStep]) -> Array:
    """What the host makes of every value of a pixel, (channels, 256)."""
    channels = graph.shape(name)[1]
    tensors = {raw: np.broadcast_to(PIXELS[:, None], (1, 1, channels, PIXELS.size, 1))}
    for step in steps:
        tensors |= {each: graph.constants[each][None] for each in step.inputs if each in graph.constants}
        step.run(tensors)
    return tensors[name].reshape(channels, -1)
