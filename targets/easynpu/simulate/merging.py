"""Tiles of feature maps become whole maps again: an operator on windows of a map is one operator on the map.

A program computes its layers in tiles, and neighbouring tiles overlap in their halo. In a network each tile costs
operators of its own, slices and concatenations for its inputs, and the halo. Here every tensor is a window of a
map: a convolution of a window of a map is a window of the map's convolution.

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
MOST_LEVELS = 64
"""The most operators, one before the other, that become one over all channels at once."""
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

    operands: with rows and columns from those of the first. slots: their places among the inputs. phase: the first
    row and column that result 0 sees.
    """

    operator: Operator
    sweep: _Sweep
    phase: Pair
    slots: tuple[int, ...]
    operands: tuple[_View, ...]


@dataclass
class _Map:
    """A feature map, which reaches from the first to the last row and column of all its tiles.

    source: None for a tensor that the network has anyway. name: of its tensor, once computed. parts: maps with
    some of its channels. unbound: groups of them with all its channels, whose rows and columns are yet unknown.
    """

    channels: int
    source: _Source | None = None
    low: Pair = (NOWHERE, NOWHERE)
    high: Pair = (-NOWHERE, -NOWHERE)
    name: str = ""
    parts: set[int] = field(default_factory=set[int])
    unbound: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])

    def grow(self, low: Sequence[int], high: Sequence[int]) -> None:
        """Reaches over these rows and columns, too."""
        self.low = min(self.low[0], low[0]), min(self.low[1], low[1])
        self.high = max(self.high[0], high[0]), max(self.high[1], high[1])


