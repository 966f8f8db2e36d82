"""The cycle model of single operations with nothing else running; pingpong models their overlap.

A convolution waits for its whole input, then computes kernel group by kernel group, stripe by stripe of output
pixels: as many clocks as there are channel blocks times taps, but no fewer than the accumulator takes to hand over
a stripe's results, which must happen before the next stripe may end. A kernel group that does not fit beside the
one before waits for room. Input and weights are fetched from memory alternately, so the input takes twice as long
while there are weights to fetch. Five numbers are fitted to clocks of the nv_small RTL, the fifth being the
machine's clocks_per_write (tests/nvdla/test_timing.py fits DRAIN again, leaving each measurement out of its own
fit). Those of other configurations scale with their widths. Memory is
described by the machine: bytes_per_clock and latency; a second memory has its own and works in parallel.
benchmarks/rtl_clocks.py compares modelled and measured clocks.

Source: the cycles measured on nv_small ("CACC needs 9 clocks per 8 outputs; stripes of 16 atoms drain").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

from npuc.targets.nvdla.machine.parameters import BYTES, Machine
from npuc.targets.nvdla.operations.operation import (
    Contraction,
    Convolution,
    Elementwise,
    Kernels,
    Normalisation,
    Operation,
    Pooling,
    Surface,
    Transfer,
    result_surface,
)

PER_RESULTS = 9
"""Clocks that the accumulator takes for the 8 results of a pixel; SDP accepts one at a time."""
DRAIN, SHORT_DRAIN = 35.0, 3.0
"""Clocks until the first results of the longest stripes are out, and of those up to 3/4 as long. Fitted."""
HANDOVER = 50
"""Clocks between two convolutions for which everything is there. Fitted to kws, ResNet-8 and vww."""
START = 100
"""Clocks from enabling to the first atom and from the last one to the interrupt, less the latency. Fitted."""
WRITES: Mapping[type, int] = {
    Convolution: 106,
    Elementwise: 42,
    Pooling: 48,
    Normalisation: 365,
    Contraction: 20,
    Transfer: 14,
}
"""Approximate number of registers written for an operation; PDP behind SDP takes half of its own."""
TABLES = 280
"""The same for the tables of EW: 331, most of them of one register, which is faster."""
ELEMENTWISE_RATE = 0.99
"""Elements per clock that SDP alone reaches, relative to its width; PDP and CDP reach theirs."""
TABLE_RATE = 4
"""Elements per clock of EW, which looks values up in tables: in every precision, on nv_full and nv_large."""


def cycles(operation: Operation, machine: Machine) -> int:
    """Clocks from enabling to interrupt, nothing else running."""
    read = read_by_memory(operation, machine)
    begin = START + latency(read, machine)
    if not isinstance(operation, Convolution):
        return ceil(begin + max(stream_cycles(operation, machine), *_clocks(read, machine)))
    kernels = operation.kernels
    exposed = fetch_cycles(operation.source, kernels, machine)
    rest = loading_cycles(operation.source, kernels, machine) - exposed
    computing, filling = array_cycles(operation, machine)
    return ceil(begin + exposed + max(computing, rest) + filling)


def _clocks(moved: tuple[int, int], machine: Machine) -> tuple[float, float]:
    """Clocks that DRAM and the second memory take to transfer these bytes."""
    return moved[0] / machine.dram_bytes_per_cycle, moved[1] / machine.sram_bytes_per_cycle


def latency(read: tuple[int, int], machine: Machine) -> int:
    """Clocks to the first response of memory: the slowest of those from which an operation reads bytes."""
    dram, second = read
    return max(machine.latency if dram else 0, machine.sram_latency if second else 0)


def moving_cycles(operation: Operation, read: tuple[int, int], machine: Machine) -> tuple[float, float]:
    """Clocks of DRAM and of the second memory, for all bytes read or all written, whichever are more."""
    written = _written_by_memory(operation, machine)
    return _clocks((max(read[0], written[0]), max(read[1], written[1])), machine)


def programming_cycles(operation: Operation, machine: Machine) -> float:
    """Clocks until all registers of an operation are written, including tables."""
    tables = operation.sdp.table if isinstance(operation, Convolution | Elementwise) else None
    flying = isinstance(operation, Convolution | Elementwise) and operation.pooling is not None
    writes = WRITES[type(operation)] + (WRITES[Pooling] // 2 if flying else 0) + (TABLES if tables else 0)
    return machine.clocks_per_write * writes


def stream_cycles(
    operation: Elementwise | Pooling | Normalisation | Contraction | Transfer, machine: Machine
) -> float:
    """Clocks of SDP, PDP, CDP or RUBIK on a map in memory, or of BDMA."""
    match operation:
        case Elementwise():
            plain = elements(operation.destination, machine) / (machine.sdp_elements * ELEMENTWISE_RATE)
            return max(plain, table_cycles(operation, machine))
        case Pooling():
            return pooling_cycles(operation, machine)
        case Normalisation():
            return cube_bytes(operation.source, machine) / machine.cdp_elements
        case Contraction():
            return cube_bytes(operation.source, machine) / machine.rubik_bytes
        case Transfer():
            return cube_bytes(operation.source, machine) / machine.dma_bytes


def pooling_cycles(operation: Pooling, machine: Machine) -> float:
    """Clocks of PDP for its input, from memory or from SDP: bytes, so that 16 bits take twice as long."""
    return cube_bytes(operation.source, machine) / machine.pdp_elements


def table_cycles(operation: Convolution | Elementwise, machine: Machine) -> float:
    """Clocks of EW for its look-ups; 0 without tables."""
    return elements(operation.destination, machine) / TABLE_RATE if operation.sdp.table else 0.0


def array_cycles(operation: Convolution, machine: Machine) -> tuple[float, float]:
    """compute_cycles with SDP's tables, if no weights are waited for."""
    computing, filling = compute_cycles(operation.kernels, operation.destination, machine)
    return max(computing, table_cycles(operation, machine)), filling


