"""Custom operator libraries chosen by the user: onnxruntime loads them for every session of npuc.

An artefact only names the operators that it needs; nothing in it is ever loaded as code.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from npuc.errors import ArtefactError

REMEDY = "let NPUC_CUSTOM_OPS=FILE.so name the library that has them"
STANDARD = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Domains of operators that onnxruntime includes."""
_libraries: ContextVar[tuple[str, ...]] = ContextVar("custom_ops", default=())


@contextmanager
def custom_ops(files: Sequence[Path | str]) -> Generator[None]:
    """A block whose sessions have the operators of these libraries.

    Raises ArtefactError (E507) for a file that is not such a library. Their entry point is RegisterCustomOps of
    onnxruntime's C API.
    """
    given = tuple(str(Path(file).resolve()) for file in files)
    if given:
        _expect_libraries(given)
    token = _libraries.set((*_libraries.get(), *given))
    try:
        yield
    finally:
        _libraries.reset(token)


def libraries() -> tuple[str, ...]:
    """The libraries of the current block, for another process."""
    return _libraries.get()


def _expect_libraries(files: Sequence[str]) -> None:
    import onnxruntime as ort

    for file in files:
        try:
            ort.SessionOptions().register_custom_ops_library(file)
        except Exception as error:  # onnxruntime raises many unrelated types
            reason = f"onnxruntime cannot load '{file}': {error}"
            remedy = "give a shared library that exports RegisterCustomOps, built for this system"
            raise ArtefactError("E507", reason, remedy=remedy) from None


def register(options: Any) -> None:
    """Registers the operators for a session. options: onnxruntime.SessionOptions."""
    for file in _libraries.get():
        options.register_custom_ops_library(file)
