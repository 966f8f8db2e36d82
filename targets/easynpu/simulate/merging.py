"""Tiles of feature maps become whole maps again: an operator on windows of a map is one operator on the map.

A program computes its layers in tiles, and neighbouring tiles overlap in their halo. In a network each tile costs
operators of its own, slices and concatenations for its inputs, and the halo. Here every tensor is a window of a
map: a convolution of a window of a map is a window of the map's convolution. A map has all rows, columns and
channels that are computed alike; a convolution's map has a channel for each row of weights that meets its operand.

An element of a map has the same value in all tiles that contain it: their windows contain the same elements, and
where a tile is padded the map ends. If it does not end there, the network stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array

ELEMENTWISE = ("Add", "Cast", "Clip", "Floor", "Gather", "Mul", "QLinearAdd", "Relu", "Sub")
"""Operators whose operands have the extents of the result, and give one element each for one of its elements."""
WEIGHTS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""The input with the weights."""
PER_CHANNEL = {"Conv": (1, 2), "ConvInteger": (1,), "QLinearConv": (3, 4, 5, 8)}
"""The inputs with a row for each channel of the result."""
Extents = tuple[int, int, int]
"""Channels, rows and columns."""
NOWHERE = 1 << 40
Pair = tuple[int, int]
"""A number for rows and one for columns."""


@frozen
class Operator:
    """An ONNX node with one output."""

    op: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any]
    domain: str = ""


class _Clash(Exception):
    """Tiles that are parts of one map, or windows of it, do not agree on where it ends."""


@frozen
class _Sweep:
    """How an operator moves over its operands: strides, the rows and columns that a result sees, padding."""

    strides: Pair = (1, 1)
    reach: Pair = (1, 1)
    before: Pair = (0, 0)
    after: Pair = (0, 0)

    @property
    def centre(self) -> Pair:
        """The middle of what a result sees: results of windows of several sizes there have the same place."""
        return (self.reach[0] - 1) // 2, (self.reach[1] - 1) // 2

    def results(self, extents: Extents) -> Pair:
        """The rows and columns of the result for an operand of these extents."""
        height, width = (
            (extents[at + 1] + self.before[at] + self.after[at] - self.reach[at]) // self.strides[at] + 1
            for at in range(2)
        )
        return height, width


@frozen
class _View:
    """A window of a map, by the map's number; the first row and column may be negative."""

    number: int
    start: Extents
    extents: Extents

    def end(self, axis: int) -> int:
        """The row (axis 1) or column (2) behind the last, or the channel (0)."""
        return self.start[axis] + self.extents[axis]


@frozen
class _Source:
    """What computes a map: an operator without its operands, which are windows, and padding.

    phase: the first row and column that result 0 sees. slots: the places of the operands among the inputs.
    operands: with rows and columns from those of the first. per_channel: the places of constants with a row for
    each channel. channelwise: a result is computed from the elements of its channel, and the operands' channels
    are from those of the first, too; if not, from all of their channels.
    """

    operator: Operator
    sweep: _Sweep
    phase: Pair
    slots: tuple[int, ...]
    operands: tuple[_View, ...]
    per_channel: tuple[int, ...]
    channelwise: bool


@dataclass
class _Map:
    """A feature map, which reaches from the first to the last channel, row and column of all its tiles.

    source: None for a tensor that the network has anyway. name: of its tensor, once computed. rows: the number of
    the row that constants have for each channel. channels: those with each row.
    """

    source: _Source | None = None
    low: Extents = (NOWHERE, NOWHERE, NOWHERE)
    high: Extents = (-NOWHERE, -NOWHERE, -NOWHERE)
    name: str = ""
    rows: dict[int, int] = field(default_factory=dict[int, int])
    channels: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def grow(self, window: _View) -> None:
        """Reaches over this window, too."""
        (a, b, c), (d, e, f) = self.low, window.start
        self.low = min(a, d), min(b, e), min(c, f)
        g, h, i = (max(end, window.end(axis)) for axis, end in enumerate(self.high))
        self.high = g, h, i

    def agrees(self, rows: Sequence[int], first: int) -> bool:
        """Whether the map has no other rows from this channel on."""
        return all(self.rows.get(channel, row) == row for channel, row in enumerate(rows, first))

    def hold(self, rows: Sequence[int], first: int) -> None:
        """Has these rows from this channel on."""
        for channel, row in enumerate(rows, first):
            if channel not in self.rows:
                self.rows[channel] = row
                self.channels.setdefault(row, []).append(channel)

    def channel_of(self, rows: Sequence[int]) -> int:
        """The first channel with these rows; some or all may still be missing behind the last channel."""
        places = (at for row in rows[:1] for at in self.channels.get(row, ()) if self.agrees(rows, at))
        return next(places, len(self.rows))


