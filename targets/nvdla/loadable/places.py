"""Where a loadable has a program's data: the inputs and outputs that its user binds have their own memories.

A program has all maps in one memory and reuses it over time. Reads from an input's place before anything else is
written there become reads from the input's memory. Accesses within an output's place after its last use for
anything larger become accesses to the output's memory.

Inputs and outputs are the tensors that the program's one segment moves. The runtime computes no host step but
softmax: conversions to and from integers are left to the user, with the scales exported beside the loadable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.host.step import HostStep
from npuc.ir import Array
from npuc.program import Program
from npuc.storage.records import damage_error
from npuc.targets.nvdla.formats.pixels import NAMES
from npuc.targets.nvdla.loadable import schema
from npuc.targets.nvdla.machine.parameters import BYTES, Machine
from npuc.targets.nvdla.model.memory import Pattern
from npuc.targets.nvdla.program.artefact import Contents, Segment, TensorMove

DUMMY, WEIGHTS, MAPS, FIRST_BOUND = 0, 1, 2, 3
"""Ids of memories; those of inputs and outputs follow."""


@frozen
class Bound:
    """An input or output: its place in the program's memory."""

    tensor: str
    memory: int
    """The id of its own memory."""
    start: int
    bytes: int

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.start + self.bytes

    def holds(self, place: Pattern) -> bool:
        """Whether a pattern is within the place."""
        return self.start <= place.address and place.address + place.size <= self.end

    def touches(self, place: Pattern) -> bool:
        """Whether a pattern's span shares a byte with the place."""
        return place.address < self.end and place.address + place.size > self.start


@frozen
class Use:
    """A cube that an operation reads or writes."""

    operation: int
    name: str
    place: Pattern
    writes: bool


@frozen
class Layout:
    """The program's memory: the start and size of the maps, and the inputs and outputs."""

    maps: int
    map_bytes: int
    inputs: tuple[Bound, ...]
    outputs: tuple[Bound, ...]


Places = Mapping[tuple[int, str], tuple[int, int]]
"""Memory and offset, by operation and cube."""


def place_cubes(uses: Sequence[Use], layout: Layout) -> Places:
    """The placement of every cube; uses: in the order of operations, the reads of each one first.

    Raises ArtefactError (E506) if an input or output shares its place in a way that would need a copy.
    """
    if layout.map_bytes < 0:
        raise damage_error("the images end beyond the memory")
    until = {bound.tensor: _first_write(uses, bound) for bound in layout.inputs}
    since = {bound.tensor: _last_stranger(uses, bound) for bound in layout.outputs}
    owners = np.full(layout.map_bytes, MAPS, np.uint8)
    for bound in layout.inputs:
        owners[bound.start - layout.maps : bound.end - layout.maps] = bound.memory
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for at, use in enumerate(uses):
        bound = _bound(use, at, layout, until, since)
        memory = bound.memory if bound else MAPS
        _record_writes(owners, use, memory, layout)
        found[use.operation, use.name] = memory, use.place.address - (bound.start if bound else layout.maps)
    for bound in layout.outputs:
        if since[bound.tensor] == len(uses) - 1:
            raise _shared_buffer_error(bound.tensor)
    return found


def _first_write(uses: Sequence[Use], bound: Bound) -> int:
    """The position of the first use that writes to a place."""
    written = (at for at, use in enumerate(uses) if use.writes and bound.touches(use.place))
    return next(written, len(uses))


def _last_stranger(uses: Sequence[Use], bound: Bound) -> int:
    """The position of the last use that overlaps a place without being within it, or -1."""
    strangers = [at for at, use in enumerate(uses) if bound.touches(use.place) and not bound.holds(use.place)]
    return max(strangers, default=-1)


def _bound(use: Use, at: int, layout: Layout, until: Mapping[str, int], since: Mapping[str, int]) -> Bound | None:
    """The input or output that a use belongs to."""
    for each in layout.inputs:
        if each.touches(use.place) and at < until[each.tensor]:
            if not each.holds(use.place):
                raise _shared_buffer_error(each.tensor)
            return each
    for each in layout.outputs:
        if each.holds(use.place) and at > since[each.tensor]:
            return each
    return None


