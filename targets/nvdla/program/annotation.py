"""Annotations of registers.bin and weights.bin: commands, and what registers point to."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npuc.inspect.annotation import MemoryAnnotation
from npuc.program import Program
from npuc.targets.nvdla.machine.commands import Write
from npuc.targets.nvdla.program.artefact import RECORD, RECORD_WORDS, Contents

ADDRESSES = 1 << 32
ROLES = {
    "CDMA.D_WEIGHT_ADDR_LOW": "weights",
    "CDMA.D_WMB_ADDR_LOW": "mask of compressed weights (WMB)",
    "CDMA.D_WGS_ADDR_LOW": "group sizes of compressed weights (WGS)",
    "BDMA.CFG_SRC_ADDR_LOW": "weights that BDMA copies",
    "SDP_RDMA.D_BS_BASE_ADDR_LOW": "operands of X1 (BS)",
    "SDP_RDMA.D_BN_BASE_ADDR_LOW": "operands of X2 (BN)",
    "SDP_RDMA.D_EW_BASE_ADDR_LOW": "operands of Y (EW)",
}
"""The purpose of the data at an address, by the address register."""


def commands(texts: list[tuple[str, list[str]]]) -> Iterator[MemoryAnnotation]:
    """The text and nodes of every record of registers.bin, in order."""
    record = RECORD_WORDS * RECORD.itemsize
    for number, (text, nodes) in enumerate(texts):
        yield MemoryAnnotation(number * record, text, tuple(nodes))


def constants(program: Program, name: str) -> Iterator[MemoryAnnotation]:
    """What begins where in a memory image, from the registers that are set to its addresses.

    Raises ArtefactError (E502) if npuc did not write the program.
    """
    contents = Contents.of(program.manifest)
    registers, given = contents.registers, contents.commands(program)
    bases = [image.address for image in contents.dram.images if image.file == name]
    for operation in contents.operations:
        for command in given[operation.start : operation.start + operation.count]:
            title = registers.at(command.address).title if isinstance(command, Write) else ""
            if not isinstance(command, Write) or not re.search(r"ADDR_LOW", title):
                continue
            for base in bases:
                offset = (command.value - base) % ADDRESSES
                if offset < len(program.files[name]):
                    yield MemoryAnnotation(
                        offset, f"{ROLES.get(title, title)} of a {operation.operation}", operation.nodes
                    )