@dataclass
class Merging:
    """A network whose tiles are merged.

    extents: of those tensors that are feature maps. constants: by name; those that are equal have the same name.
    constant: adds one. over_channels: a map has the channels of several constants, too.
    """

    extents: Mapping[str, Extents]
    constants: Mapping[str, Array]
    constant: Callable[[Array], str]
    over_channels: bool = True
    maps: list[_Map] = field(default_factory=list[_Map])
    views: dict[str, _View] = field(default_factory=dict[str, _View])
    numbers: dict[Any, list[int]] = field(default_factory=dict[Any, list[int]])
    """The numbers of maps, by what computes them; constants with a row for each channel tell them apart."""
    edges: list[tuple[int, int, int, bool]] = field(default_factory=list[tuple[int, int, int, bool]])
    """Where tiles are padded: a map, an axis, and the row or column where the map has to begin (True) or end."""
    done: list[Operator] = field(default_factory=list[Operator])
    cuts: dict[_View, str] = field(default_factory=dict[_View, str])
    distinct: dict[tuple[Any, ...], int] = field(default_factory=dict[tuple[Any, ...], int])
    """The number of each row that constants have for a channel."""
    held: list[tuple[tuple[str, ...], int]] = field(default_factory=list[tuple[tuple[str, ...], int]])
    """Where that row is: the constants, and its place in them."""
    numbered: dict[tuple[str, ...], list[int]] = field(default_factory=dict[tuple[str, ...], list[int]])
    """The numbers of the rows of constants."""
    strides: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """The stride of convolutions with these weights along an axis of the result (0 rows, 1 columns)."""

    def merged(self, operators: Sequence[Operator]) -> list[Operator] | None:
        """Operators that compute the same; None if a tile is padded inside its map."""
        for each in operators:
            self._note_strides(each)
        rest = [each for each in operators if not self._seen(each)]
        if not self._ended():
            return None
        try:
            for each in rest:
                names = [self._cut(self.views[name]) if name in self.views else name for name in each.inputs]
                self.done.append(replace(each, inputs=tuple(names)))
        except _Clash:
            return None
        return self.done

    def _note_strides(self, operator: Operator) -> None:
        """Notes the strides of a convolution of which several results show them."""
        if operator.op in WEIGHTS and operator.inputs[0] in self.extents:
            weights, sweep = self._convolution(operator)
            for axis, count in enumerate(sweep.results(self.extents[operator.inputs[0]])):
                if count > 1:
                    self.strides[weights, axis] = sweep.strides[axis]

    def _with_strides(self, operator: Operator, x: _View) -> Operator:
        """A convolution with the strides of its like: those of a single row or column could be longer."""
        weights, sweep = self._convolution(operator)
        strides = tuple(
            max(own, self.strides.get((weights, axis), 0)) if count == 1 else own
            for axis, (own, count) in enumerate(zip(sweep.strides, sweep.results(x.extents), strict=True))
        )
        return replace(operator, attributes={**operator.attributes, "strides": strides})

    def _convolution(self, operator: Operator) -> tuple[str, _Sweep]:
        """The weights of a convolution, and its sweep."""
        weights = operator.inputs[WEIGHTS[operator.op]]
        return weights, _sweep(self.constants[weights].shape[2:], operator.attributes)

    def _ended(self) -> bool:
        """Whether maps end where their tiles are padded."""
        return all(
            edge == (self.maps[number].low if begins else self.maps[number].high)[axis]
            for number, axis, edge, begins in self.edges
        )

    def _seen(self, operator: Operator) -> bool:
        """Finds the window that an operator computes; False if its result is not one."""
        slots = tuple(at for at, name in enumerate(operator.inputs) if name not in self.constants)
        views = [self._view(operator.inputs[at]) for at in slots]
        operands = tuple(each for each in views if each is not None)
        found = self._result(operator, slots, operands) if operands and len(operands) == len(views) else None
        if found is not None:
            self.views[operator.output] = found
        return found is not None

    def _view(self, name: str) -> _View | None:
        """The window that a tensor is; one that no operator here makes is a map of its own."""
        if name not in self.views and name in self.extents:
            whole = self.views[name] = _View(len(self.maps), (0, 0, 0), self.extents[name])
            self.maps.append(_Map(None, whole.start, whole.extents, name))
        return self.views.get(name)

    def _result(self, operator: Operator, slots: tuple[int, ...], operands: tuple[_View, ...]) -> _View | None:
        first, *others = operands
        op, attributes, inputs = operator.op, operator.attributes, operator.inputs
        if op == "Slice":
            cut = _sliced(first, *(self.constants[name].tolist() for name in inputs[1:]))
            pieces = self._pieces(cut)
            return pieces[0] if len(pieces) == 1 else cut
        if op == "Concat":
            beside = _beside(attributes["axis"] - 1, operands)
            return self._side_by_side(operands) if beside is None and attributes["axis"] == 1 else beside
        if op == "MaxPool":
            return self._tile(operator, slots, operands, _sweep(attributes["kernel_shape"], attributes))
        if op in WEIGHTS:
            operator = self._with_strides(operator, first)
            weights, sweep = self._convolution(operator)
            count = len(self.constants[weights])
            if attributes.get("group", 1) == count == first.extents[0]:
                return self._tile(operator, slots, operands, sweep)
            return self._tile(operator, slots, operands, sweep, count)
        alike = all(each.extents == first.extents for each in others) and not attributes.get("axis")
        held = (self.constants[name] for name in inputs if name in self.constants)
        alike &= op == "Gather" or all(each.size == 1 or each.shape[-2:] == (1, 1) for each in held)
        return self._tile(operator, slots, operands, _Sweep()) if op in ELEMENTWISE and alike else None

    def _tile(
        self,
        operator: Operator,
        slots: tuple[int, ...],
        operands: tuple[_View, ...],
        sweep: _Sweep,
        channels: int | None = None,
    ) -> _View:
        """The window that a tile is of the map of all tiles that are computed alike.

        channels: of the result, if each is computed from all channels of the operands.
        """
        first = operands[0]
        for axis in (1, 2):
            if sweep.before[axis - 1] > 0:
                self.edges.append((first.number, axis, first.start[axis], True))
            if sweep.after[axis - 1] > 0:
                self.edges.append((first.number, axis, first.end(axis), False))
        (row, up), (column, left) = (
            divmod(first.start[at + 1] - sweep.before[at] + sweep.centre[at], sweep.strides[at]) for at in range(2)
        )
        channelwise, per_channel = channels is None, self._per_channel(operator)
        removed = ("pads", "group") if channelwise else ("pads",)
        source = _Source(
            replace(
                operator,
                inputs=tuple("" if at in slots + per_channel else name for at, name in enumerate(operator.inputs)),
                output="",
                attributes={name: value for name, value in operator.attributes.items() if name not in removed},
            ),
            replace(sweep, before=(0, 0), after=(0, 0)),
            (up - sweep.centre[0], left - sweep.centre[1]),
            slots,
            tuple(_apart(each, first, channelwise=channelwise) for each in operands),
            per_channel,
            channelwise,
        )
        names = tuple(operator.inputs[at] for at in per_channel)
        number, channel = self._place(source, names, first.start[0])
        extents = first.extents[0] if channels is None else channels, *sweep.results(first.extents)
        found = _View(number, (channel, row, column), extents)
        self.maps[number].grow(found)
        return found

    def _place(self, source: _Source, names: tuple[str, ...], first: int) -> tuple[int, int]:
        """The map that a source computes with these constants, and their first channel.

        first: the first channel of a channelwise result.
        """
        operator, rows = source.operator, self._rows(names)
        attributes = tuple((name, str(value)) for name, value in sorted(operator.attributes.items()))
        extends = self.over_channels and (source.channelwise or operator.attributes.get("group", 1) == 1)
        kinds = tuple((value.shape[1:], value.dtype) for value in map(self.constants.__getitem__, names))
        key = operator.op, operator.inputs, attributes, source.phase, source.operands, kinds if extends else names
        numbers = self.numbers.setdefault(key, [])
        for number in numbers:
            channel = first if source.channelwise else self.maps[number].channel_of(rows)
            if self.maps[number].agrees(rows, channel):
                break
        else:
            number, channel = len(self.maps), first if source.channelwise else 0
            numbers.append(number)
            self.maps.append(_Map(source))
        self.maps[number].hold(rows, channel)
        return number, channel

    def _rows(self, names: tuple[str, ...]) -> list[int]:
        """The number of each row of constants that have one for each channel."""
        if names not in self.numbered:
            columns = (self.constants[name] for name in names)
            rows = [
                *zip(*([(each.tobytes(), each.shape, each.dtype) for each in of] for of in columns), strict=True)
            ]
            for at, row in enumerate(rows):
                if row not in self.distinct:
                    self.distinct[row] = len(self.held)
                    self.held.append((names, at))
            self.numbered[names] = [self.distinct[row] for row in rows]
        return self.numbered[names]

    def _per_channel(self, operator: Operator) -> tuple[int, ...]:
        """The inputs with a row for each channel of the result."""
        held = ((at, self.constants.get(name)) for at, name in enumerate(operator.inputs))
        elementwise = tuple(at for at, value in held if value is not None and value.ndim > 2 and value.size > 1)
        return PER_CHANNEL.get(operator.op, elementwise)

    def _side_by_side(self, parts: Sequence[_View]) -> _View:
        """Channels of several maps as channels of one."""
        parts = _without_cuts([each for part in parts for each in self._pieces(part)])
        if len(parts) == 1:
            return parts[0]
        concat = Operator("Concat", ("",) * len(parts), "", {"axis": 1})
        slots, channels = tuple(range(len(parts))), sum(each.extents[0] for each in parts)
        return self._tile(concat, slots, tuple(parts), _Sweep(), channels)

    def _pieces(self, view: _View) -> list[_View]:
        """The windows of which a window of concatenated channels consists; any other is the only one."""
        source, at = self.maps[view.number].source, 0
        if source is None or source.operator.op != "Concat":
            return [view]
        found: list[_View] = []
        for each in source.operands:
            begin, end = max(view.start[0], at), min(view.end(0), at + each.extents[0])
            if begin < end:
                channel, row, column = each.start[0] + begin - at, *each.start[1:]
                start = channel, view.start[1] + row, view.start[2] + column
                found.append(_View(each.number, start, (end - begin, *view.extents[1:])))
            at += each.extents[0]
        return found

    def _cut(self, view: _View) -> str:
        """The tensor that is a window."""
        if view not in self.cuts:
            self._compute(view.number)
            found = self.maps[view.number]
            name, low = found.name, found.low
            axes = [at for at in range(3) if (view.start[at], view.end(at)) != (low[at], found.high[at])]
            if axes:
                starts = [view.start[at] - low[at] for at in axes]
                ends = [view.end(at) - low[at] for at in axes]
                given = (self.constant(np.array(each)) for each in (starts, ends, [at + 1 for at in axes]))
                name = self._add(Operator("Slice", (name, *given), "", {}))
            self.cuts[view] = name
        return self.cuts[view]

    def _compute(self, number: int) -> None:
        """Computes a map and those that it needs. A map's number is above those of its operands."""
        needed, left = set[int](), [number]
        while left:
            source = self.maps[at := left.pop()].source
            if source is not None and not self.maps[at].name and at not in needed:
                needed.add(at)
                left += [each.number for each in source.operands]
        for each in sorted(needed):
            self._sweep_over(self.maps[each])

    def _sweep_over(self, found: _Map) -> None:
        """Adds the operator that computes a map. Raises _Clash.

        An operand without a sweep reaches as far as the map: each of its tiles is read by one of the map's.
        """
        assert found.source is not None
        source, operator = found.source, found.source.operator
        inputs, attributes = [*operator.inputs], dict(operator.attributes)
        for slot, operand in zip(source.slots, source.operands, strict=True):
            seen, pads = self._needed(found, source, operand)
            if operator.op in (*WEIGHTS, "MaxPool"):
                attributes["pads"] = pads
            inputs[slot] = self._cut(seen)
        if operator.op in WEIGHTS and source.channelwise:
            attributes["group"] = found.high[0] - found.low[0]
        for slot, value in zip(source.per_channel, self._constants(found), strict=True):
            inputs[slot] = self.constant(value)
        found.name = self._add(replace(operator, inputs=tuple(inputs), attributes=attributes))

    def _constants(self, found: _Map) -> list[Array]:
        """The constants with a row for each channel of a map; channels of no tile have another channel's."""
        any_row = next(iter(found.rows.values()), 0)
        rows = (found.rows.get(at, any_row) for at in range(found.low[0], found.high[0]) if found.rows)
        places = [self.held[row] for row in rows]
        columns = zip(*([self.constants[name][at] for name in names] for names, at in places), strict=True)
        return [np.stack(each) for each in columns]

    def _needed(self, found: _Map, source: _Source, operand: _View) -> tuple[_View, list[int]]:
        """The window of an operand that a map is computed from, and its padding: top, left, bottom, right."""
        given, sweep = self.maps[operand.number], source.sweep
        starts, extents, before, after = [operand.start[0]], [operand.extents[0]], list[int](), list[int]()
        if source.channelwise:
            starts, extents = [found.low[0] + operand.start[0]], [found.high[0] - found.low[0]]
        for at in range(2):
            from_first = source.phase[at] + operand.start[at + 1]
            low = found.low[at + 1] * sweep.strides[at] + from_first
            high = (found.high[at + 1] - 1) * sweep.strides[at] + from_first + sweep.reach[at]
            inside = max(low, given.low[at + 1]), min(high, given.high[at + 1])
            starts.append(inside[0])
            extents.append(inside[1] - inside[0])
            before.append(inside[0] - low)
            after.append(high - inside[1])
            if inside[0] >= inside[1]:
                raise _Clash
        c, h, w = starts
        channels, height, width = extents
        return _View(operand.number, (c, h, w), (channels, height, width)), [*before, *after]

    def _add(self, operator: Operator) -> str:
        name = f"m{len(self.done)}"
        self.done.append(replace(operator, output=name))
        return name


