"""A functional model of NVDLA: runs a register program on a memory image, block by block as in the hardware."""

from npuc.targets.nvdla.model.memory import DeviceMemory
from npuc.targets.nvdla.model.nvdla import ChipModel, run

__all__ = ["ChipModel", "DeviceMemory", "run"]
