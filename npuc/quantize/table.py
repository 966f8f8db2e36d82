"""A table of scales as a file: what a user, or another tool, decided about tensors, and what npuc chose.

    ["conv1_relu"]                # the model's name of a tensor
    scale = 0.0234                # a real number is scale * (integer - zero_point)
    zero_point = -128             # [0]
    precision = "int8"            # [that of the program]

A file that ends in .json is NVIDIA's calibration table, {"conv1_relu": {"scale": 0.0234, "min": 0, "max": 0,
"offset": 0}}; `min` and `max` count where there is no scale, as in NVDLA's compiler.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from npuc.errors import DataError, Problem
from npuc.flag import POWER_OF_TWO
from npuc.frozen import frozen
from npuc.quantize.improvement.search import TrialNetwork
from npuc.quantize.scales.model_scales import Steps, contradiction
from npuc.storage.files import decode, toml
from npuc.system.budget import read_file
from npuc.text.escaping import toml_string
from npuc.text.terminal import closest

FORM = "a TOML table of each tensor with scale, zero_point, precision; or NVIDIA's calibration table (.json)"
LARGEST: Mapping[str, int] = {"int8": 127, "int16": 32767}
"""The largest integer of each precision that has scales."""


@frozen
class TableEntry:
    """What a table says of a tensor; precision: empty where it says none."""

    steps: Steps
    precision: str = ""


def table_of(source: str | PathLike[str] | Mapping[str, Any]) -> dict[str, TableEntry]:
    """The entries of a file, or of a mapping of the same form, by tensor.

    Raises DataError: E401 for a file that cannot be read, E406 for an entry that is none.
    """
    values = source if isinstance(source, Mapping) else _parse(Path(source))
    return {name: _entry(name, each) for name, each in values.items()}


def _parse(path: Path) -> Mapping[str, Any]:
    try:
        data = read_file(path, "E401", f"give {FORM}")
        found = json.loads(decode(data)) if path.suffix == ".json" else toml(data)
    except (ValueError, RecursionError) as error:
        raise DataError("E406", f"'{path}' cannot be read: {error}", limit=FORM) from None
    if not isinstance(found, dict):
        raise DataError("E406", f"'{path}' is no table of tensors", limit=FORM)
    return found


def _entry(name: str, values: Any) -> TableEntry:
    """An entry. Raises DataError (E406) for an unknown key or a value that no tensor can have."""
    if not isinstance(values, Mapping):
        raise _invalid(name, f"{values!r} is no table of its scale", FORM)
    known = ("scale", "zero_point", "precision", "offset", "min", "max")
    for key in values:
        if key not in known:
            raise _invalid(name, f"unknown key '{key}'.{closest(str(key), known)}", ", ".join(known))
    precision = values.get("precision", "")
    if precision not in ("", *LARGEST):
        raise _invalid(name, f"precision = {precision!r}", ", ".join(LARGEST))
    if "scale" not in values and not {"min", "max"} <= values.keys():
        raise _invalid(name, "it has neither scale nor min and max", FORM)
    low, high = (_number(name, key, values.get(key, 0)) for key in ("min", "max"))
    most = LARGEST[precision or "int8"]
    scale = _number(name, "scale", values.get("scale", max(-low, high) / most))
    if not 0 < np.float32(scale) < math.inf:
        raise _invalid(name, f"its scale is {scale:g}", "a finite number above 0, as float32")
    zero = values.get("zero_point", values.get("offset", 0))
    least = -most - 1
    if not least <= _number(name, "zero_point", zero) <= most or zero != round(zero):
        raise _invalid(name, f"its zero point is {zero!r}", f"an integer in {least}..{most}")
    return TableEntry(Steps(float(np.float32(scale)), int(zero)), precision)


def _number(name: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _invalid(name, f"{key} = {value!r}", "a finite number")
    return float(value)


def _invalid(name: str, reason: str, limit: str) -> DataError:
    return DataError("E406", reason, tensor=name, limit=limit)


def expect_of_model(table: Mapping[str, TableEntry], names: Collection[str], *precisions: str) -> None:
    """Raises DataError (E406) for every entry of no tensor that the model computes, or of another precision.

    precisions: those that the program's tensors may have.
    """
    found: list[Problem] = []
    for name, entry in table.items():
        if name not in names:
            reason = f"the model computes no such tensor.{closest(name, names)}"
            found.append(Problem("E406", reason, tensor=name, limit="inputs, and results of nodes"))
        elif entry.precision not in ("", *precisions):
            reason, limit = f"the table has it in {entry.precision}", f"{', '.join(precisions)}, as the program"
            remedy = f"--precision {entry.precision}, or --layer for the nodes that compute and read it"
            found.append(Problem("E406", reason, tensor=name, limit=limit, remedy=remedy))
    if found:
        raise DataError.of(found)


def expect_machine(
    table: Mapping[str, TableEntry],
    scales: str = "free",
    zeros: Collection[int] = range(-128, 128),
    precision: str = "int8",
    program: str = "int8",
) -> dict[str, Steps]:
    """The scales and zero points of a table, if a machine has them; scales: its rule, as in a machine file.

    precision: of the entries that are asked for; program: of those that say none. Raises DataError (E406) for what
    the machine has not.
    """
    asked = {name: each for name, each in table.items() if (each.precision or program) == precision}
    found: list[Problem] = []
    for name, entry in asked.items():
        scale, zero = entry.steps.scale, entry.steps.zero
        if scales == POWER_OF_TWO and math.frexp(scale)[0] != 0.5:
            found.append(Problem("E406", f"its scale is {scale:g}", tensor=name, limit="powers of two"))
        if zero not in zeros:
            limit = ", ".join(map(str, zeros))
            found.append(Problem("E406", f"the machine has no zero point {zero}", tensor=name, limit=limit))
    if found:
        raise DataError.of(found)
    return {name: entry.steps for name, entry in asked.items()}


def not_stored(
    table: Mapping[str, TableEntry], stored: Mapping[str, Collection[Steps]], precision: str
) -> Problem | None:
    """A warning of the entries whose tensors the program does not store as integers.

    stored: what such tensors have in the program, by the model's names; a tensor may have copies with other steps.
    Raises DataError (E406) for one that has not the steps of its entry.
    """
    for name, entry in table.items():
        if entry.steps not in stored.get(name, (entry.steps,)):
            raise contradiction(name, entry.steps, "the program cannot keep that, or has it in int16 (--layer)")
    left = [name for name in table if name not in stored]
    if not left:
        return None
    names = ", ".join(f"'{name}'" for name in left[:3]) + (", ..." if len(left) > 3 else "")
    reason = f"{len(left)} of {len(table)} tensors of the table are not stored in {precision}: {names}"
    return Problem("W305", reason, tensor=left[0])


def as_table(network: TrialNetwork, form: str) -> str:
    """The scales of the model's integer tensors, each of which has one for all channels, as a file's text.

    form: the ending of the file's name; .json: NVIDIA's.
    """
    made, model = network.quantised, network.graph.reserved
    found = {made.floats[name]: name for name in made.forms.values() if made.floats[name] in model}
    steps = {tensor: Steps(made.scales[name], made.zeros.get(name, 0)) for tensor, name in found.items()}
    if form == ".json":
        rows = {name: {"scale": s.scale, "min": 0, "max": 0, "offset": s.zero} for name, s in steps.items()}
        return json.dumps(rows, indent=4, ensure_ascii=False) + "\n"
    return "\n".join(
        f"[{toml_string(name)}]\nscale = {each.scale!r}\nzero_point = {each.zero}\n"
        f'precision = "{made.graph.tensors[found[name]].dtype}"\n'
        for name, each in steps.items()
    )
