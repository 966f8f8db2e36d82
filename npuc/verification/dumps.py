"""Comparison of dumps from hardware with the integer network: the first differing layer, element and instruction.

There is one dump file per tensor: its name, with `_` for every character but letters, digits, `.`, `_` and `-`,
plus `.npy`, `.bin` or `.mem`. Each holds all samples in sequence. A .npy or .bin file has the tensor's ONNX shape,
row-major; a .bin file is the little-endian elements alone. A .mem file is the bytes of the machine's memory, from
the first of the tensor to the last (Target.stored).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from npuc.errors import ArtefactError, NpucError
from npuc.evidence import foreign_evidence, read_graph
from npuc.ir import Array
from npuc.program import Program
from npuc.reference import values_of
from npuc.regions.witnesses import standing
from npuc.samples.loading import Samples
from npuc.samples.streams import npy_header
from npuc.system.budget import content
from npuc.target import Stored, Target
from npuc.text.terminal import closest
from npuc.verification.bisection import FirstDifference

Report = Mapping[str, Any]
SUFFIXES = (".npy", ".bin", ".mem")
CLOSE = 1e-4
"""Share of an output's largest value by which two libraries may differ after the last integer tensor."""
FEW = 3


def file_stem(tensor: str) -> str:
    """The name of a tensor's dump without its suffix.

    >>> file_stem("Relu__12:0/int8")
    'Relu__12_0_int8'
    """
    return re.sub(r"[^A-Za-z0-9._-]", "_", tensor)


def compare_dumps(
    folder: Path, program: Program, target: Target, samples: Samples
) -> tuple[list[dict[str, Any]], FirstDifference | None]:
    """A row for each dump (tensor, file, elements that differ), and the first difference.

    program: with its evidence. Differences are ordered by layer in the network's order, then by sample, then by
    element. Outputs, which the host computes in floating point, are compared to 1e-4. Raises ArtefactError (E501,
    E502, E508) for a folder without dumps of this program's tensors and for evidence that npuc did not write,
    NpucError (E401, E402) for a dump that cannot be read or has the wrong size.
    """
    graph = read_graph(program)
    with foreign_evidence():
        run = standing(program.evidence["reference.onnx"])
    outputs = {port.name: port.dtype for port in program.outputs}
    kinds = {**outputs, **dict.fromkeys(graph["tensors"], program.precision)}
    layers = {layer["tensor"]: order for order, layer in reversed(list(enumerate(graph["layers"])))}
    order = {name: layers.get(name, len(layers) if name in outputs else -1) for name in kinds}
    files = sorted(_files(folder, kinds), key=lambda pair: order[pair[0]])
    names = [name for name, _ in files]
    differing = dict.fromkeys(names, 0)
    first: dict[str, tuple[int, Array, Array, Array]] = {}
    dumps: dict[str, Array] = {}
    for sample, feed in enumerate(samples.feeds()):
        with foreign_evidence():
            wanted = values_of(run, names, feed)
        for name, file in files:
            right = wanted[name]
            if name not in dumps:
                shape = (len(samples), *right.shape)
                stored = _layout_of(program, target, name, file) if file.suffix == ".mem" else None
                dumps[name] = _read(file, kinds[name], shape) if stored is None else _unpack(file, stored, shape)
            found = dumps[name][sample, ...]
            wrong = ~_near(found, right) if name in outputs else found != right
            differing[name] += int(wrong.sum())
            if wrong.any():
                first.setdefault(name, (sample, right, found, wrong))
    rows = [{"tensor": name, "file": file.name, "differing": differing[name]} for name, file in files]
    name = next(iter(sorted(first, key=lambda each: order[each])), None)
    return rows, None if name is None else _difference(program, target, graph, name, first[name])


def _near(found: Array, right: Array) -> Array:
    tolerance = CLOSE * float(np.abs(right).max(initial=0))
    return np.isclose(found, right, rtol=CLOSE, atol=tolerance, equal_nan=True)


