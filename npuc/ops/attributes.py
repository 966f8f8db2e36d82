"""Attributes of operators, each declared once: type, default and permitted values.

An attribute is read from a node by calling it, so its default is defined here and nowhere else:

>>> from npuc.ir import Node
>>> GROUP(Node("Conv", ("x", "w"), ("y",)))
1
>>> GROUP(Node("Conv", ("x", "w"), ("y",), {"group": 4}))
4

Attributes that several operators share, or that passes and targets read, stand in this module; those of operators
that a target alone has stand beside its operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar, cast

from npuc.errors import ModelError
from npuc.frozen import frozen
from npuc.ir import Attr, Node

T = TypeVar("T")

Kind = Literal["integer", "flag", "number", "text", "axis", "integers", "numbers", "axes", "permutation"]
"""axis: one of the first input's, 0..rank-1; axes: distinct ones; permutation: all of them; flag: 0 or 1."""

LARGEST = 2**16
"""The largest kernel, stride, dilation or padding, in elements: larger values indicate a damaged model."""

COUNTS: Mapping[str, Callable[[int], int]] = {
    "axis": lambda rank: rank,
    "side": lambda rank: 2 * rank,
    "spatial axis": lambda rank: rank - 2,
    "spatial side": lambda rank: 2 * (rank - 2),
}
"""The number of values of an attribute with one per axis, or per side of an axis, given the input's rank."""


def _count(per: str, rank: int) -> int:
    return int(per) if per.isdigit() else COUNTS[per](rank)


class Required:
    """The default of a mandatory attribute."""


REQUIRED = Required()


@frozen
class Attribute(Generic[T]):
    """An attribute. `low` and `high` are inclusive bounds of each element; `choices` lists all permitted texts.

    per: a number of values, or a key of COUNTS for one value per axis. An empty tuple stands for the default,
    whatever it is.
    internal: npuc's own, unknown to ONNX, so exporters leave it out.
    """

    name: str
    kind: Kind
    meaning: str
    default: T | Required = REQUIRED
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    per: str = ""
    internal: bool = False

    def __call__(self, node: Node) -> T:
        """The node's value, or the default. Raises ModelError (E105) if it is missing or of another type."""
        value = node.attrs.get(self.name)
        if value is None and not isinstance(self.default, Required):
            return self.default
        if not _FITS[self.kind](value):
            reason = f"attribute {self.name} is {'missing' if value is None else repr(value)}"
            raise ModelError("E105", reason, node=node.name, op=node.op, limit=self.limit)
        return cast(T, _READ[self.kind](value))

    @property
    def required(self) -> bool:
        """Whether every node must have it."""
        return isinstance(self.default, Required)

    def allows(self, value: Attr, rank: int) -> bool:
        """Whether the value is permitted in a node whose first input has this rank."""
        if not _FITS[self.kind](value):
            return False
        if isinstance(value, str):
            return not self.choices or value in self.choices
        elements = value if isinstance(value, tuple) else (value,)
        if not all(self.low <= each <= self.high for each in elements):
            return False
        if self.kind in ("axis", "axes", "permutation"):
            distinct = len(set(elements)) == len(elements) and all(0 <= each < rank for each in elements)
            return distinct and (self.kind != "permutation" or len(elements) == rank)
        given = not self.per or len(elements) == _count(self.per, rank)
        return given or (not elements and not self.required)

    @property
    def limit(self) -> str:
        """The permitted values, in words.

        >>> GROUP.limit
        'integer, 1 or more'
        >>> STRIDES.limit
        'integers, 1..65536, one per spatial axis'
        """
        words: list[str] = [_WORDS.get(self.kind, self.kind)]
        if self.choices:
            words = [", ".join(self.choices)]
        elif math.isfinite(self.low) and math.isfinite(self.high):
            words.append(f"{self.low:g}..{self.high:g}" if self.kind in ("number", "numbers") else self._whole())
        elif math.isfinite(self.low):
            words.append(f"{self.low:g} or more")
        if self.per:
            words.append(f"{self.per} of them" if self.per.isdigit() else f"one per {self.per}")
        return ", ".join(words)

    def _whole(self) -> str:
        return f"{int(self.low)}..{int(self.high)}"