def _record_writes(owners: Array, use: Use, memory: int, layout: Layout) -> None:
    """Records writes by memory; raises ArtefactError (E506) for a read from another memory than was written."""
    for start, end in use.place.spans() - layout.maps:
        part = owners[start:end]
        if use.writes:
            part[:] = memory
        elif (part != memory).any():
            raise _shared_buffer_error(use.name)


def _shared_buffer_error(tensor: str) -> ArtefactError:
    return ArtefactError(
        "E506",
        "the network's input or output lies in one buffer with other maps",
        tensor=tensor,
        limit="memory of its own, which the runtime binds",
        remedy="put an operator between it and the concatenation or slice",
    )


FEATURE_NCXHWX, FEATURE_CATEGORY = 3, 2
IMAGE_NHWC, IMAGE_CATEGORY = 2, 0
DATA_TYPES = {"uint8": 5, "int8": 4, "int16": 3, "fp16": 2}
PIXEL_FORMATS = {8: 37, 32: 36}
"""Pixel format of feature data, by the bytes of an atom."""


@frozen
class BoundPort:
    """An input or output: its name for the user, its memory layout, and its scale."""

    name: str
    move: TensorMove
    scale: float | None
    zero: int = 0
    """The integer that represents 0."""
    softmax: bool = False
    """Whether a softmax over its channels follows."""

    memory: int = 0
    """The id of its memory."""

    def bound(self, machine: Machine) -> Bound:
        """Its bytes in the program's memory."""
        return Bound(self.move.tensor, self.memory, self.move.place.address, self.move.bytes(machine))

    def tensor_desc(self, number: int, machine: Machine) -> schema.TensorDesc:
        """The entry of the tensor list."""
        channels, height, width = self.move.map_shape
        place = self.move.place
        described = schema.TensorDesc(
            name=self.name, id=number, mem_id=self.memory, size=self.move.bytes(machine),
            data_format=FEATURE_NCXHWX, data_type=DATA_TYPES[place.precision], data_category=FEATURE_CATEGORY,
            pixel_format=PIXEL_FORMATS[machine.atom_bytes], n=1, c=channels, h=height, w=width,
            stride_0=BYTES[place.precision], stride_1=place.line_stride, stride_2=place.surface_stride,
        )  # fmt: skip
        if not place.pixels:
            return described
        form = self.move.image()
        apart = place.surface_stride if len(form.planes) > 1 else 0
        image = {"data_format": IMAGE_NHWC, "data_category": IMAGE_CATEGORY, "stride_2": apart}
        return replace(described, **image, pixel_format=NAMES.index(place.pixels), c=form.channels)


@frozen
class Ports:
    """The inputs and outputs of a program's one segment."""

    segment: Segment
    inputs: tuple[BoundPort, ...]
    outputs: tuple[BoundPort, ...]


def ports_of(program: Program) -> Ports:
    """The tensors to bind. Raises ArtefactError (E506) for host steps that the runtime does not compute."""
    contents = Contents.of(program.manifest)
    segments = contents.segments
    if len(segments) != 1:
        between = _host(contents.steps[contents.steps.index(segments[0]) :]) if segments else []
        raise _host_steps_error(f"{len(segments)} segments with host steps between them", between)
    at = contents.steps.index(segments[0])
    before, behind = _host(contents.steps[:at]), _host(contents.steps[at:])
    foreign = [step for step in (*before, *behind) if not step.conversion and step.op != "Softmax"]
    if foreign or any(not step.conversion for step in before):
        raise _host_steps_error("host steps", foreign or [step for step in before if not step.conversion])
    inputs = tuple(_input(move, before) for move in segments[0].loads)
    outputs = tuple(_output(move, behind) for move in segments[0].stores)
    for port in (*inputs, *outputs):
        _expect_packed(port, contents.machine)
    first = FIRST_BOUND + len(inputs)
    return Ports(
        segments[0],
        tuple(replace(port, memory=FIRST_BOUND + at) for at, port in enumerate(inputs)),
        tuple(replace(port, memory=first + at) for at, port in enumerate(outputs)),
    )


