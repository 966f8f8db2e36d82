"""The parameters of NVDLA's configurations; a TOML file overrides any of them.

Source: in-memory formats (atoms of 32 bytes, kernel groups of 32 and 16, blocks of 64 elements are those of
nv_full); the numbers of nv_small and nv_large, the CBUF and the units as in NVDLA's own configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.storage import records
from npuc.storage.records import DEMANDS, MOST, bad_machine, build_machine

MOST_BANKS = {"nv_small": 32, "nv_full": 16}
"""The most banks of the CBUF, by register map, limited by the bits of D_BANK."""
UNITS = {"nv_full": {"atom_bytes": 32, "cbuf_entry_bytes": 128}}
"""The units in bytes in which registers count strides and weight sizes, if not single bytes."""
SECOND = 1 << 48
"""The offset of the second memory's addresses where the model puts both memories in one address space."""
PAGE_BYTES = 256
"""The size of the second memory is a multiple of this; buffers begin at such addresses."""
OF_SRAM = ("sram_bytes", "sram_bytes_per_clock", "sram_latency")
"""Parameters that a machine without a second memory omits."""
PAGE = "nvdla.md"
"""The page of docs/ that describes the parameters."""
BYTES = {"int8": 1, "uint8": 1, "int16": 2, "fp16": 2}
"""Bytes of an element by precision."""
MOST_BATCHES = 32
"""The most images of a batch that the registers of every configuration allow."""
MOST_EXTENT = 8192
"""The most columns, rows or channels of a cube: 13-bit registers contain one less."""
MOST_STRIDE, MOST_KERNEL, MOST_DILATION, MOST_WINDOW_PADDING = 8, 32, 32, 31
"""The largest stride, kernel, dilation and padding of a convolution, in elements."""
SRAM_BASE = 0x5000_0000
"""Where the second memory begins, as in NVDLA's own test programs of nv_full."""


