"""Small register programs for tests, written by hand as a driver would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from npuc.ir import Array
from npuc.targets.nvdla.formats import feature, weights
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.machine.registers import Command, Wait, Write, register_map
from npuc.targets.nvdla.model import DeviceMemory

SOURCE, WEIGHTS, OPERAND, RESULT = 0x80000000, 0x81000000, 0x82000000, 0x83000000
SIZE = 1 << 20
Fields = Mapping[str, Mapping[str, int | str]]


def writes(machine: Machine, registers: Fields) -> list[Command]:
    """Writes of registers by name, their fields by number or name; OP_EN last, in the order given."""
    known = register_map(machine.registers)
    return [Write(known[name].address, known[name].value(**fields)) for name, fields in registers.items()]


def memory(contents: Mapping[int, bytes | Array] | None = None) -> DeviceMemory:
    """Zeros at the four places, and what is put there."""
    made = DeviceMemory((each, np.zeros(SIZE, np.uint8)) for each in (SOURCE, WEIGHTS, OPERAND, RESULT))
    for address, data in (contents or {}).items():
        made.write(address, data)
    return made


def stride(machine: Machine, value: int) -> int:
    """A size in bytes as the strides and addresses of this configuration count it."""
    return value // 32 if machine.registers == "nv_full" else value


@dataclass(frozen=True)
class Convolution:
    """A direct convolution of packed cubes, stride 1, without padding; the sums are clipped to the precision."""

    machine: Machine
    shape: tuple[int, int, int]
    """C, H, W."""
    kernel: tuple[int, int, int]
    """K, R, S."""
    precision: str = "int8"
    group: int = 0
    source: int = SOURCE
    result: int = RESULT
    changed: Fields = field(default_factory=dict[str, dict[str, int | str]])
    """Fields of registers that differ from a correct program."""

    @property
    def out(self) -> tuple[int, int, int]:
        """K, Ho, Wo."""
        (_, H, W), (K, R, S) = self.shape, self.kernel
        return K, H - R + 1, W - S + 1

    def cube(self, shape: tuple[int, int, int]) -> feature.Cube:
        """A packed cube."""
        return feature.Cube.of(self.machine, shape[2], shape[1], shape[0], self.precision)

    def contents(self, x: Array, w: Array) -> dict[int, bytes | Array]:
        """Data (C, H, W) and weights (K, C, R, S) where the program expects them."""
        order = weights.direct_order(self.machine, w.shape, self.precision)
        return {self.source: feature.pack(self.cube(self.shape), x), WEIGHTS: weights.pack(self.machine, order, w)}

    def read(self, after: DeviceMemory) -> Array:
        """The result (K, Ho, Wo)."""
        cube = self.cube(self.out)
        return feature.unpack(cube, np.frombuffer(after.read(self.result, cube.bytes), np.uint8))

    def commands(
        self, *, enable: tuple[str, ...] = ("SDP", "CACC", "CMAC_A", "CMAC_B", "CSC", "CDMA")
    ) -> list[Command]:
        """The register writes."""
        registers = {f"{each}.S_POINTER": {"PRODUCER": self.group} for each in (*enable, "SDP_RDMA")}
        registers |= {**self._cdma(), **self._csc(), **self._rest()}
        for name, fields in self.changed.items():
            registers[name] = {**registers.get(name, {}), **fields}
        registers |= {f"{each}.D_OP_ENABLE": {"OP_EN": 1} for each in enable}
        return writes(self.machine, registers)

    def wait(self) -> Command:
        """The end of the layer."""
        return Wait("SDP", self.group)

    def _mode(self) -> dict[str, int | str]:
        kind = self.precision.upper()
        return {"CONV_MODE": "DIRECT", "IN_PRECISION": kind, "PROC_PRECISION": kind}

    def _weight_bytes(self) -> tuple[int, int]:
        (C, _, _), (K, R, S) = self.shape, self.kernel
        each = C * R * S * (1 if self.precision == "int8" else 2)
        unit = 128 if self.machine.registers == "nv_full" else 1
        return each, -(-K * each // max(self.machine.cbuf_entry_bytes, 1)) * self.machine.cbuf_entry_bytes // unit

    def _entries(self) -> int:
        from npuc.targets.nvdla.model.cdma import entries_per_slice

        return entries_per_slice(self.machine, self.shape[2], self.shape[0], self.precision) - 1

    def _cdma(self) -> dict[str, dict[str, int | str]]:
        (C, H, W), (K, _, _) = self.shape, self.kernel
        cube = self.cube(self.shape)
        each, total = self._weight_bytes()
        half = self.machine.cbuf_banks // 2 - 1
        return {
            "CDMA.D_MISC_CFG": self._mode(),
            "CDMA.D_DATAIN_FORMAT": {"DATAIN_FORMAT": "FEATURE"},
            "CDMA.D_DATAIN_SIZE_0": {"DATAIN_WIDTH": W - 1, "DATAIN_HEIGHT": H - 1},
            "CDMA.D_DATAIN_SIZE_1": {"DATAIN_CHANNEL": C - 1},
            "CDMA.D_DAIN_ADDR_LOW_0": {"DATAIN_ADDR_LOW_0": stride(self.machine, self.source)},
            "CDMA.D_LINE_STRIDE": {"LINE_STRIDE": stride(self.machine, cube.line_stride)},
            "CDMA.D_SURF_STRIDE": {"SURF_STRIDE": stride(self.machine, cube.surface_stride)},
            "CDMA.D_ENTRY_PER_SLICE": {"ENTRIES": self._entries()},
            "CDMA.D_WEIGHT_SIZE_0": {"BYTE_PER_KERNEL": each - 1},
            "CDMA.D_WEIGHT_SIZE_1": {"WEIGHT_KERNEL": K - 1},
            "CDMA.D_WEIGHT_ADDR_LOW": {"WEIGHT_ADDR_LOW": stride(self.machine, WEIGHTS)},
            "CDMA.D_WEIGHT_BYTES": {"WEIGHT_BYTES": total},
            "CDMA.D_BANK": {"DATA_BANK": half, "WEIGHT_BANK": half},
        }

    def _csc(self) -> dict[str, dict[str, int | str]]:
        (C, H, W), (K, R, S), (_, Ho, Wo) = self.shape, self.kernel, self.out
        half = self.machine.cbuf_banks // 2 - 1
        return {
            "CSC.D_MISC_CFG": self._mode(),
            "CSC.D_DATAIN_SIZE_EXT_0": {"DATAIN_WIDTH_EXT": W - 1, "DATAIN_HEIGHT_EXT": H - 1},
            "CSC.D_DATAIN_SIZE_EXT_1": {"DATAIN_CHANNEL_EXT": C - 1},
            "CSC.D_ENTRY_PER_SLICE": {"ENTRIES": self._entries()},
            "CSC.D_WEIGHT_SIZE_EXT_0": {"WEIGHT_WIDTH_EXT": S - 1, "WEIGHT_HEIGHT_EXT": R - 1},
            "CSC.D_WEIGHT_SIZE_EXT_1": {"WEIGHT_CHANNEL_EXT": C - 1, "WEIGHT_KERNEL": K - 1},
            "CSC.D_DATAOUT_SIZE_0": {"DATAOUT_WIDTH": Wo - 1, "DATAOUT_HEIGHT": Ho - 1},
            "CSC.D_DATAOUT_SIZE_1": {"DATAOUT_CHANNEL": K - 1},
            "CSC.D_BANK": {"DATA_BANK": half, "WEIGHT_BANK": half},
        }

    def _rest(self) -> dict[str, dict[str, int | str]]:
        K, Ho, Wo = self.out
        kind = self.precision.upper()
        cube = self.cube(self.out)
        return {
            "CMAC_A.D_MISC_CFG": {"PROC_PRECISION": kind},
            "CMAC_B.D_MISC_CFG": {"PROC_PRECISION": kind},
            "CACC.D_MISC_CFG": {"PROC_PRECISION": kind},
            "CACC.D_DATAOUT_SIZE_0": {"DATAOUT_WIDTH": Wo - 1, "DATAOUT_HEIGHT": Ho - 1},
            "CACC.D_DATAOUT_SIZE_1": {"DATAOUT_CHANNEL": K - 1},
            "SDP.D_DATA_CUBE_WIDTH": {"WIDTH": Wo - 1},
            "SDP.D_DATA_CUBE_HEIGHT": {"HEIGHT": Ho - 1},
            "SDP.D_DATA_CUBE_CHANNEL": {"CHANNEL": K - 1},
            "SDP.D_DST_BASE_ADDR_LOW": {"DST_BASE_ADDR_LOW": stride(self.machine, self.result)},
            "SDP.D_DST_LINE_STRIDE": {"DST_LINE_STRIDE": stride(self.machine, cube.line_stride)},
            "SDP.D_DST_SURFACE_STRIDE": {"DST_SURFACE_STRIDE": stride(self.machine, cube.surface_stride)},
            "SDP.D_DP_BS_CFG": {"BS_BYPASS": 1},
            "SDP.D_DP_BN_CFG": {"BN_BYPASS": 1},
            "SDP.D_DP_EW_CFG": {"EW_BYPASS": 1},
            "SDP.D_FEATURE_MODE_CFG": {"FLYING_MODE": "ON"},
            "SDP.D_DATA_FORMAT": {"PROC_PRECISION": kind, "OUT_PRECISION": kind},
            "SDP.D_CVT_SCALE": {"CVT_SCALE": 1},
        }
