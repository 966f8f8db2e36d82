"""Attributes of NVDLA's layers besides those of the stages."""

from __future__ import annotations

from npuc.ops.attributes import Attribute

IDENTITY = (0, 1, 0)
"""The converter that changes nothing: offset, scale, shift."""
CONVERTER = Attribute[tuple[int, ...]](
    "converter", "integers", "offset, scale and shift behind the stages", IDENTITY, per="3", internal=True
)
RESULT = Attribute[str]("result", "text", "the number format of the result; empty: that of x", "", internal=True)
LE, LO = (
    Attribute[tuple[float, ...]](name, "numbers", f"where table {name.upper()} lies", (), per="4", internal=True)
    for name in ("le", "lo")
)
WINOGRAD = Attribute[bool]("winograd", "flag", "its weights are transformed", False, internal=True)
TRUNCATE = Attribute[int]("truncate", "integer", "the right shift of sums", 0, 0, internal=True)
PRA_TRUNCATE = Attribute[int](
    "pra_truncate", "integer", "the right shift of transformed data", 0, 0, internal=True
)
SHARING = Attribute[int | None](
    "sharing", "integer", "kernels that share an atom; None: as many as it has lanes", None, 1, internal=True
)
RECIPROCALS = Attribute[tuple[int, ...]](
    "reciprocals", "integers", "what sums are multiplied by, along columns and rows", per="2", internal=True
)
ZERO = Attribute[int]("zero", "integer", "the integer that stands for 0", 0, internal=True)