def _sweep(kernel: Sequence[int], attributes: Mapping[str, Any]) -> _Sweep:
    """The sweep of a convolution or pooling."""
    strides, dilations = (attributes.get(name, (1, 1)) for name in ("strides", "dilations"))
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    rows, columns = ((kernel[at] - 1) * dilations[at] + 1 for at in range(2))
    return _Sweep((strides[0], strides[1]), (rows, columns), (top, left), (bottom, right))


def _sliced(x: _View, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int]) -> _View:
    start, extents = [*x.start], [*x.extents]
    for first, end, axis in zip(starts, ends, axes, strict=True):
        start[axis - 1] += first
        extents[axis - 1] = end - first
    return _View(x.number, (start[0], start[1], start[2]), (extents[0], extents[1], extents[2]))


def _beside(axis: int, parts: Sequence[_View]) -> _View | None:
    """Neighbours in one map along an axis, as one window of it."""
    first, (channels, height, width) = parts[0], parts[0].extents
    at = [*first.start]
    for each in parts:
        if each.number != first.number or [*each.start] != at:
            return None
        at[axis] += each.extents[axis]
    total = sum(each.extents[axis] for each in parts)
    extents = ((total, height, width), (channels, total, width), (channels, height, total))[axis]
    return _View(first.number, first.start, extents)


def _without_cuts(parts: Sequence[_View]) -> list[_View]:
    """Channels of maps, those that are neighbours in one map as one part."""
    found = [parts[0]]
    for each in parts[1:]:
        both = _beside(0, (found[-1], each))
        found[-1:] = [found[-1], each] if both is None else [both]
    return found


def _apart(view: _View, first: _View, *, channelwise: bool) -> _View:
    """An operand's channels, rows and columns from those of the first; if not channelwise, its own channels."""
    (channel, row, column), (of_first, top, left) = view.start, first.start
    start = channel - of_first * channelwise, row - top, column - left
    return _View(view.number, start, (0 if channelwise else view.extents[0], 0, 0))