@frozen
class Machine:
    """One NVDLA. The defaults are those of nv_small."""

    name: str = "nvdla-small"
    registers: str = "nv_small"
    """The register map: nv_small (nv_large shares it) or nv_full."""
    atom_bytes: int = 8
    """Bytes of an atom of a feature cube, to which addresses and strides are aligned."""
    atomic_c: int = 8
    """Channels that a MAC cell multiplies per clock, in elements of any precision: a channel block of weights."""
    atomic_k: int = 8
    """Kernels that the MAC array computes in parallel in int8; half as many in int16 and fp16."""
    cbuf_banks: int = 32
    cbuf_entries: int = 512
    """Per bank."""
    cbuf_entry_bytes: int = 8
    int16: bool = False
    fp16: bool = False
    winograd: bool = False
    compression: bool = False
    """Whether CDMA and CSC accept compressed weights."""
    max_batches: int = 1
    """Images that a convolution takes at once (multi-batch mode): 32 on nv_full; the others have no such mode."""
    elementwise: bool = False
    """Whether SDP has the element-wise unit Y (EW)."""
    sdp_lut: bool = False
    rubik: bool = False
    bdma: bool = False
    sdp_elements: int = 1
    """Elements that SDP processes per clock."""
    pdp_elements: int = 1
    pdp_columns: int = 128
    """Columns of a line of results that PDP buffers; pooled_columns has those of several lines."""
    cdp_elements: int = 1
    rubik_bytes: int = 32
    """Bytes that RUBIK processes per clock: an atom of nv_full, an assumption, as nobody has measured it."""
    dma_bytes: int = 8
    """The width of the memory interface in bytes."""
    bytes_per_clock: float = 8.0
    """Bytes that memory delivers per clock; writes have a channel of their own, equally wide.

    If memory takes a request of dma_bytes every other clock, as in NVDLA's own harness, this is half of dma_bytes.
    """
    latency: int = 32
    """Clocks from a request to memory's first response."""
    sram_bytes: int = 0
    """Size of the second memory, used for maps between layers; 0 if there is none."""
    sram_bytes_per_clock: float = 64.0
    """bytes_per_clock of the second memory, whose interface has the same width (dma_bytes)."""
    sram_latency: int = 32
    """latency of the second memory."""
    clocks_per_write: float = 2.4
    """Clocks per register write on the configuration bus, as with the driver of NVDLA's own harness."""
    clock_mhz: int = 1000
    dram_mb_per_second: int = MOST
    """The bandwidth of memory, if that is what is known: it bounds bytes_per_clock."""
    scales: str = "free"
    """Restriction of activation scales: one of npuc.storage.records.DEMANDS."""

    @property
    def configuration(self) -> str:
        """The configuration of NVDLA that has these registers and units: nv_small, nv_large or nv_full."""
        return self.registers if self.registers == "nv_full" or not self.elementwise else "nv_large"

    @property
    def target(self) -> str:
        """The target of that configuration."""
        return self.configuration.replace("nv_", "nvdla-")

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions of the convolution pipeline."""
        return ("int8", *(["int16"] if self.int16 else []), *(["fp16"] if self.fp16 else []))

    @property
    def cbuf_bytes(self) -> int:
        """Size of the convolution buffer."""
        return self.cbuf_banks * self.bank_bytes

    @property
    def bank_bytes(self) -> int:
        """Size of one bank of the convolution buffer."""
        return self.cbuf_entries * self.cbuf_entry_bytes

    def macs_per_cycle(self, precision: str) -> int:
        """Multiply-accumulates of the array per clock."""
        return self.atomic_c * self.kernel_group(precision)

    @property
    def dram_bytes_per_cycle(self) -> float:
        """Bytes per clock from memory, bounded by its interface."""
        return min(float(self.dma_bytes), self.bytes_per_clock, self.dram_mb_per_second / self.clock_mhz)

    @property
    def sram_bytes_per_cycle(self) -> float:
        """Bytes per clock from the second memory, bounded by its interface."""
        return min(float(self.dma_bytes), self.sram_bytes_per_clock)

    @property
    def transfers(self) -> bool:
        """Whether BDMA may copy to the second memory; NVDLA's own nv_large is built without it."""
        return self.bdma and self.registers == "nv_full" and self.sram_bytes > 0

    def in_sram(self, address: int) -> bool:
        """Whether an address of a register program is in the second memory."""
        return SRAM_BASE <= address < SRAM_BASE + self.sram_bytes

    def atom_elements(self, precision: str) -> int:
        """Channels of an atom of a feature cube."""
        return self.atom_bytes // BYTES[precision]

    def kernel_group(self, precision: str) -> int:
        """Kernels of a weight group."""
        return self.atomic_k // BYTES[precision]

    def pooled_columns(self, kernel: int, stride: int) -> int:
        """The most columns of a result of PDP, by height and vertical stride of its windows.

        PDP buffers a line of results for every window open at once, and divides its buffer by a power of two.

        >>> [SMALL.pooled_columns(kernel, stride) for kernel, stride in ((2, 2), (3, 2), (3, 1), (5, 1), (7, 3))]
        [128, 64, 32, 16, 32]
        """
        return self.pdp_columns >> (-(-kernel // stride) - 1).bit_length()

    def as_dict(self) -> dict[str, Any]:
        """The values as the manifest records them; those of the second memory only if there is one."""
        values = asdict(self)
        return values if self.sram_bytes else {name: values[name] for name in values if name not in OF_SRAM}

    @classmethod
    def of(cls, values: Mapping[str, Any], origin: str) -> Machine:
        """A machine from names and values. Raises DoesNotFit (E305) for values that no NVDLA can have."""
        present = {name: value for name, value in values.items() if (name, value) != ("sram_bytes", 0)}
        machine = build_machine(cls, present, origin, PAGE)
        if machine.registers not in ("nv_small", "nv_full"):
            raise _bad(origin, f"registers = {machine.registers!r}", "nv_small, nv_full")
        if machine.scales not in DEMANDS:
            raise _bad(origin, f"scales = {machine.scales!r}", ", ".join(DEMANDS))
        for key in ("atom_bytes", "atomic_c", "atomic_k", "cbuf_banks", "cbuf_entries", "cbuf_entry_bytes"):
            number = getattr(machine, key)
            if number & (number - 1):
                raise _bad(origin, f"{key} = {number}", "a power of two")
        _expect_consistent(machine, origin)
        return machine


def _expect_consistent(machine: Machine, origin: str) -> None:
    """Raises DoesNotFit (E305) if two values contradict each other."""
    if machine.cbuf_banks < 2:
        raise _bad(origin, "cbuf_banks = 1", "2 or more: data and weights have banks of their own")
    if machine.cbuf_banks > MOST_BANKS[machine.registers]:
        most = MOST_BANKS[machine.registers]
        raise _bad(
            origin, f"cbuf_banks = {machine.cbuf_banks}", f"{most}, by the registers of {machine.registers}"
        )
    for key, unit in UNITS.get(machine.registers, {}).items():
        if getattr(machine, key) % unit:
            limit = f"a multiple of {unit}, in which the registers of {machine.registers} count"
            raise _bad(origin, f"{key} = {getattr(machine, key)}", limit)
    if machine.sram_bytes and machine.configuration == "nv_small":
        limit = "0: it has no interface to a second memory; nv_large and nv_full have one"
        raise _bad(origin, f"sram_bytes = {machine.sram_bytes} on {machine.configuration}", limit)
    if machine.sram_bytes % PAGE_BYTES:
        raise _bad(origin, f"sram_bytes = {machine.sram_bytes}", f"a multiple of {PAGE_BYTES}")
    if machine.sdp_lut and not machine.elementwise:
        raise _bad(origin, "sdp_lut without elementwise", "the tables are those of the element-wise unit")
    if not 1 <= machine.max_batches <= MOST_BATCHES:
        raise _bad(origin, f"max_batches = {machine.max_batches}", f"1..{MOST_BATCHES}: BATCHES has 5 bits")
    if machine.cbuf_entry_bytes % machine.atom_bytes:
        limit = f"a multiple of atom_bytes = {machine.atom_bytes}"
        raise _bad(origin, f"cbuf_entry_bytes = {machine.cbuf_entry_bytes}", limit)
    if (machine.int16 or machine.fp16) and (machine.atomic_k < 2 or machine.atom_bytes < 2):
        raise _bad(origin, f"atomic_k = {machine.atomic_k}", "2 or more with int16 or fp16")


def _bad(origin: str, reason: str, limit: str) -> DoesNotFit:
    return bad_machine(origin, reason, limit, PAGE)


SMALL = Machine()
LARGE = Machine(
    name="nvdla-large",
    atom_bytes=32, atomic_c=64, atomic_k=32, cbuf_banks=16, cbuf_entries=512, cbuf_entry_bytes=64,
    elementwise=True, sdp_lut=True, bdma=True,
    sdp_elements=16, pdp_elements=8, cdp_elements=8, dma_bytes=32, bytes_per_clock=20.0,
)  # fmt: skip
FULL = Machine(
    name="nvdla-full",
    registers="nv_full",
    atom_bytes=32, atomic_c=64, atomic_k=32, cbuf_banks=16, cbuf_entries=256, cbuf_entry_bytes=128,
    int16=True, fp16=True, winograd=True, compression=True, max_batches=32,
    elementwise=True, sdp_lut=True, rubik=True, bdma=True,
    sdp_elements=16, pdp_elements=8, cdp_elements=8, dma_bytes=64, bytes_per_clock=20.0, clocks_per_write=2.7,
)  # fmt: skip
CONFIGURATIONS: Mapping[str, Machine] = {each.name: each for each in (SMALL, LARGE, FULL)}


def load(target: str, name_or_file: str | None = None, scales: str | None = None) -> Machine:
    """The configuration of a target, modified by the values of a TOML file.

    scales: overrides the machine's restriction of scales. Raises DoesNotFit (E305) for an unreadable file or
    invalid values.
    """
    machine = records.load(CONFIGURATIONS[target], Machine.of, name_or_file, PAGE)
    return replace(machine, scales=scales or machine.scales)
