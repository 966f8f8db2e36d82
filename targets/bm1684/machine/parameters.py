"""The parameters of a BM1684, any of which a TOML file overrides.

Source: the OKKernel programming interface and tensor layouts of BM1684.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from npuc.frozen import frozen
from npuc.storage import records
from npuc.storage.records import bad_machine, build_machine

PAGE = "bm1684.md"
"""A page of docs/."""
ADDRESSES = 1 << 32
"""A local_addr_t has 32 bits."""
SYSTEM_START = 1 << 32
"""The system_addr_t of the first byte of global memory."""
SYSTEM_BYTES = 1 << 32
"""Bytes of system memory that a program may use."""


@frozen
class Machine:
    """X NPUs with S bytes of local memory each, system memory, one GDMA and one BDC engine."""

    name: str = "default"
    npus: int = 64
    """X of the document."""
    local_bytes: int = 524_288
    """S of the document: local memory of one NPU."""
    banks: int = 8
    """Banks of one NPU's local memory."""
    l2_bytes: int = 2_482_176
    """L2 SRAM that a kernel may use."""
    lanes: int = 16
    """fp32 elements that one NPU computes in a cycle."""
    input_channels: int = 2
    """Input channels that a convolution multiplies in a cycle (hence the 2IC mode of its weights)."""
    mhz: int = 550
    dram_mb_per_second: int = 29_353
    """The GDMA's bandwidth between system and local memory (measured on the vendor's chip model)."""

    @property
    def bank_bytes(self) -> int:
        """Bytes of one bank of one NPU."""
        return self.local_bytes // self.banks

    @property
    def macs_per_cycle(self) -> int:
        """Multiply-accumulates per cycle of all NPUs in a convolution."""
        return self.npus * self.lanes * self.input_channels

    @property
    def fixed_macs_per_cycle(self) -> int:
        """The same for 8 bits, with four images and four input channels per lane."""
        return self.npus * self.lanes * 16

    @property
    def dram_bytes_per_cycle(self) -> float:
        """Bytes that the GDMA moves to or from system memory in a cycle."""
        return self.dram_mb_per_second / self.mhz

    @property
    def addresses(self) -> int:
        """X * S: the number of addresses of local memory."""
        return self.npus * self.local_bytes

    def as_dict(self) -> dict[str, Any]:
        """The values as the manifest records them."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any], origin: str) -> Machine:
        """A machine from names and values. Raises DoesNotFit (E305) for invalid ones."""
        machine = build_machine(cls, values, origin, PAGE)
        if machine.local_bytes % (128 * machine.banks):
            sizes = f"local_bytes = {machine.local_bytes} in {machine.banks} banks"
            raise bad_machine(origin, sizes, "every bank a multiple of 128 bytes", PAGE)
        if machine.addresses > ADDRESSES:
            size = f"npus * local_bytes = {machine.addresses}"
            raise bad_machine(origin, size, f"{ADDRESSES}: addresses have 32 bits", PAGE)
        return machine


def load(name_or_file: str | None = None) -> Machine:
    """The default machine, or one from a TOML file. Raises DoesNotFit (E305) for an invalid one."""
    return records.load(Machine(), Machine.of, name_or_file, PAGE)