_WORDS = {
    "flag": "0 or 1",
    "axis": "an axis, 0..rank-1",
    "axes": "distinct axes, 0..rank-1",
    "permutation": "a permutation of all axes",
}


def _tuple_of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(isinstance(each, types) for each in cast(Any, value))


_FITS: Mapping[Kind, Callable[[Any], bool]] = {
    "integer": lambda value: isinstance(value, int),
    "axis": lambda value: isinstance(value, int),
    "flag": lambda value: isinstance(value, int) and value in (0, 1),
    "number": lambda value: isinstance(value, (int, float)),
    "text": lambda value: isinstance(value, str),
    "numbers": _tuple_of(int, float),
    **dict.fromkeys(("integers", "axes", "permutation"), _tuple_of(int)),
}
_READ: Mapping[Kind, Callable[[Any], Any]] = {
    "integer": int,
    "axis": int,
    "flag": bool,
    "number": float,
    "text": str,
    **dict.fromkeys(("integers", "numbers", "axes", "permutation"), tuple),
}


def _integers(name: str, meaning: str, low: float, per: str, high: float = LARGEST) -> Attribute[tuple[int, ...]]:
    return Attribute[tuple[int, ...]](name, "integers", meaning, (), low, high, per=per)


# windows
KERNEL_SHAPE = _integers("kernel_shape", "extents of the window; the weight's if absent", 1, "spatial axis")
WINDOW = replace(KERNEL_SHAPE, meaning="extents of the window", default=REQUIRED)
STRIDES = _integers("strides", "distance between windows; 1 each if absent", 1, "spatial axis")
DILATIONS = _integers("dilations", "distance between taps; 1 each if absent", 1, "spatial axis")
PADS = _integers("pads", "padding before all axes, then behind them; 0 each if absent", 0, "spatial side")
OUTPUT_PADDING = _integers("output_padding", "rows that a side of the result has more", 0, "spatial axis")
GROUP = Attribute[int]("group", "integer", "groups of channels that are convolved by themselves", 1, 1)
CEIL_MODE = Attribute[bool]("ceil_mode", "flag", "a last window may reach beyond the padding", False)
COUNT_INCLUDE_PAD = Attribute[bool]("count_include_pad", "flag", "padding counts in the mean", False)

# axes
AXIS = Attribute[int]("axis", "axis", "the axis")
AXES = Attribute[tuple[int, ...]]("axes", "axes", "the axes")
KEEPDIMS = Attribute[bool]("keepdims", "flag", "reduced axes stay, with extent 1", True)

# fused activations
ACTIVATION = Attribute[str](
    "activation", "text", "the activation that follows", "", choices=("", "Relu", "Clip"), internal=True
)
MIN = Attribute[float]("min", "number", "the lower limit", -math.inf, internal=True)
MAX = Attribute[float]("max", "number", "the upper limit", math.inf, internal=True)
FUSED = (ACTIVATION, MIN, MAX)
FUSED_INPUT = Attribute[int | None](
    "fused_input",
    "integer",
    "the input whose producer may end with the sum, if one may",
    None,
    0,
    1,
    internal=True,
)

# unary functions
LEAKY_ALPHA = Attribute[float]("alpha", "number", "the slope of negative values", 0.01)
ELU_ALPHA = Attribute[float]("alpha", "number", "minus the limit of negative values", 1.0)
SWISH_ALPHA = Attribute[float]("alpha", "number", "the factor within the sigmoid", 1.0)
HARD_ALPHA = Attribute[float]("alpha", "number", "the slope", 0.2)
HARD_BETA = Attribute[float]("beta", "number", "the value at 0", 0.5)
APPROXIMATE = Attribute[str]("approximate", "text", "how it is computed", "none", choices=("none", "tanh"))

# normalisation
EPSILON = Attribute[float]("epsilon", "number", "what is added to a variance", 1e-5, 0)
SIZE = Attribute[int]("size", "integer", "channels that are summed", low=1, high=LARGEST)
LRN_ALPHA = Attribute[float]("alpha", "number", "the factor of the mean square", 1e-4)
LRN_BETA = Attribute[float]("beta", "number", "the exponent", 0.75)
LRN_BIAS = Attribute[float]("bias", "number", "what is added to the scaled mean square", 1.0)

