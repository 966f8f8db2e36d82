"""The calls of a program as text: a table with one call per line, which npuc's model executes, and C.

    gdma_32bit_cpy_S2L @0 $0+128 (1,64,1,18) (18,18,18,1) (1152,18,18,1)
    parallel_start
    bdc_relu @0 @0 (1,64,8,8) - -
    parallel_end
    layer 0

Lines `parallel_start` and `parallel_end` enclose the calls of a region in which both engines work; `layer N`
follows the calls of layer N. An argument is an address of local memory (@), a region of system memory and
a byte offset ($), a shape or strides (..), padding [..], two numbers <..>, a float by its bits (=,
hexadecimal), a whole number (1 and 0 also stand for true and false) or NULL (-).

Listings and the exported kernel show calls as C.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from math import isinf, isnan

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.targets.bm1684.lowering.kernel import Arg, Call, Local, Padding, Pair, SystemPlace
from npuc.targets.bm1684.machine.local_memory import Dim4, Position
from npuc.targets.bm1684.machine.parameters import Machine

TABLE_FILE = "calls.txt"
START, END, LAYER = "parallel_start", "parallel_end", "layer"


@frozen
class CallRegion:
    """A single call, or the calls of both engines between parallel_start and parallel_end."""

    calls: tuple[Call, ...]
    parallel: bool


Layer = tuple[CallRegion, ...]
"""The regions that compute one tensor."""


@frozen
class CallTable:
    """The regions of every layer, in order."""

    layers: tuple[Layer, ...]

    @property
    def calls(self) -> Iterator[Call]:
        """All calls in order."""
        return (call for layer in self.layers for region in layer for call in region.calls)

    def lines(self, places: Sequence[str], machine: Machine) -> Iterator[str]:
        """The table as lines of text. places: the names of the regions of system memory, by number."""
        for number, layer in enumerate(self.layers):
            for region in layer:
                calls = (line(call, places, machine) for call in region.calls)
                yield from (START, *calls, END) if region.parallel else calls
            yield f"{LAYER} {number}"

    def data(self, places: Sequence[str], machine: Machine) -> bytes:
        """The content of the file."""
        return "".join(f"{each}\n" for each in self.lines(places, machine)).encode("ascii")


def line(call: Call, places: Sequence[str], machine: Machine) -> str:
    """A placed call as a line."""
    return " ".join([call.name, *(_word(arg, places, machine) for arg in call.args)])


def _word(arg: Arg, places: Sequence[str], machine: Machine) -> str:
    match arg:
        case None:
            return "-"
        case bool() | int():
            return str(int(arg))
        case float():
            return f"={np.float32(arg).view(np.uint32):08x}"
        case Position(npu, offset):
            return f"@{npu * machine.local_bytes + offset}"
        case SystemPlace(region, offset):
            return f"${places.index(region)}+{offset}"
        case Dim4():
            return f"({','.join(map(str, arg))})"
        case Pair(h, w):
            return f"<{h},{w}>"
        case Padding(top, bottom, left, right):
            return f"[{top},{bottom},{left},{right}]"
        case _:
            raise AssertionError(f"no address for {arg}")


def read(data: bytes, places: Sequence[str], machine: Machine) -> CallTable:
    """The inverse of Table.data. Raises ArtefactError (E502) for a malformed line."""
    layers: list[Layer] = []
    regions: list[CallRegion] = []
    together: list[Call] | None = None
    for number, text in enumerate(data.decode("ascii", "replace").splitlines(), 1):
        name, *words = text.split(" ")
        if name == START and not words and together is None:
            together = []
        elif name == END and not words and together is not None:
            regions.append(CallRegion(tuple(together), parallel=True))
            together = None
        elif name == LAYER and words == [str(len(layers))] and together is None:
            layers.append(tuple(regions))
            regions = []
        else:
            call = _call(name, words, places, machine, number)
            if together is not None:
                together.append(call)
            else:
                regions.append(CallRegion((call,), parallel=False))
    if regions or together is not None:
        raise damage_error(len(data.splitlines()), "the last layer does not end")
    return CallTable(tuple(layers))


NAME = re.compile(r"(bdc|gdma)_[0-9a-zA-Z_]{1,60}")
WHOLE = r"(-?[0-9]{1,10})"
MOST = 1 << 31


def _numbers(count: int, opening: str, closing: str) -> re.Pattern[str]:
    return re.compile(re.escape(opening) + ",".join([WHOLE] * count) + re.escape(closing))


Reading = Callable[[tuple[int, ...]], Arg]
KINDS: tuple[tuple[re.Pattern[str], Reading], ...] = (
    (re.compile(WHOLE), lambda n: n[0]),
    (_numbers(4, "(", ")"), lambda n: Dim4(*n)),
    (_numbers(4, "[", "]"), lambda n: Padding(*n)),
    (_numbers(2, "<", ">"), lambda n: Pair(*n)),
)
"""Words that consist of 32-bit whole numbers."""
PLACE = re.compile(r"\$([0-9]{1,9})\+([0-9]{1,15})")
LOCAL = re.compile(r"@([0-9]{1,10})")
FLOAT = re.compile(r"=([0-9a-f]{8})")


def _call(name: str, words: Sequence[str], places: Sequence[str], machine: Machine, number: int) -> Call:
    if not NAME.fullmatch(name):
        raise damage_error(number, "there is no such call")
    return Call(name, tuple(_arg(word, places, machine, number) for word in words))


def _arg(word: str, places: Sequence[str], machine: Machine, number: int) -> Arg:
    if word == "-":
        return None
    for pattern, reading in KINDS:
        found = pattern.fullmatch(word)
        values = tuple(map(int, found.groups())) if found else ()
        if values and all(-MOST <= value < MOST for value in values):
            return reading(values)
    if (found := FLOAT.fullmatch(word)) is not None:
        return float(np.uint32(int(found[1], 16)).view(np.float32))
    if (found := LOCAL.fullmatch(word)) is not None and int(found[1]) < machine.addresses:
        return Position(*divmod(int(found[1]), machine.local_bytes))
    if (found := PLACE.fullmatch(word)) is not None and int(found[1]) < len(places):
        return SystemPlace(places[int(found[1])], int(found[2]))
    raise damage_error(number, "an argument is none")


def damage_error(number: int, reason: str) -> ArtefactError:
    """The error (E502) for a line of a table."""
    return ArtefactError("E502", f"{TABLE_FILE}, line {number}: {reason}")


FIRMWARE = ("bdc_fix8b_", "gdma_fix8b_")
"""The prefixes of calls of the firmware library, outside the interface, and of what they need."""
Writer = Callable[[Position], str]
"""Writes an address of local memory as C."""


def local_address(address: Position) -> str:
    """The address as an NPU and a byte offset in its memory."""
    return f"LOCAL({address.npu}, {address.offset:#x})"


def call_text(call: Call, write: Writer = local_address) -> str:
    """A placed call as C, without the semicolon."""
    name = f"npuc_{call.name.partition('_')[2]}" if call.name.startswith(FIRMWARE) else f"okk_{call.name}"
    return f"{name}({', '.join(_argument(call, index, write) for index in range(len(call.args)))})"


def _argument(call: Call, index: int, write: Writer) -> str:
    arg = call.args[index]
    if call.name == "bdc_32bit_set_C" and index == 1:
        if isinstance(arg, float) and isnan(arg):
            return f"(x32){{.u32 = {np.float32(arg).view(np.uint32):#x}}}"
        return f"(x32){{.fp32 = {_text(arg, write)}}}"
    return _text(arg, write)


def _float(value: float) -> str:
    """A C float constant with the same bits; C99 and C++11 have no literals for non-finite values."""
    if isnan(value):
        return "(0.0f / 0.0f)"
    if isinf(value):
        return "(1.0f / 0.0f)" if value > 0 else "(-1.0f / 0.0f)"
    return f"{value!r}f"


def _text(arg: Arg, write: Writer) -> str:
    match arg:
        case None:
            return "NULL"
        case bool():
            return "true" if arg else "false"
        case float():
            return _float(arg)
        case int():
            return str(arg)
        case Position():
            return write(arg)
        case SystemPlace(region, offset):
            return f"SYSTEM({region}, {offset:#x})"
        case Dim4(n, c, h, w):
            return f"DIM4({n}, {c}, {h}, {w})"
        case Pair(h, w):
            return f"DIM2({h}, {w})"
        case Padding(top, bottom, left, right):
            return f"PADS({top}, {bottom}, {left}, {right})"
        case Local():
            raise AssertionError(f"no address for {arg}")
