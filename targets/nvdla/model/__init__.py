"""A functional model of NVDLA: runs a register program on a memory image, block by block as in the hardware."""

from npuc.targets.nvdla.model.memory import Memory
from npuc.targets.nvdla.model.nvdla import Nvdla, run

__all__ = ["Memory", "Nvdla", "run"]