# movement
SHAPE = Attribute[tuple[int, ...]]("shape", "integers", "the result's shape", low=0, internal=True)
PERM = Attribute[tuple[int, ...]]("perm", "permutation", "the input's axis behind each axis of the result")
SPLIT = Attribute[tuple[int, ...]]("split", "integers", "the extent of each result", low=0, internal=True)
STARTS = Attribute[tuple[int, ...]](
    "starts", "integers", "the first element along each axis", low=0, internal=True
)
ENDS = Attribute[tuple[int, ...]](
    "ends", "integers", "the element behind the last; -1 before the first", low=-1, internal=True
)
STEPS = Attribute[tuple[int, ...]]("steps", "integers", "the distance between elements", internal=True)
SIDES = Attribute[tuple[int, ...]](
    "pads", "integers", "elements before all axes, then behind them; negative ones are cut off", per="side"
)
PAD_MODE = Attribute[str](
    "mode", "text", "what is put there", "constant", choices=("constant", "reflect", "edge", "wrap")
)
VALUE = Attribute[float]("value", "number", "the constant that is put there", 0.0)
BLOCKSIZE = Attribute[int]("blocksize", "integer", "rows and columns of a block", low=1, high=LARGEST)
BLOCK_MODE = Attribute[str](
    "mode", "text", "whether channels count pixels or blocks first", "DCR", choices=("DCR", "CRD")
)
TO = Attribute[str](
    "to",
    "text",
    "the element type",
    choices=("float32", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"),
)
SELECT_LAST_INDEX = Attribute[bool]("select_last_index", "flag", "of equal elements the last one counts", False)

# resizing
SIZES = Attribute[tuple[int, ...]]("sizes", "integers", "the result's shape", low=1, per="axis", internal=True)
SCALES = Attribute[tuple[float, ...]](
    "scales", "numbers", "extents of the result over those of the input", low=0, per="axis", internal=True
)
RESIZE_MODE = Attribute[str](
    "mode", "text", "the interpolation", "nearest", choices=("nearest", "linear", "cubic")
)
COORDINATES = Attribute[str](
    "coordinate_transformation_mode",
    "text",
    "where an element of the result lies in the input",
    "half_pixel",
    choices=("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"),
)
NEAREST_MODE = Attribute[str](
    "nearest_mode",
    "text",
    "which element is the nearest",
    "round_prefer_floor",
    choices=("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
)
CUBIC_COEFF_A = Attribute[float]("cubic_coeff_a", "number", "the parameter of Keys' kernel", -0.75)
EXCLUDE_OUTSIDE = Attribute[bool]("exclude_outside", "flag", "taps outside the input do not count", False)

# quantisation
STEPS_AXIS = Attribute[int]("axis", "integer", "the axis along which scales differ", 1, 0)
SCALE = Attribute[float]("scale", "number", "what a step stands for", low=0, internal=True)
ZERO_POINT = Attribute[int]("zero_point", "integer", "the integer that stands for 0", 0, internal=True)
DTYPE = Attribute[str](
    "dtype", "text", "the integer type", choices=("int8", "uint8", "int16", "uint16"), internal=True
)

# annotations by passes
SELECTS = Attribute[bool](
    "selects", "flag", "its weights are 0 and 1 and take elements as they are", False, internal=True
)
BLOCKS = Attribute[int]("blocks", "integer", "groups before zeros filled the weights", 1, 1, internal=True)
WHOLE = Attribute[bool]("whole", "flag", "it gives integers that quantised values stand for", False, internal=True)
ON_DEVICE = Attribute[bool]("on_device", "flag", "the machine runs it, not the host", False, internal=True)

# integer layers
SHIFT = Attribute[int]("shift", "integer", "the right shift of the accumulator", low=0, high=31, internal=True)
RELU = Attribute[bool]("relu", "flag", "results are at least 0", False, internal=True)
PADDING = Attribute[int]("padding", "integer", "the integer that surrounds x", 0, internal=True)
AVERAGE = Attribute[bool]("average", "flag", "it is the convolution that an average became", False, internal=True)
ERROR_LSB = Attribute[int]("error_lsb", "integer", "the table's largest error in steps", 0, 0, internal=True)