def compute_cycles(kernels: Kernels, out: Surface, machine: Machine) -> tuple[float, float]:
    """Clocks of the MAC array, at least those of the accumulator; and beside them those of the array for its first
    stripe or of the accumulator for the last.

    The array loads one CBUF entry of weights per clock while it uses the previous ones.
    """
    stripes = _stripes(kernels, out, machine)
    group = sum(count * max(products, results) for products, results, count in stripes)
    filling = min(stripes[0][0], stripes[-1][1]) if stripes else 0.0
    return ceil(kernels.count / machine.kernel_group(out.precision)) * group, filling


def _stripes(kernels: Kernels, out: Surface, machine: Machine) -> list[tuple[float, float, int]]:
    """The stripes of a kernel group: clocks of the array and of the accumulator, and their number."""
    together = machine.kernel_group(out.precision)
    products = products_per_pixel(kernels, machine)
    per_pixel = results_per_pixel(machine, out.precision)
    image = kernels.form.kind == "image"
    lengths = line_stripes(out, together) if image else stripe_lengths(out.width * out.height, together)
    loaded = together * machine.atomic_c * BYTES[out.precision] / machine.cbuf_entry_bytes
    return [
        (products * max(length, loaded), per_pixel * length + _drain_clocks(length / (2 * together)), count)
        for length, count in lengths
    ]


def _drain_clocks(length: float) -> float:
    """Clocks until the first results of a stripe are out; length: 1 for the longest stripes."""
    return SHORT_DRAIN + (DRAIN - SHORT_DRAIN) * max(4 * length - 3, 0)


def stripe_lengths(pixels: int, together: int) -> list[tuple[int, int]]:
    """The stripes of a map: their length in pixels, and the number of that length.

    Most are twice as long as a kernel group; the rest is divided so that only a lone stripe is shorter than a
    group.

    >>> stripe_lengths(64, 8), stripe_lengths(25, 8), stripe_lengths(1, 8)
    ([(16, 4)], [(8, 2), (9, 1)], [(1, 1)])
    """
    whole, rest = divmod(pixels, 2 * together)
    if rest and whole:
        whole, rest = whole - 1, rest + 2 * together
    shorter = max(ceil((rest - 2 * together) / together), 0)
    found = [(2 * together, whole), (together, shorter), (rest - shorter * together, 1 if rest else 0)]
    return [each for each in found if each[1]]


def line_stripes(out: Surface, together: int) -> list[tuple[int, int]]:
    """The stripes of a map computed from an image: none extends beyond its line."""
    whole, rest = divmod(out.width, 2 * together)
    found = [(2 * together, whole * out.height), (rest, out.height if rest else 0)]
    return [each for each in found if each[1]]


def products_per_pixel(kernels: Kernels, machine: Machine) -> float:
    """Clocks that the MAC array takes for an output pixel of a kernel group.

    Each clock processes one tap of a block of channels; of an image, a block of a line, or of the lines that
    post-extension joins. Winograd multiplies 4x4 positions of atomic_c / 16 channels per clock, for 2x2 pixels.
    """
    blocks = ceil(kernels.channels / machine.atomic_c)
    if kernels.form.kind == "winograd":
        return ceil(16 * kernels.channels / machine.atomic_c) / 4
    return blocks * ceil(kernels.height / kernels.form.lines) * kernels.width


def results_per_pixel(machine: Machine, precision: str) -> float:
    """Clocks that SDP takes for the results of a kernel group at one pixel: a wider SDP takes more at once."""
    return PER_RESULTS * machine.kernel_group(precision) / 8 / machine.sdp_elements


def least_per_pixel(machine: Machine, precision: str) -> float:
    """The fewest clocks of a pixel and kernel group, reached in the longest stripes."""
    return results_per_pixel(machine, precision) + DRAIN / (2 * machine.kernel_group(precision))


def fetch_cycles(source: Surface, kernels: Kernels, machine: Machine) -> float:
    """Clocks to fetch a whole input into the CBUF, alternating with weights if they share its memory."""
    size, speed = cube_bytes(source, machine), bytes_per_clock(source.address, machine)
    return (size + (min(size, kernels.moved_bytes) if in_same_memory(source, kernels, machine) else 0)) / speed