@dataclass
class Merging:
    """A network whose tiles are merged.

    extents: of those tensors that are feature maps. constants: by name; those that are equal have the same name.
    constant: adds one. over_channels: merges tiles of channels, too.
    """

    extents: Mapping[str, Extents]
    constants: Mapping[str, Array]
    constant: Callable[[Array], str]
    over_channels: bool = True
    maps: list[_Map] = field(default_factory=list[_Map])
    views: dict[str, _View] = field(default_factory=dict[str, _View])
    numbers: dict[Any, int] = field(default_factory=dict[Any, int])
    """The number of each map, by what computes it."""
    edges: list[tuple[int, int, int, bool]] = field(default_factory=list[tuple[int, int, int, bool]])
    """Where tiles are padded: a map, an axis, and the row or column where the map has to begin (True) or end."""
    done: list[Operator] = field(default_factory=list[Operator])
    cuts: dict[_View, str] = field(default_factory=dict[_View, str])
    joined: dict[tuple[tuple[int, ...], ...], int] = field(default_factory=dict[tuple[tuple[int, ...], ...], int])
    """The number of the map with the channels of several: by the number, first channel and channels of each."""
    strides: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """The stride of convolutions with these weights along an axis of the result (0 rows, 1 columns)."""

    def merged(self, operators: Sequence[Operator]) -> list[Operator] | None:
        """Operators that compute the same; None if a tile is padded inside its map."""
        for each in operators:
            self._note_strides(each)
        rest = [each for each in operators if not self._seen(each)]
        for each in self.maps:
            self._bound(each)
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

    def _bound(self, found: _Map) -> None:
        """Gives a map the rows and columns that all parts of a group have."""
        while found.unbound:
            group = [self.maps[part] for part in found.unbound.pop()]
            for each in group:
                self._bound(each)
            low = [max(each.low[at] for each in group) for at in range(2)]
            high = [min(each.high[at] for each in group) for at in range(2)]
            if low[0] < high[0] and low[1] < high[1]:
                found.grow(low, high)

    def _ended(self) -> bool:
        """Whether maps end where their tiles are padded."""
        return all(
            edge == (self.maps[number].low if begins else self.maps[number].high)[axis - 1]
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
            channels, height, width = self.extents[name]
            self.views[name] = _View(len(self.maps), (0, 0, 0), (channels, height, width))
            self.maps.append(_Map(channels, None, (0, 0), (height, width), name))
        return self.views.get(name)

    def _result(self, operator: Operator, slots: tuple[int, ...], operands: tuple[_View, ...]) -> _View | None:
        first, *others = operands
        op, attributes, inputs = operator.op, operator.attributes, operator.inputs
        if op == "Slice":
            return _sliced(first, *(self.constants[name].tolist() for name in inputs[1:]))
        if op == "Concat":
            beside = _beside(attributes["axis"] - 1, operands)
            if beside is not None or attributes["axis"] != 1:
                return beside
            if self.over_channels and all(each.start[1:] == first.start[1:] for each in others):
                return self._side_by_side(operands)
            return self._tile(operator, slots, operands, _Sweep(), sum(each.extents[0] for each in operands))
        if op == "MaxPool":
            sweep = _sweep(attributes["kernel_shape"], attributes)
            return self._tile(operator, slots, operands, sweep, first.extents[0])
        if op in WEIGHTS:
            operator = self._with_strides(operator, first)
            weights, sweep = self._convolution(operator)
            return self._tile(operator, slots, operands, sweep, len(self.constants[weights]))
        alike = all(each.extents == first.extents for each in others) and not attributes.get("axis")
        held = (self.constants[name] for name in inputs if name in self.constants)
        alike &= op == "Gather" or all(each.size == 1 or each.shape[-2:] == (1, 1) for each in held)
        sweep = _Sweep()
        return (
            self._tile(operator, slots, operands, sweep, first.extents[0]) if op in ELEMENTWISE and alike else None
        )

    def _tile(
        self, operator: Operator, slots: tuple[int, ...], operands: tuple[_View, ...], sweep: _Sweep, channels: int
    ) -> _View:
        """The window that a tile is of the map of all tiles that are computed alike."""
        first = operands[0]
        for axis in (1, 2):
            if sweep.before[axis - 1] > 0:
                self.edges.append((first.number, axis, first.start[axis], True))
            if sweep.after[axis - 1] > 0:
                self.edges.append((first.number, axis, first.end(axis), False))
        (row, up), (column, left) = (
            divmod(first.start[at + 1] - sweep.before[at] + sweep.centre[at], sweep.strides[at]) for at in range(2)
        )
        height, width = sweep.results(first.extents)
        source = _Source(
            replace(
                operator,
                inputs=tuple("" if at in slots else name for at, name in enumerate(operator.inputs)),
                output="",
                attributes={name: value for name, value in operator.attributes.items() if name != "pads"},
            ),
            replace(sweep, before=(0, 0), after=(0, 0)),
            (up - sweep.centre[0], left - sweep.centre[1]),
            slots,
            tuple(_apart(each, first) for each in operands),
        )
        number = self._number(source, channels)
        self.maps[number].grow((row, column), (row + height, column + width))
        return _View(number, (0, row, column), (channels, height, width))

    def _number(self, source: _Source, channels: int) -> int:
        """The number of the map that a source computes."""
        operator = source.operator
        attributes = tuple((name, str(value)) for name, value in sorted(operator.attributes.items()))
        key = operator.op, operator.inputs, attributes, source.phase, source.operands
        if key not in self.numbers:
            self.numbers[key] = len(self.maps)
            self.maps.append(_Map(channels, source))
        return self.numbers[key]

    def _side_by_side(self, parts: Sequence[_View], levels: int = MOST_LEVELS) -> _View:
        """Channels of several maps, with the same rows and columns, as channels of one; extents: of the first.

        levels: how many operators before may become one over all channels.
        """
        parts = _without_cuts([each for part in parts for each in self._concatenated(part)])
        if len(parts) == 1:
            return parts[0]
        channels = sum(each.extents[0] for each in parts)
        window = (0, *parts[0].start[1:]), (channels, *parts[0].extents[1:])
        key = tuple((each.number, each.start[0], each.extents[0]) for each in parts)
        if key in self.joined:
            return _View(self.joined[key], *window)
        source = self._as_one(parts, levels - 1) if levels else None
        if source is None:
            operands = tuple(
                replace(each, start=(each.start[0], 0, 0), extents=(each.extents[0], 0, 0)) for each in parts
            )
            concat = Operator("Concat", ("",) * len(parts), "", {"axis": 1})
            source = _Source(concat, _Sweep(), (0, 0), tuple(range(len(parts))), operands)
        number = self._number(source, channels)
        group = tuple(each.number for each in parts)
        self.maps[number].parts.update(group)
        self.maps[number].unbound.add(group)
        self.joined[key] = number
        return _View(number, *window)

    def _concatenated(self, part: _View) -> list[_View]:
        """The parts of a concatenation that is read whole; any other window is its only part."""
        found = self.maps[part.number]
        source = found.source
        if source is None or source.operator.op != "Concat" or part.extents[0] != found.channels:
            return [part]
        if any(each.start[1:] != (0, 0) for each in source.operands):
            return [part]
        return [
            _View(each.number, (each.start[0], *part.start[1:]), (each.extents[0], *part.extents[1:]))
            for each in source.operands
        ]

    def _as_one(self, parts: Sequence[_View], levels: int) -> _Source | None:
        """The operator that computes all of these maps, if theirs differ in weights or channels only."""
        maps = [self.maps[each.number] for each in parts]
        sources = [each.source for each in maps if each.source is not None]
        whole = all(
            each.start[0] == 0 and each.extents[0] == of.channels for each, of in zip(parts, maps, strict=True)
        )
        if not whole or len(sources) < len(parts) or len({self._kind(each) for each in sources}) > 1:
            return None
        first, per_channel = sources[0], self._per_channel(sources[0].operator)
        if first.operator.op == "Concat":
            return None
        attributes, has_weights = dict(first.operator.attributes), first.operator.op in WEIGHTS
        columns = [each.operands for each in sources]
        if attributes.get("group", 1) > 1 or not has_weights:
            operands = tuple(self._side_by_side(column, levels) for column in zip(*columns, strict=True))
            if has_weights:
                if any(each.operator.attributes["group"] != each.operands[0].extents[0] for each in sources):
                    return None
                attributes["group"] = operands[0].extents[0]
        elif len(set(columns)) == 1:
            operands = columns[0]
        else:
            return None
        inputs = [*first.operator.inputs]
        for at in per_channel:
            rows = [self.constants[each.operator.inputs[at]] for each in sources]
            inputs[at] = self.constant(np.concatenate(rows))
        return replace(
            first, operator=replace(first.operator, inputs=tuple(inputs), attributes=attributes), operands=operands
        )

    def _per_channel(self, operator: Operator) -> tuple[int, ...]:
        """The inputs with a row for each channel of the result."""
        held = ((at, self.constants.get(name)) for at, name in enumerate(operator.inputs))
        elementwise = tuple(at for at, value in held if value is not None and value.ndim > 2 and value.size > 1)
        return PER_CHANNEL.get(operator.op, elementwise)

    def _kind(self, source: _Source) -> tuple[object, ...]:
        """What operators have in common that may be one over more channels."""
        operator = source.operator
        rows = self._per_channel(operator)
        attributes = sorted((name, str(value)) for name, value in operator.attributes.items() if name != "group")
        places = tuple(each.start[1:] for each in source.operands)
        grouped = operator.attributes.get("group", 1) > 1
        inputs = tuple("" if at in rows else name for at, name in enumerate(operator.inputs))
        return operator.op, inputs, rows, grouped, tuple(attributes), source.sweep, source.phase, places

    def _cut(self, view: _View) -> str:
        """The tensor that is a window."""
        if view not in self.cuts:
            self._compute(view.number)
            found = self.maps[view.number]
            name = found.name
            whole = found.channels, found.high[0] - found.low[0], found.high[1] - found.low[1]
            axes = [at for at in range(3) if view.extents[at] != whole[at]]
            if axes:
                low = 0, *found.low
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
        self._expect_parts(found, source)
        inputs, attributes = [*operator.inputs], dict(operator.attributes)
        for slot, operand in zip(source.slots, source.operands, strict=True):
            seen, pads = self._needed(found, source, operand)
            if operator.op in (*WEIGHTS, "MaxPool"):
                attributes["pads"] = pads
            inputs[slot] = self._cut(seen)
        found.name = self._add(replace(operator, inputs=tuple(inputs), attributes=attributes))

    def _expect_parts(self, found: _Map, source: _Source) -> None:
        """Raises _Clash unless a part's operands end where those of the map do, for the results of both."""
        for part in (self.maps[number] for number in found.parts):
            low = max(found.low[0], part.low[0]), max(found.low[1], part.low[1])
            high = min(found.high[0], part.high[0]), min(found.high[1], part.high[1])
            of_part = part.source
            if of_part is None or source.operator.op == "Concat" or low[0] >= high[0] or low[1] >= high[1]:
                continue
            common = replace(found, low=low, high=high)
            for mine, its in zip(source.operands, of_part.operands, strict=True):
                (seen, pads), (given, edges) = (self._needed(common, source, each) for each in (mine, its))
                if (seen.start[1:], seen.extents[1:], pads) != (given.start[1:], given.extents[1:], edges):
                    raise _Clash

    def _needed(self, found: _Map, source: _Source, operand: _View) -> tuple[_View, list[int]]:
        """The window of an operand that a map is computed from, and its padding: top, left, bottom, right."""
        given, sweep = self.maps[operand.number], source.sweep
        starts, extents, before, after = [operand.start[0]], [operand.extents[0]], list[int](), list[int]()
        for at in range(2):
            from_first = source.phase[at] + operand.start[at + 1]
            low = found.low[at] * sweep.strides[at] + from_first
            high = (found.high[at] - 1) * sweep.strides[at] + from_first + sweep.reach[at]
            inside = max(low, given.low[at]), min(high, given.high[at])
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


def _apart(view: _View, first: _View) -> _View:
    """An operand's channels, and its rows and columns from those of the first."""
    channel, row, column = view.start
    return _View(view.number, (channel, row - first.start[1], column - first.start[2]), (view.extents[0], 0, 0))
