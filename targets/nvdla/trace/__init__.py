"""NVDLA's test programs: register writes, memory contents and expected results as text.

Two syntaxes are read: that of nv_small's verification environment (NAME.cfg with C-like calls, and .dat files of
offsets and bytes), and the older one of nv_full (input.txn with memory dumps). The first is also written, with the
CRC-32 of the results, so that programs run in NVDLA's own environment.
"""

from npuc.targets.nvdla.trace.program import CrcCheck, Trace, write_files
from npuc.targets.nvdla.trace.reading import read

__all__ = ["CrcCheck", "Trace", "read", "write_files"]
