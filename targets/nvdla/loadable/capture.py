"""Recovers operations as descriptors from a register program, whatever compiler emitted it.

Writes go to a register file; an operation consists of its blocks' register groups at the time they are enabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from npuc.frozen import frozen
from npuc.targets.nvdla.loadable import descriptors as of
from npuc.targets.nvdla.loadable.firmware.contraction import rubik_of
from npuc.targets.nvdla.loadable.firmware.convolution import BLOCKS, convolution_of
from npuc.targets.nvdla.loadable.firmware.lines import ReadBack
from npuc.targets.nvdla.loadable.firmware.look_up import lut_of
from npuc.targets.nvdla.loadable.firmware.planar import cdp_of, own_reciprocals, pdp_of
from npuc.targets.nvdla.loadable.firmware.sdp import sdp_of
from npuc.targets.nvdla.machine.commands import Command, Write
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.machine.registers import register_map
from npuc.targets.nvdla.model.register_file import Group, RegisterFile

RDMAS = {"SDP": "SDP_RDMA", "PDP": "PDP_RDMA", "CDP": "CDP_RDMA"}


@frozen
class Captured:
    """An operation as descriptors whose cubes have no addresses yet."""

    engine: int
    op: of.Operation
    surfaces: Any
    addresses: Mapping[str, int]
    """The address of each cube in memory, by its name in the surfaces."""
    lut: of.Lut | None = None
    behind: bool = False
    """Whether it receives the result of the previous operation through the pipe."""
    reciprocals: tuple[int, int] | None = None
    """Of an average's width and height, if they are not those of its kernel."""


@frozen
class _Enabled:
    """An engine when it was enabled: position, its blocks' registers, and its tables if used."""

    at: int
    groups: Mapping[str, Group]
    lut: of.Lut | None = None


def captured(commands: Iterable[Command], machine: Machine) -> list[Captured]:
    """The operations in order, each behind the one whose result it receives.

    Raises ArtefactError (E506) for anything that descriptors cannot express.
    """
    return _joined(_enabled(commands, machine), machine)


def _enabled(commands: Iterable[Command], machine: Machine) -> Mapping[str, list[_Enabled]]:
    """The operations enabled on each engine (CONV, SDP, PDP, CDP, RBK), in order."""
    file = RegisterFile(register_map(machine.registers))
    found: dict[str, list[_Enabled]] = {"CONV": [], "SDP": [], "PDP": [], "CDP": [], "RBK": []}
    waiting: dict[str, Group] = {}
    for at, command in enumerate(commands):
        if not isinstance(command, Write):
            continue
        register = file.map.at(command.address)
        file.set(register, command.value)
        block = register.block
        if register.name == "S_LUT_ACCESS_CFG":
            fields = register.decoded(command.value)
            file.tables[block].access(fields.LUT_ADDR, fields.LUT_TABLE_ID, fields.LUT_ACCESS_TYPE)
        elif register.name == "S_LUT_ACCESS_DATA":
            file.tables[block].write(block, command.value)
        elif register.name == "D_OP_ENABLE" and command.value & 1:
            waiting[block] = file.group(block, file.producer(block))
            _collect(found, waiting, block, at, file)
    return found


def _collect(
    found: Mapping[str, list[_Enabled]], waiting: dict[str, Group], block: str, at: int, file: RegisterFile
) -> None:
    """Records an engine once all of its blocks are enabled; its RDMA is enabled first."""
    if block in found:
        names = (block, RDMAS.get(block, ""))
        groups = {name: waiting.pop(name) for name in names if name in waiting}
        uses = block == "CDP" or (block == "SDP" and _uses_table(groups["SDP"]))
        lut = lut_of(groups[block], file.tables[block]) if uses else None
        found[block].append(_Enabled(at, groups, lut))
    elif all(each in waiting for each in BLOCKS):
        found["CONV"].append(_Enabled(at, {each: waiting.pop(each) for each in BLOCKS}))


def _uses_table(group: Group) -> bool:
    return not group["EW_BYPASS"] and not group["EW_LUT_BYPASS"]


def _joined(enabled: Mapping[str, Sequence[_Enabled]], machine: Machine) -> list[Captured]:
    """The operations by pipe chains, in the order in which chains were complete."""
    atom_bytes, convolutions = machine.atom_bytes, iter(enabled["CONV"])
    pooled = [(each, _captured(of.PDP, each, pdp_of)) for each in enabled["PDP"]]
    flying = iter([pair for pair in pooled if pair[1].behind])
    chains = [(each.at, [captured]) for each, captured in pooled if not captured.behind]
    chains += [(each.at, [_captured(of.CDP, each, cdp_of)]) for each in enabled["CDP"]]
    chains += [(each.at, [_captured(of.RUBIK, each, rubik_of)]) for each in enabled["RBK"]]
    for each in enabled["SDP"]:
        sdp, at = _captured(of.SDP, each, lambda read: sdp_of(read, atom_bytes)), each.at
        chain = [sdp]
        if sdp.behind:
            first = next(convolutions)
            chain.insert(0, _captured(of.CONV, first, lambda read: convolution_of(read, atom_bytes)))
            at = max(at, first.at)
        if sdp.surfaces.result.type == of.HARDWARE:
            last, pdp = next(flying)
            chain, at = [*chain, pdp], max(at, last.at)
        chains.append((at, chain))
    return [each for _, chain in sorted(chains, key=lambda pair: pair[0]) for each in chain]


def _captured(
    engine: int, enabled: _Enabled, described: Callable[[ReadBack], tuple[of.Operation, Any]]
) -> Captured:
    read = ReadBack(enabled.groups)
    op, surfaces = described(read)
    addresses = {name.removeprefix("surfaces."): address for name, address in read.addresses.items()}
    own = own_reciprocals(read, op) if isinstance(op, of.Pdp) else None
    return Captured(engine, op, surfaces, addresses, enabled.lut, surfaces.source.type == of.HARDWARE, own)
