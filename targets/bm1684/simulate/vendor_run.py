"""The child process of `vendor`: loads the vendor's libraries and runs one kernel on them.

It imports nothing of npuc, and exits without running the libraries' finalisers, which fail in such a process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

ROOM = 1 << 20
"""Bytes of global memory in addition to the image."""
CYCLES = 3
"""The index of the cycles among the command counters."""


def main(
    log: str, model: str, kernels: str, kernel: str, arguments: str, memory: str, cycles: str, start: str
) -> None:
    """Runs a kernel, or the table in a file if its name begins with @.

    The memory image is changed in its file; the cycles are written to the file `cycles`.
    """
    ctypes.CDLL(log, mode=ctypes.RTLD_GLOBAL)
    chip = ctypes.CDLL(model, mode=ctypes.RTLD_GLOBAL)
    image = Path(memory).read_bytes()
    chip.cmodel_init(0, ctypes.c_uint64(len(image) + ROOM))
    chip.set_cur_nodechip_idx(0)
    chip.cmodel_nodechip_runtime_init(0)
    chip.okk_global_mem_addr.restype = ctypes.c_void_p
    at = chip.okk_global_mem_addr(ctypes.c_uint64(int(start)))
    ctypes.memmove(at, image, len(image))
    given, loaded = Path(arguments).read_bytes(), ctypes.CDLL(kernels)
    if kernel.startswith("@"):
        loaded.okk_table(kernel[1:].encode(), given, len(given) // 8)
    else:
        getattr(loaded, kernel)(given)
    counters = (ctypes.c_uint32 * 64)()
    chip.okk_get_id_node(counters)
    Path(memory).write_bytes(ctypes.string_at(at, len(image)))
    Path(cycles).write_text(str(counters[CYCLES]), encoding="ascii")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
