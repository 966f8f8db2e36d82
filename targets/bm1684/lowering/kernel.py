"""The kernel: OKK calls with static addresses, in regions in which GDMA and BDC run in parallel.

Lowering emits symbolic calls, whose operands name local-memory buffers; the planner assigns every buffer an
address, and `Call.place` puts the addresses into the calls, which emission then writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace

from npuc.frozen import frozen
from npuc.host.allocation import Buffer, lower_bound
from npuc.targets.bm1684.machine.local_memory import Dim4, Position


@frozen
class Local:
    """A place in a local-memory buffer: the NPU that a tensor starts at, and the byte offset in the buffer."""

    buffer: str
    npu: int = 0
    offset: int = 0

    def shift(self, offset: int) -> Local:
        """The place `offset` bytes further into the buffer, at the same NPU."""
        return replace(self, offset=self.offset + offset)


@frozen
class SystemPlace:
    """A place in a region of system memory: the byte offset from the region's start."""

    region: str
    offset: int = 0


@frozen
class Pair:
    """A dim2: stride or dilation."""

    h: int
    w: int


@frozen
class Padding:
    """The rows and columns of padding around an image."""

    top: int
    bottom: int
    left: int
    right: int


Arg = Local | Position | SystemPlace | Dim4 | Pair | Padding | int | float | bool | None


@frozen
class Call:
    """One call of the interface: its name without `okk_`, its arguments in order."""

    name: str
    args: tuple[Arg, ...]
    reads: tuple[str, ...] = ()
    """The local-memory buffers that it reads."""
    writes: str | None = None
    """The buffer that it writes."""

    @property
    def on_gdma(self) -> bool:
        """Whether the GDMA runs it."""
        return self.name.startswith("gdma_")

    @property
    def buffers(self) -> tuple[str, ...]:
        """Every buffer that it reads or writes."""
        return (*self.reads, self.writes) if self.writes else self.reads

    def place(self, addresses: Mapping[str, int]) -> Call:
        """The call with an address for every operand."""

        def place(arg: Arg) -> Arg:
            return Position(arg.npu, addresses[arg.buffer] + arg.offset) if isinstance(arg, Local) else arg

        return replace(self, args=tuple(place(arg) for arg in self.args))


def call(name: str, *args: Arg, adds: bool = False) -> Call:
    """A call that writes its first argument and reads the others; adds: it adds to what the first one holds."""
    to, *others = (arg.buffer if isinstance(arg, Local) else None for arg in args)
    reads = dict.fromkeys(name for name in (*others, to if adds else None) if name is not None)
    return Call(name, args, tuple(reads), to)


@frozen
class Load:
    """Constant or input data that a later step reads; `call` returns the calls for columns [first, last)."""

    buffer: str
    columns: int
    call: Callable[[int, int], tuple[Call, ...]] = field(repr=False)


@frozen
class Step:
    """Calls of one layer that run in sequence on one engine."""

    calls: tuple[Call, ...]
    node: str
    """The tensor that it computes."""
    sources: tuple[str, ...] = ()
    """The ONNX nodes that it computes."""
    op: str = ""

    @property
    def on_gdma(self) -> bool:
        """Whether it moves data."""
        return self.calls[0].on_gdma


@frozen
class ParallelRegion:
    """Calls of both engines that run in parallel; no call of one engine touches what the other writes."""

    gdma: tuple[Call, ...]
    bdc: tuple[Call, ...]
    step: int
    """The step that it belongs to."""
    owners: tuple[Step, ...] = ()
    """For every GDMA call, the step that it serves: loads and moves run beside other steps."""


@frozen
class LocalPlace:
    """Bytes [start, end) of every NPU, occupied by a buffer in the regions of steps first..last."""

    buffer: str
    start: int
    end: int
    first: int
    last: int


@frozen
class Kernel:
    """The planned program: regions in order, the steps they execute, and the places of all buffers."""

    regions: tuple[ParallelRegion, ...]
    steps: tuple[Step, ...]
    places: tuple[LocalPlace, ...]
    """One per buffer, in the order of their placement."""

    @property
    def peak(self) -> int:
        """The most bytes of local memory in use at once, per NPU."""
        sizes = (Buffer(each.buffer, each.end - each.start, each.first, each.last) for each in self.places)
        return lower_bound(list(sizes))