def _host(steps: Sequence[Any]) -> list[HostStep]:
    return [step for step in steps if isinstance(step, HostStep)]


def _input(move: TensorMove, steps: Sequence[HostStep]) -> BoundPort:
    """The network's input, or the slice of it, that becomes a loaded tensor, with the scale of its conversion."""
    makers = {name: step for step in steps for name in step.outputs}
    name, scale, zero = move.tensor, None, 0
    part = ""
    while name in makers:
        step = makers.pop(name)
        part = part or (name if step.op == "Slice" else "")
        if step.op == "QuantizeLinear":
            scale, zero = step.conversion_numbers()
        if not step.inputs:
            raise _host_steps_error(f"the constant {name} as an input", [step])
        name = step.inputs[0]
    return BoundPort(part or name, move, scale, zero)


def _output(move: TensorMove, steps: Sequence[HostStep]) -> BoundPort:
    """The network's output, or the part of it, that a stored tensor becomes, with its scale and any softmax."""
    name, scale, zero, softmax, part = move.tensor, None, 0, False, ""
    while readers := [step for step in steps if name in step.inputs]:
        step = readers[0]
        steps = [each for each in steps if each is not step]
        if len(readers) > 1 or softmax:
            raise _host_steps_error(f"more than softmax behind '{move.tensor}'", readers)
        if step.op == "DequantizeLinear":
            scale, zero = step.conversion_numbers()
        softmax = softmax or step.op == "Softmax"
        part = part or (name if step.op == "Concat" else "")
        if step.op == "Softmax" and not _over_channels(step, move):
            raise _host_steps_error("a softmax that is not over the channels of one pixel", [step])
        if not step.outputs:
            raise _host_steps_error(f"nothing behind '{name}'", [step])
        name = step.outputs[0]
    return BoundPort(part or name, move, scale, zero, softmax)


def _over_channels(step: HostStep, move: TensorMove) -> bool:
    return move.map_shape[1:] == (1, 1) and step.attrs.get("axis", -1) in (1, -1)


def _expect_packed(port: BoundPort, machine: Machine) -> None:
    """Raises ArtefactError (E506) if channels have gaps, which tensor descriptors cannot express."""
    channels, height, width = port.move.map_shape
    place, atom = port.move.place, machine.atom_bytes
    if place.pixels:
        return
    packed = (place.line_stride, place.surface_stride) == (width * atom, height * width * atom)
    if tuple(place.lanes) != ((0, channels),) or not packed:
        raise ArtefactError(
            "E506",
            "its channels lie in a buffer with gaps",
            tensor=port.move.tensor,
            limit="a packed feature map",
            remedy="put a convolution between it and the concatenation or slice",
        )


def _host_steps_error(what: str, steps: Sequence[HostStep]) -> ArtefactError:
    nodes = ", ".join(f"{step.op} '{step.node}'" for step in steps if not step.conversion) or "conversions"
    return ArtefactError(
        "E506",
        f"{what}: {nodes}",
        limit="one segment; the stock runtime computes softmax behind it, nothing else",
        remedy="end the network before them, or use a configuration whose units compute them",
    )


def scales(ports: Ports) -> Mapping[str, list[dict[str, Any]]]:
    """What the user needs to convert (real = scale * (integer - zero_point)), by name."""
    return {
        role: [
            {
                "name": port.name,
                "bind_id": number,
                "shape": list(port.move.shape),
                "precision": port.move.place.precision,
                "scale": SOFTMAX_SCALE if port.softmax else port.scale,
                "zero_point": 0 if port.softmax else port.zero,
            }
            for number, port in enumerate(found)
        ]
        for role, found in (("inputs", ports.inputs), ("outputs", ports.outputs))
    }


SOFTMAX_SCALE = 1 / 127
"""The scale of a softmax's int8 result."""
