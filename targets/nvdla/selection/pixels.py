"""Maps of one pixel, which SDP treats as packed, atom after atom, whatever their line and surface strides.

A map that is not packed goes through SDP as a column instead: each surface is a line of one atom. A convolution
whose result is not packed is computed one atom of kernels at a time, as a single surface needs no stride.

Source: Arithmetic, SDP: cubes of 1 x 1; seen on the RTL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.operations.operation import Convolution, Elementwise, Fetch, Sdp, Surface

COMPONENTS = {"ALU": 1, "MUL": 1, "BOTH": 2}


def misplaced(operation: Convolution | Elementwise, machine: Machine) -> bool:
    """Whether SDP would read or write a one-pixel map elsewhere than its strides say."""
    result = operation.destination
    batches = operation.batches if isinstance(operation, Convolution) else 1
    cube = result.share(batches)
    surfaces = cube.atoms(machine.atom_bytes)
    if (cube.width, cube.height) != (1, 1) or surfaces == 1:
        return False
    strides = [(each.surface_stride, _operand_atom(each, result, machine)) for each in _fetches(operation.sdp)]
    if isinstance(operation, Elementwise):
        strides.append((operation.source.surface_stride, machine.atom_bytes))
    if batches == 1 and operation.pooling is None:
        strides.append((result.surface_stride, machine.atom_bytes))
    return any(found != packed for found, packed in strides)


def as_column(operation: Elementwise, machine: Machine) -> Elementwise:
    """The same operation on a column with one pixel for each surface of the map."""
    surfaces = operation.destination.atoms(machine.atom_bytes)
    source, result = (_column(each, surfaces, machine) for each in (operation.source, operation.destination))
    units = [
        replace(each, fetch=each.fetch and _column_of(each.fetch, operation.destination, machine))
        for each in (operation.sdp.x1, operation.sdp.x2)
    ]
    return Elementwise(source, replace(operation.sdp, x1=units[0], x2=units[1]), result)


def _fetches(sdp: Sdp) -> Iterator[Fetch]:
    """The operands that have strides."""
    return (each.fetch for each in (sdp.x1, sdp.x2) if each.fetch is not None and each.fetch.per_element)


def _operand_atom(fetch: Fetch, result: Surface, machine: Machine) -> int:
    """Bytes of an operand for one atom of the map."""
    return machine.atom_elements(result.precision) * COMPONENTS[fetch.use] * fetch.component_bytes


def _column(surface: Surface, surfaces: int, machine: Machine) -> Surface:
    lanes, stride = machine.atom_elements(surface.precision), surface.surface_stride
    return replace(surface, height=surfaces, channels=lanes, line_stride=stride, surface_stride=surfaces * stride)


def _column_of(fetch: Fetch, result: Surface, machine: Machine) -> Fetch:
    """The operand as a column; one per channel then has an element for every lane of the column."""
    stride = fetch.surface_stride if fetch.per_element else _operand_atom(fetch, result, machine)
    surfaces = result.atoms(machine.atom_bytes)
    return replace(fetch, per_element=True, line_stride=stride, surface_stride=surfaces * stride)
