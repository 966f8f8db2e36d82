"""How many clocks an operation takes on NVDLA.

A convolution waits for its whole input, then computes kernel group by kernel group: for every output pixel as many
clocks as there are blocks of channels times taps, but no fewer than the accumulator takes to hand over its
results. Three numbers are fitted to cycles measured on the nv_small RTL (tests/nvdla/test_timing.py fits them
again, each measurement left out of its own fit); those of other configurations scale with their widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from npuc.targets.nvdla.machine import BYTES, Machine
from npuc.targets.nvdla.operations import (
    Convolution,
    Elementwise,
    Kernels,
    Normalisation,
    Operation,
    Pooling,
    Surface,
)

LEAST_PER_PIXEL = 11.0
"""Clocks per output pixel and kernel group, at least."""
PER_FETCHED_BYTE = 0.296
"""Clocks that a byte of input delays the first product, at 8 bytes a clock: latency and the path into the CBUF."""
PER_GROUP = 108.5
"""Clocks from one kernel group to the next: the stripe drains, weights are loaded."""
FITTED_DMA_BYTES = 8
ELEMENTWISE_RATE = 0.99
"""Share of its elements per clock that SDP alone reaches."""
POOLING_RATE = 0.86
"""The same for PDP, between 0.75 and 0.98."""
LATENCY = 300
"""Clocks until the first atom of SDP or PDP alone comes back from memory."""


def cycles(operation: Operation, machine: Machine) -> int:
    """Clocks from enabling to interrupt, nothing else running."""
    match operation:
        case Convolution():
            exposed = fetch_cycles(operation.source, machine)
            work = exposed + compute_cycles(operation.kernels, operation.destination, machine)
        case Elementwise():
            work = LATENCY + elements(operation.destination, machine) / (machine.sdp_elements * ELEMENTWISE_RATE)
        case Pooling():
            work = LATENCY + elements(operation.source, machine) / (machine.pdp_elements * POOLING_RATE)
        case Normalisation():
            work = LATENCY + elements(operation.source, machine) / machine.cdp_elements
    return ceil(work)


def ends(operations: Sequence[tuple[Operation, int]], machine: Machine) -> list[float]:
    """When each operation of a program ends, in clocks from its start.

    operations: each with how many before it have ended when it is enabled. The input of a convolution is
    fetched while the one before computes, if the CBUF holds both; the MAC array then goes on without a pause.
    """
    found: list[float] = []
    fetched = 0.0
    before: Convolution | None = None
    for operation, ended in operations:
        enabled = found[ended - 1] if ended else 0.0
        last = found[-1] if found else 0.0
        if not isinstance(operation, Convolution):
            found.append(max(last, enabled) + cycles(operation, machine))
            continue
        room = before is None or _together(before, operation, machine)
        start = max(enabled, fetched if room else last)
        fetched = start + fetch_cycles(operation.source, machine)
        computed = compute_cycles(operation.kernels, operation.destination, machine)
        found.append(max(last, fetched) + computed)
        before = operation
    return found


def _together(first: Convolution, second: Convolution, machine: Machine) -> bool:
    """Whether the CBUF holds the input of both beside the weights of either."""
    data = first.banks.data + second.banks.data
    return data + max(first.banks.beside_data, second.banks.beside_data) <= machine.cbuf_banks


def compute_cycles(kernels: Kernels, out: Surface, machine: Machine) -> float:
    """Clocks of the MAC array, at least those of the accumulator and of the weights' way into the CBUF."""
    groups = ceil(kernels.count / machine.kernel_group(out.precision))
    clocks = max(products_per_pixel(kernels, machine), least_per_pixel(machine, out.precision))
    work = groups * (out.width * out.height * clocks + PER_GROUP)
    return max(work, kernels.moved_bytes / machine.dram_bytes_per_cycle)


def products_per_pixel(kernels: Kernels, machine: Machine) -> float:
    """Clocks that the MAC array takes for an output pixel of a kernel group.

    A clock is a block of channels times a tap; of an image a block of a line, or of the lines that post-extension
    joins. Winograd multiplies 4x4 positions of atomic_c / 16 channels in a clock, for 2x2 pixels.
    """
    blocks = ceil(kernels.channels / machine.atomic_c)
    if kernels.form.kind == "winograd":
        return ceil(16 * kernels.channels / machine.atomic_c) / 4
    return blocks * ceil(kernels.height / kernels.form.lines) * kernels.width


def fetch_cycles(source: Surface, machine: Machine) -> float:
    """Clocks to bring a whole input into the CBUF."""
    return cube_bytes(source, machine) * PER_FETCHED_BYTE * FITTED_DMA_BYTES / machine.dram_bytes_per_cycle


def least_per_pixel(machine: Machine, precision: str) -> float:
    """Clocks that SDP takes for the results of a kernel group at one pixel: a wider SDP takes more at once."""
    return LEAST_PER_PIXEL * machine.kernel_group(precision) / 8 / machine.sdp_elements


def ideal_cycles(operation: Operation, machine: Machine) -> float:
    """Clocks if every multiplier always worked."""
    if not isinstance(operation, Convolution):
        return 0.0
    kernels, out = operation.kernels, operation.destination
    products = kernels.count * kernels.height * kernels.width * kernels.channels * out.width * out.height
    return products / machine.macs_per_cycle(out.precision)


def moved_bytes(operation: Operation, machine: Machine) -> int:
    """Bytes between memory and NVDLA: input, weights, maps as operands and result."""
    moved = cube_bytes(operation.source, machine) + cube_bytes(operation.destination, machine)
    if isinstance(operation, Convolution):
        moved += operation.kernels.moved_bytes
    if not isinstance(operation, Pooling | Normalisation):
        units = (operation.sdp.x1, operation.sdp.x2)
        maps = sum(unit.fetch is not None and unit.fetch.per_element for unit in units)
        moved += maps * cube_bytes(operation.destination, machine)
    return moved


def bound(operation: Operation, machine: Machine) -> str:
    """What an operation spends most of its time on: MACs, the accumulator's results, weights, input, elements."""
    if not isinstance(operation, Convolution):
        return "elements"
    kernels, out = operation.kernels, operation.destination
    groups = ceil(kernels.count / machine.kernel_group(out.precision))
    pixels = groups * out.width * out.height
    spent = {
        "MACs": pixels * products_per_pixel(kernels, machine),
        "results": pixels * least_per_pixel(machine, out.precision),
        "weights": kernels.moved_bytes / machine.dram_bytes_per_cycle,
        "input": fetch_cycles(operation.source, machine),
    }
    return max(spent, key=lambda name: spent[name])


def elements(surface: Surface, machine: Machine) -> int:
    """Elements of a cube, those that fill the last atom included."""
    return cube_bytes(surface, machine) // BYTES[surface.precision]


def cube_bytes(surface: Surface, machine: Machine) -> int:
    """Bytes of a cube's atoms, or of an image's lines."""
    return surface.atoms(machine.atom_bytes) * surface.line_bytes(machine.atom_bytes) * surface.height