def loading_cycles(source: Surface, kernels: Kernels, machine: Machine) -> float:
    """Clocks to fetch a whole input and all weights into the CBUF."""
    size, speed = cube_bytes(source, machine), bytes_per_clock(source.address, machine)
    if in_same_memory(source, kernels, machine):
        return (size + kernels.moved_bytes) / speed
    return max(size / speed, kernels.moved_bytes / bytes_per_clock(kernels.address, machine))


def waiting_cycles(operation: Convolution, whole: float, machine: Machine) -> float:
    """The clocks of the array and the time that it waits for weights that do not fit their banks all at once.

    The array begins with a kernel group when it is there as a whole, the first one from the start. Its weights
    make room for others once it is computed.
    """
    kernels, held = operation.kernels, operation.banks.weights * machine.bank_bytes
    if kernels.bytes <= held:
        return whole
    count = ceil(kernels.count / machine.kernel_group(operation.source.precision))
    size, group = kernels.bytes / count, whole / count
    speed = bytes_per_clock(kernels.address, machine) * kernels.bytes / kernels.moved_bytes
    loaded, ended = 0.0, [group]
    for number in range(1, count):
        loaded += size / speed
        released = ceil(((number + 1) * size - held) / size)
        if released > 0:
            left = (number + 1) * size - held - (released - 1) * size
            loaded = max(loaded, ended[released - 1] + left / speed)
        ended.append(max(loaded, ended[-1]) + group)
    return ended[-1]


def beginning_cycles(source: Surface, kernels: Kernels, first: int, machine: Machine) -> float:
    """Clocks to fetch the first bytes of the weights, alternating with the input if that is in the same memory."""
    turns = min(first, cube_bytes(source, machine)) if in_same_memory(source, kernels, machine) else 0
    return (first + turns) / bytes_per_clock(kernels.address, machine)


def in_same_memory(source: Surface, kernels: Kernels, machine: Machine) -> bool:
    """Whether input and weights are in the same memory."""
    return machine.in_sram(source.address) == machine.in_sram(kernels.address)


def bytes_per_clock(address: int, machine: Machine) -> float:
    """The bandwidth of the memory that an address is in."""
    return machine.sram_bytes_per_cycle if machine.in_sram(address) else machine.dram_bytes_per_cycle


def moved_bytes(operation: Operation, machine: Machine) -> int:
    """Bytes moved between memory and NVDLA: input, weights, operand maps and result."""
    return sum(moved_by_memory(operation, machine))


def moved_by_memory(operation: Operation, machine: Machine) -> tuple[int, int]:
    """Bytes moved from or to DRAM, and from or to the second memory."""
    written, (dram, second) = _written_by_memory(operation, machine), read_by_memory(operation, machine)
    return dram + written[0], second + written[1]


def _written_by_memory(operation: Operation, machine: Machine) -> tuple[int, int]:
    result = result_surface(operation)
    return _by_memory(((result.address, cube_bytes(result, machine)),), machine)


def read_by_memory(operation: Operation, machine: Machine) -> tuple[int, int]:
    """Bytes that NVDLA reads from DRAM and from the second memory: input, weights, operand maps."""
    moved = [(operation.source.address, cube_bytes(operation.source, machine))]
    if isinstance(operation, Convolution):
        moved.append((operation.kernels.address, operation.kernels.moved_bytes))
    if isinstance(operation, Convolution | Elementwise):
        size = cube_bytes(operation.destination, machine)
        fetched = (unit.fetch for unit in (operation.sdp.x1, operation.sdp.x2))
        moved += [(fetch.address, size) for fetch in fetched if fetch is not None and fetch.per_element]
    return _by_memory(moved, machine)


def _by_memory(moved: Iterable[tuple[int, int]], machine: Machine) -> tuple[int, int]:
    """Bytes in DRAM and in the second memory, given addresses and sizes."""
    found = [0, 0]
    for address, size in moved:
        found[machine.in_sram(address)] += size
    return found[0], found[1]


def bound(operation: Operation, machine: Machine) -> str:
    """What limits an operation: MACs, the accumulator's results, weights, input, or elements."""
    if not isinstance(operation, Convolution):
        return "elements"
    kernels, out = operation.kernels, operation.destination
    groups = ceil(kernels.count / machine.kernel_group(out.precision))
    pixels = groups * out.width * out.height
    spent = {
        "MACs": pixels * products_per_pixel(kernels, machine),
        "results": pixels * least_per_pixel(machine, out.precision),
        "weights": kernels.moved_bytes / bytes_per_clock(kernels.address, machine),
        "input": fetch_cycles(operation.source, kernels, machine),
    }
    return max(spent, key=lambda name: spent[name])


def elements(surface: Surface, machine: Machine) -> int:
    """Elements of a cube, including those that fill up the last atom."""
    return cube_bytes(surface, machine) // BYTES[surface.precision]


def cube_bytes(surface: Surface, machine: Machine) -> int:
    """Bytes of a cube's atoms, or of an image's lines."""
    if surface.pixels:
        return sum(surface.plane_lines(machine.atom_bytes)) * surface.height
    return surface.atoms(machine.atom_bytes) * surface.line_bytes(machine.atom_bytes) * surface.height
