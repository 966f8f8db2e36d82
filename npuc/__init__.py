"""npuc compiles ONNX models into programs for neural processing units.

import npuc
program = npuc.compile("model.onnx", target="easynpu")
outputs = program.run(x)
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes a tenth of a command's start, in which Ctrl-C is not npuc's yet
    from typing import Any

    from npuc.api import Compiled as Compiled
    from npuc.api import CompiledVariants as CompiledVariants
    from npuc.api import Session as Session
    from npuc.api import accuracy as accuracy
    from npuc.api import check as check
    from npuc.api import compile as compile
    from npuc.api import compile_variants as compile_variants
    from npuc.api import load as load
    from npuc.api import verify as verify
    from npuc.onnx_backend import backend as backend

__version__ = "0.2.0"

# onnxruntime 1.29 and newer send telemetry about every model that they open unless this is set before the import.
# The telemetry thread takes locks at times, and a confined copy of the process would wait for them for ever.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# In a checkout passes/, targets/ and models/ are beside this package; in a wheel they are inside it.
_checkout = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if os.path.isfile(os.path.join(_checkout, "pyproject.toml")):
    __path__.append(_checkout)

_COMMANDS = ("accuracy", "check", "compile", "compile_variants", "load", "verify")
_HOME = {
    **dict.fromkeys((*_COMMANDS, "Compiled", "CompiledVariants", "Session"), "npuc.api"),
    "backend": "npuc.onnx_backend",
}


def __getattr__(name: str) -> Any:
    """The package's public names and modules, imported on access so that starting npuc is cheap."""
    from importlib import import_module

    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    try:
        if not name.startswith("_"):
            return import_module(f"npuc.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"npuc.{name}":
            raise
    raise AttributeError(f"module 'npuc' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
