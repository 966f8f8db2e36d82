"""Calls as C text, for listings and the exported kernel."""

from __future__ import annotations

from collections.abc import Callable
from math import isinf, isnan

from npuc.targets.bm1684.lowering.kernel import Arg, Call, Local, Padding, Pair, SystemPlace
from npuc.targets.bm1684.machine.local_memory import Dim4, Position

FIRMWARE = ("bdc_fix8b_", "gdma_fix8b_")
"""The prefixes of calls of the firmware library, outside the interface, and of what they need."""


Writer = Callable[[Position], str]
"""Writes an address of local memory as C."""


def local(address: Position) -> str:
    """The address as an NPU and a byte offset in its memory."""
    return f"LOCAL({address.npu}, {address.offset:#x})"


def call_text(call: Call, write: Writer = local) -> str:
    """A placed call as C, without the semicolon."""
    name = f"npuc_{call.name.partition('_')[2]}" if call.name.startswith(FIRMWARE) else f"okk_{call.name}"
    return f"{name}({', '.join(_argument(call, index, write) for index in range(len(call.args)))})"


def _argument(call: Call, index: int, write: Writer) -> str:
    arg = call.args[index]
    if call.name == "bdc_32bit_set_C" and index == 1:
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