def _difference(
    program: Program, target: Target, graph: Report, name: str, found: tuple[int, Array, Array, Array]
) -> FirstDifference:
    """The first differing element of a tensor; a tensor that no layer computes is the host's."""
    layer = next((each for each in graph["layers"] if each["tensor"] == name), None)
    if layer is None:
        host: Report = {"name": name, "op": "host", "nodes": [], "tensor": name}
        return FirstDifference.of(host, *found, lambda _name, _element: None)
    return FirstDifference.of(layer, *found, partial(target.origin, program))


def _files(folder: Path, kinds: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Tensors and their dumps. Raises ArtefactError (E501, E508)."""
    tensors: dict[str, list[str]] = {}
    for name in kinds:
        tensors.setdefault(file_stem(name), []).append(name)
    usual = ", ".join(f"{stem}.bin" for stem in list(tensors)[:FEW])
    try:
        paths = sorted(each for each in folder.iterdir() if each.suffix in SUFFIXES)
    except OSError as error:
        reason, remedy = f"'{folder}' cannot be read: {error.strerror or error}", "give the folder of the dumps"
        raise ArtefactError("E501", reason, limit=f"a folder with {usual}", remedy=remedy) from None
    if not paths:
        raise ArtefactError("E508", f"'{folder}' has no dumps", limit=f"files such as {usual}")
    seen: dict[str, Path] = {}
    for path in paths:
        found = tensors.get(path.stem, [])
        if len(found) != 1:
            reason = f"'{path.name}' is the dump of no tensor.{closest(path.stem, tensors)}"
            if found:
                reason = f"'{path.name}' may be the dump of {len(found)} tensors"
            raise ArtefactError("E508", reason, limit=f"files such as {usual}")
        if found[0] in seen:
            raise ArtefactError("E508", f"'{path.name}' and '{seen[found[0]].name}' are dumps of one tensor")
        seen[found[0]] = path
        yield found[0], path


def _layout_of(program: Program, target: Target, tensor: str, path: Path) -> Stored:
    """A tensor's layout in the machine's memory. Raises ArtefactError (E508) if it is never whole in memory."""
    found = target.storage_of(program, tensor)
    if found is None:
        reason = f"'{path.name}' is to be read as the machine has it, but its memory never holds the whole tensor"
        remedy = "write the elements row-major, as .bin or .npy"
        raise ArtefactError("E508", reason, tensor=tensor, remedy=remedy)
    return found


def _unpack(path: Path, stored: Stored, shape: tuple[int, ...]) -> Array:
    """A dump of memory as (samples, *shape). Raises NpucError (E401, E402)."""
    try:
        data = np.frombuffer(content(path), np.uint8)
    except OSError as error:
        raise NpucError("E401", f"'{path}' cannot be read: {error.strerror or error}") from None
    if data.size != shape[0] * stored.bytes:
        limit = f"{shape[0]} samples of {stored.bytes} bytes: {stored.where}"
        remedy = "--data and --samples say what the hardware was given"
        raise NpucError("E402", f"'{path.name}' has {data.size} bytes", limit=limit, remedy=remedy)
    samples = [stored.unpack(each) for each in data.reshape(shape[0], stored.bytes)]
    return np.stack(samples).reshape(shape)


def _read(path: Path, kind: str, shape: tuple[int, ...]) -> Array:
    """A dump as (samples, *shape). Raises NpucError (E401, E402)."""
    dtype = np.dtype(kind).newbyteorder("<")
    try:
        data = content(path)
        values = _array(data) if path.suffix == ".npy" else np.frombuffer(data, dtype)
    except (OSError, ValueError, SyntaxError, TokenError) as error:
        raise NpucError("E401", f"'{path}' cannot be read: {error}") from None
    if values.size != prod(shape) or values.dtype != dtype:
        reason = f"'{path.name}' has {values.size} elements of {values.dtype} ({len(data)} bytes)"
        limit = f"{shape[0]} samples of {list(shape[1:])} {kind}: {prod(shape) * dtype.itemsize} bytes"
        raise NpucError("E402", reason, limit=limit, remedy="--data and --samples say what the hardware was given")
    return values.reshape(shape)


def _array(data: bytes) -> Array:
    """The elements of a .npy file, whatever size its header claims. Raises ValueError."""
    file = io.BytesIO(data)
    shape, by_column, dtype = npy_header(file)
    if dtype.hasobject:
        raise ValueError("it holds objects")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if by_column else "C")
