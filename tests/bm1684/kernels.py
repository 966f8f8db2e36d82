"""Kernels for tests, written as the statements between okk_initialize and okk_poll."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from npuc.targets.bm1684.simulate import running

SYSTEM = "0x100000000ULL"
HEAD = f"""\
#include <math.h>
#include <stddef.h>
#include "okk.h"
#define SYSTEM {SYSTEM}
#define NPU(q) ((q) * 524288u)
#define D4(...) (&(dim4){{__VA_ARGS__}})
#define D2(...) (&(dim2){{__VA_ARGS__}})
#define PAD(...) (&(Padding){{__VA_ARGS__}})
#define SET(address, ...) okk_gdma_32bit_set_C_local(address, (x32){{.fp32 = 0.5f}}, D4(__VA_ARGS__), NULL)
"""


def source(bodies: Mapping[str, str]) -> dict[str, bytes]:
    """The C source of kernels by name."""
    kernels = [
        f"void {name}(const void *args)\n{{\n(void)args;\nokk_initialize();\n{body}\nokk_poll();\n}}\n"
        f"OKKERNEL_FUNC_REGISTER({name})\n"
        for name, body in bodies.items()
    ]
    return {"kernels.c": "\n".join([HEAD, *kernels]).encode()}


def need_compiler() -> None:
    """Skips where there is no C compiler."""
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        pytest.skip("no C compiler (cc, gcc or clang) on the path")


def vendor_libraries() -> str:
    """The folder with the vendor's chip model; skips where there is none."""
    folder = os.environ.get(running.VARIABLE)
    if not folder or not (Path(folder) / running.LIBRARY).is_file():
        pytest.skip(f"{running.VARIABLE} does not name a folder with {running.LIBRARY}")
    need_compiler()
    return folder
