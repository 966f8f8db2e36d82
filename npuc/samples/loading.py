"""Samples from .npz files and pictures, and synthetic samples where no data is given.

Array keys are input names; a single input may also be called `x`. Axis 0 is the sample axis. Labels are `y` unless
an input has that name; other keys are ignored. float16, float64 and integer arrays are cast to the input's type.
Strings are Unicode arrays. Values that do not fit one array (sequences, tensors whose shape varies) take several
keys: see npuc.samples.structured.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from npuc.errors import DataError
from npuc.frozen import frozen
from npuc.images.description import Description
from npuc.images.pictures import is_picture, pictures
from npuc.ir import Array, TensorType
from npuc.program import OBJECT, STRING
from npuc.samples import streams, structured
from npuc.samples.sources import Source, sources_of
from npuc.samples.streams import (
    DAMAGED,
    Batches,
    InMemory,
    Joined,
    Member,
    RowRange,
    Rows,
    Streamed,
    member,
    rows_of,
)
from npuc.storage.files import replacing
from npuc.system.budget import budget, expect_room, fits, limits, take_data

SYNTHETIC_SAMPLES = 8
SPREAD = 2.5
"""Limits that a model gives an input are so many deviations from the mean of its synthetic values."""
COPIES = 8
"""Copies of a synthetic sample for which memory must suffice."""
FEEDS = 4
"""Samples read from a file at once, to be fed one by one."""


@frozen
class WholeModel:
    """The model around a part: its samples, its outputs behind the part, and what opens a session of the rest."""

    samples: Samples
    outputs: tuple[str, ...]
    open: Callable[[], Any]


@frozen
class Samples:
    """Inputs by name, each (samples, *shape of one sample as the model takes it), and the labels, if any.

    Inputs from large files are `Streamed`: iterating over feeds or batches never loads all of them.
    """

    inputs: Mapping[str, Array]
    labels: Array | None = None
    synthetic: bool = False
    left_out: str = ""
    """Why labels found in the files are not used; empty if there are none or they are used."""
    truth: Array | None = None
    """`y` as stored in the files, (samples, ...) of any type: the reference for outputs other than classes. Of
    batches (samples, batch) classes, one for each element."""
    whole: WholeModel | None = None
    """Of samples of a part of a model."""
    ranges: Mapping[str, tuple[float, float]] | None = None
    """What a quantised model says of its tensors' ranges, if nobody gave or asked for samples to find others."""

    def __len__(self) -> int:
        """The number of samples; 1 for a network without inputs."""
        return len(next(iter(rows_of(self.inputs).values()))) if self.inputs else 1

    def feeds(self) -> Iterator[dict[str, Array]]:
        """One feed per sample, in the model's own shapes."""
        for block in self._blocks(FEEDS):
            for index in range(len(next(iter(block.values()))) if block else 1):
                yield {name: structured.row(values, index) for name, values in block.items()}

    def _blocks(self, size: int) -> Iterator[dict[str, Array]]:
        rows = rows_of(self.inputs)
        if not rows:
            yield {}
        for values in zip(*(each.blocks(size) for each in rows.values()), strict=True):
            yield dict(zip(rows, values, strict=True))

    def batches(self, size: int) -> Iterator[Samples]:
        """The samples in order, in batches of this size."""
        for position, inputs in enumerate(self._blocks(size)):
            yield self._with(inputs, slice(position * size, (position + 1) * size))

    def of(self, names: Iterable[str]) -> Samples:
        """The same samples with these of their inputs, in this order."""
        if isinstance(self.inputs, Streamed):
            return replace(self, inputs=Streamed({name: self.inputs.rows[name] for name in names}))
        return replace(self, inputs={name: self.inputs[name] for name in names})

    def first(self, count: int | None) -> Samples:
        """At most this many samples."""
        return self if count is None else self.part(0, count)

    def part(self, first: int, stop: int) -> Samples:
        """The samples from `first` up to, but not including, `stop`."""
        if isinstance(self.inputs, Streamed):
            rows = {name: RowRange(each, first, stop) for name, each in self.inputs.rows.items()}
            return self._with(Streamed(rows), slice(first, stop))
        return self._with({name: each[first:stop] for name, each in self.inputs.items()}, slice(first, stop))

    def _with(self, inputs: Mapping[str, Array], part: slice) -> Samples:
        """These inputs with the matching part of the labels."""
        labels, truth = (None if each is None else each[part] for each in (self.labels, self.truth))
        return replace(self, inputs=inputs, labels=labels, truth=truth)


def load(
    paths: Sequence[Path],
    inputs: Mapping[str, TensorType],
    unbounded: Collection[str] = (),
    images: Sequence[Description] = (),
) -> Samples:
    """The samples of .npz files, pictures, folders, lists and patterns (`sources_of`), concatenated.

    inputs: name and type of every input of the model. unbounded: those that may be infinite. images: how pictures
    become samples. Many files take no more memory than one: each file may keep an equal share of LARGE in memory;
    larger arrays are read block by block, one file at a time. Raises DataError: E401 for a file that cannot be
    read or lacks an input, and for a pattern without a match; E402 for a wrong shape, type or number of samples,
    and for values that are not finite; E403 for pictures larger than memory. Where no file has the model's batch,
    as many samples of one element make one. For the word synthetic they are `varied_samples` ones.
    """
    sources = sources_of(paths)
    if not sources:
        return varied_samples(inputs)
    try:
        return _load(sources, inputs, unbounded, images)
    except DataError as error:
        batch = _batch_of(inputs)
        if batch == 1 or error.problems[0].code != "E402" or any(is_picture(each.path) for each in sources):
            raise
        single = {name: replace(each, shape=(1, *each.shape[1:])) for name, each in inputs.items()}
        try:
            found = _load(sources, single, unbounded, images)
        except DataError:
            raise error from None
    return _in_batches(found, batch, sources[0].path)


def _batch_of(inputs: Mapping[str, TensorType]) -> int:
    """The extent of the first axis, if all inputs have the same; otherwise 1."""
    first = {each.shape[0] if each.shape else 0 for each in inputs.values()}
    return max(*first, 1) if len(first) == 1 else 1


def _in_batches(samples: Samples, batch: int, path: Path) -> Samples:
    """Samples of the model's batch from ones of a single element each. Raises DataError (E402) for a rest."""
    if len(samples) % batch:
        limit = f"{batch} a sample, as the model's batch"
        raise DataError("E402", f"{len(samples)} elements, from '{path}' on, do not fill batches", limit=limit)
    found = Streamed({name: Batches(each, batch) for name, each in rows_of(samples.inputs).items()})
    inputs, left_out = found if isinstance(samples.inputs, Streamed) else dict(found), samples.left_out
    if samples.labels is not None:
        return Samples(inputs, truth=samples.labels.reshape(-1, batch))
    if samples.truth is not None:
        left_out = "labels are of single elements, and samples are batches"
    return Samples(inputs, left_out=left_out)


def _load(
    sources: Sequence[Source],
    inputs: Mapping[str, TensorType],
    unbounded: Collection[str],
    images: Sequence[Description],
) -> Samples:
    """The samples of these files, as `load`."""
    parts: list[Samples] = []
    most = streams.LARGE // max(len(sources), 1)
    with budget():
        for of_pictures, found in groupby(sources, lambda each: is_picture(each.path)):
            if of_pictures:
                parts.append(_load_pictures([*found], inputs, images, len(sources) * most))
            else:
                parts += [_load_one(each.path, inputs, most, unbounded) for each in found]
    merged = _merge_inputs([part.inputs for part in parts], inputs)
    labels = [part.labels for part in parts if part.labels is not None]
    left_out = "; ".join(part.left_out for part in parts if part.left_out)
    truth = _join_labels([part.truth for part in parts])
    if len(labels) == len(parts):
        return Samples(merged, np.concatenate(labels), truth=truth)
    return Samples(merged, left_out=left_out or ("only some files have labels" if labels else ""), truth=truth)


def _join_labels(parts: Sequence[Array | None]) -> Array | None:
    """The labels of all files, concatenated; None if some are missing or their shapes or types differ."""
    found = [part for part in parts if part is not None]
    alike = len({(part.shape[1:], part.dtype.kind) for part in found}) == 1
    return np.concatenate(found) if alike and len(found) == len(parts) else None


def _merge_inputs(parts: Sequence[Mapping[str, Array]], names: Iterable[str]) -> Mapping[str, Array]:
    """The inputs of all files, concatenated; streamed if any part is."""
    if any(isinstance(part, Streamed) for part in parts):
        columns = {name: [rows_of(part)[name] for part in parts] for name in names}
        return Streamed({name: Joined(each) if len(each) > 1 else each[0] for name, each in columns.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


QUANTITIES = ("int8", "uint8", "uint16")
"""Integers that are no indices: quantised values, and pixels."""


def synthetic(
    inputs: Mapping[str, TensorType],
    count: int | None = None,
    seed: int = 0,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> Samples:
    """Standard normal values from a fixed seed: they show that a program runs, not how accurate it is.

    Integers that are no indices are uniform over their range; others are 0 or 1. count: 8 by default, fewer for
    large inputs. ranges: as in `Samples`; inputs that have any are normal within them.
    """
    count = count or _default_count(inputs)
    _expect_room(inputs, count)
    random = np.random.default_rng(seed)

    def values(name: str, each: TensorType) -> Array:
        shape = (count, *each.shape)
        if each.dtype in (STRING, OBJECT):
            return _words(each, shape, random)
        if each.dtype in QUANTITIES:
            limits = np.iinfo(each.dtype)
            return random.integers(limits.min, limits.max, shape, each.dtype, endpoint=True)
        if np.dtype(each.dtype).kind in "iub":
            return random.integers(0, 2, shape).astype(each.dtype)
        normal = random.standard_normal(shape)
        if ranges and name in ranges:
            low, high = ranges[name]
            normal = (normal * ((high - low) / (2 * SPREAD)) + (high + low) / 2).clip(low, high)
        return normal.astype(each.dtype)

    return Samples({name: values(name, each) for name, each in inputs.items()}, synthetic=True, ranges=ranges)


WORDS = ("", "a", "word", "several words", "\u00e9\u4e2d")
"""Synthetic strings."""


def _words(each: TensorType, shape: Sequence[int], random: np.random.Generator) -> Array:
    """Synthetic strings; unknown extents become 1. Raises DataError (E401) if the input is not a tensor."""
    if each.dtype == OBJECT:
        reason, remedy = (
            "there are no synthetic values of an input that is no tensor",
            "give samples: --data DATA.npz",
        )
        raise DataError("E401", reason, limit="tensors of numbers or strings", remedy=remedy)
    return random.choice(np.array(WORDS, object), [abs(extent) for extent in shape])


def _default_count(inputs: Mapping[str, TensorType]) -> int:
    """The number of synthetic samples: SYNTHETIC_SAMPLES, or fewer for large inputs."""
    return min(SYNTHETIC_SAMPLES, max(1, limits().memory // max(_sample_bytes(inputs), 1)))


def _expect_room(inputs: Mapping[str, TensorType], count: int) -> None:
    """Raises ModelError (E110) if the synthetic samples are too large, together or individually."""
    size = sum(abs(each.size) for each in inputs.values()) * count * np.dtype(np.float64).itemsize
    expect_room(max(size, _sample_bytes(inputs)), f"{count} synthetic samples")


def _sample_bytes(inputs: Mapping[str, TensorType]) -> int:
    """Bytes of the memory limit that a sample accounts for: its copies and the feature maps computed from it."""
    return sum(abs(each.size) for each in inputs.values()) * COPIES * np.dtype(np.float64).itemsize


KINDS = ("ramp", "noise", "positive", "extreme")
"""The kinds of synthetic samples, in rotation."""
EXTREME = 3.0
"""The largest magnitude in float inputs: about as far as normal values usually reach."""


def varied_samples(inputs: Mapping[str, TensorType], count: int | None = None, seed: int = 1) -> Samples:
    """Synthetic samples of all kinds in rotation, from a fixed seed: they exercise more than noise around zero.

    A ramp from one corner to the other, like an image, with some noise; standard normal values; their magnitudes;
    a constant at the highest or lowest extreme, alternately. 8-bit integers use their whole range; wider ones,
    which may be indices, are 0 or 1.
    count: 8 by default, fewer for large inputs.
    """
    count = count or _default_count(inputs)
    _expect_room(inputs, count)
    random = np.random.default_rng(seed)
    made = {name: [_make(each, number, random) for number in range(count)] for name, each in inputs.items()}
    return Samples({name: np.stack(values) for name, values in made.items()}, synthetic=True)


def _make(each: TensorType, number: int, random: np.random.Generator) -> Array:
    """Sample `number`, of the kind that the rotation assigns to it."""
    if each.dtype in (STRING, OBJECT):
        return _words(each, each.shape, random)
    noise = np.asarray(random.standard_normal(each.shape))
    turn, kind = divmod(number, len(KINDS))
    match KINDS[kind]:
        case "ramp":
            values = EXTREME * (_ramp(each.shape) - 0.25) + noise / 8
        case "noise":
            values = noise
        case "positive":
            values = np.abs(noise)
        case _:
            values = np.full(each.shape, EXTREME if turn % 2 == 0 else -EXTREME)
    if each.dtype in QUANTITIES:
        limits = np.iinfo(each.dtype)
        middle, reach = (limits.max + limits.min + 1) / 2, (limits.max - limits.min) / 2
        return np.clip(np.rint(middle + values / EXTREME * reach), limits.min, limits.max).astype(each.dtype)
    return (values > 0 if np.dtype(each.dtype).kind in "iub" else values).astype(each.dtype)


def _ramp(shape: Sequence[int]) -> Array:
    """A ramp from 0 in the first corner to 1 in the last."""
    if 0 in shape:
        return np.zeros(shape)
    long = [extent for extent in shape if extent > 1]
    steps = sum(np.ix_(*(np.arange(extent) / (extent - 1) for extent in long)), np.zeros(()))
    return np.asarray(steps / max(len(long), 1)).reshape(shape)


def save(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes arrays to an .npz file under a temporary name, then renames it. Raises ArtefactError (E506)."""
    with replacing(path) as staging, zipfile.ZipFile(staging, "w") as archive:
        named = (each for item in arrays.items() for each in structured.members(*item))
        for name, values in named:  # numpy.savez takes no array named `file`
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values)


def _load_one(path: Path, inputs: Mapping[str, TensorType], most: int, unbounded: Collection[str]) -> Samples:
    """The samples of one file; arrays of more than `most` bytes are not loaded. unbounded: as for `load`."""
    large = {name: each for name in (*inputs, "x") if (each := member(path, name, most)) is not None}
    several = tuple(f"{name}/" for name, each in inputs.items() if _is_structured(each))
    held = _arrays(path, {*inputs, "x", "y"} - large.keys(), most, several)
    arrays = {**held, **large, **_read_structured(path, held, inputs)}
    rows = {
        name: _samples(path, _pick(path, name, arrays, inputs), name, each, finite=name not in unbounded)
        for name, each in inputs.items()
    }
    small = {name: each.values for name, each in rows.items() if isinstance(each, InMemory)}
    found: Mapping[str, Array] = small if len(small) == len(rows) else Streamed(rows)
    counts = {len(values) for values in rows.values()}
    if len(counts) > 1:
        raise DataError("E402", f"'{path}' has a different number of samples per input: {sorted(counts)}")
    if counts == {0}:
        raise DataError("E402", f"'{path}' has no samples")
    if "y" not in held or "y" in inputs:
        return Samples(found)
    values = held["y"]
    labels, reason = _labels(values, *counts)
    truth = values if values is not None and values.shape[:1] == tuple(counts) else None
    return Samples(found, labels, left_out=f"'{path}': {reason}" if reason else "", truth=truth)


def _load_pictures(
    sources: Sequence[Source], inputs: Mapping[str, TensorType], images: Sequence[Description], most: int
) -> Samples:
    """The samples of pictures, decoded anew whenever they are read if they take more than `most` bytes.

    Raises DataError as `load`, and for a model with other inputs beside the picture.
    """
    if len(inputs) != 1:
        reason = f"'{sources[0].path}' gives one input, and the model has {len(inputs)}"
        raise DataError("E401", reason, limit="one input for pictures", remedy="save all inputs in .npz files")
    ((name, kind),) = inputs.items()
    rows = pictures([each.path for each in sources], images, kind.dtype, name)
    size = len(rows) * prod(kind.shape) * np.dtype(kind.dtype).itemsize
    small = size <= most and fits(size)
    found = Streamed({name: rows})
    inputs_of = {name: found[name]} if small else found
    labels = [each.label for each in sources if each.label is not None]
    if not labels:
        return Samples(inputs_of)
    classes, reason = _classes_of(labels, rows.described.labels) if len(labels) == len(sources) else (None, SOME)
    left_out = f"'{sources[0].path}': {reason}" if reason else ""
    if rows.batch > 1:
        return Samples(
            inputs_of, left_out=left_out, truth=None if classes is None else classes.reshape(-1, rows.batch)
        )
    return Samples(inputs_of, classes, left_out=left_out, truth=classes)


SOME = "only some pictures have labels"


def _classes_of(labels: Sequence[str], names: Sequence[str]) -> tuple[Array | None, str]:
    """The classes of pictures labelled with numbers, or with the names of classes; or the reason why not."""
    if all(each.isascii() and each.isdecimal() and len(each) < 10 for each in labels):
        return np.array([*map(int, labels)], np.int64), ""
    unknown = next((each for each in labels if each not in names), None)
    if unknown is not None:
        known = "--labels names the classes" if not names else "the labels have no such class"
        return None, f"'{unknown}' is no class number, and {known}"
    return np.array([names.index(each) for each in labels], np.int64), ""


def _is_structured(each: TensorType) -> bool:
    """Whether the values of an input may take several keys."""
    return each.dtype in (STRING, OBJECT) or min(each.shape, default=0) < 0


def _read_structured(
    path: Path, held: Mapping[str, Array | None], inputs: Mapping[str, TensorType]
) -> dict[str, Array]:
    """The values stored under several keys. Raises DataError (E401) if one is missing."""
    arrays = {name: each for name, each in held.items() if each is not None}
    found: dict[str, Array] = {}
    for name in (name for name, each in inputs.items() if _is_structured(each)):
        try:
            values = structured.gather(name, arrays)
        except KeyError as error:
            raise DataError("E401", f"'{path}' lacks {error}", tensor=name) from None
        found |= {} if values is None else {name: values}
    return found


def _labels(values: Array | None, count: int) -> tuple[Array | None, str]:
    """The classes of `count` samples as int64, or the reason why the array does not hold them."""
    if values is None:
        return None, "the labels 'y' are damaged or hold Python objects"
    if values.shape not in ((count,), (count, 1)):
        return None, f"the labels 'y' have the shape {list(values.shape)} for {count} samples"
    if values.dtype.kind not in "fiub" or not np.isfinite(values).all() or (values != np.floor(values)).any():
        return None, f"the labels 'y' are no class numbers, but {values.dtype}"
    return values.ravel().astype(np.int64), ""


def _arrays(
    path: Path, wanted: Collection[str], most: int, several: tuple[str, ...] = ()
) -> dict[str, Array | None]:
    """The arrays of an .npz file by name: None for those not wanted, damaged, or of Python objects.

    most: bytes up to which `member` has already counted an array. several: prefixes of further names that are
    wanted.
    Raises DataError (E401) if the file cannot be read at all.
    """
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.lib.npyio.NpzFile):
                return {
                    name: _array(path, archive, name, most) if name in wanted or name.startswith(several) else None
                    for name in archive.files
                }
        reason, remedy = "it is a single array, not an .npz file", "save it with numpy.savez"
    except OSError as error:
        reason, remedy = error.strerror or str(error), "give the path of an .npz file that can be read"
    except DAMAGED:
        reason, remedy = "it is not a NumPy .npz file", "save it with numpy.savez"
    raise DataError("E401", f"'{path}' cannot be read: {reason}", remedy=remedy)


def _members(archive: np.lib.npyio.NpzFile) -> list[zipfile.ZipInfo]:
    return [] if archive.zip is None else archive.zip.infolist()


def _array(path: Path, archive: np.lib.npyio.NpzFile, name: str, most: int) -> Array | None:
    member = next((each for each in _members(archive) if each.filename in (name, f"{name}.npy")), None)
    if member is not None and (name == "y" or member.file_size > most):  # otherwise `member` has counted it
        take_data(member.file_size, path.name, name)
    try:
        found: Any = archive[name]  # bytes if the member is not an array
    except DAMAGED:
        return None
    return found if isinstance(found, np.ndarray) else None


def _pick(
    path: Path, name: str, arrays: Mapping[str, Array | Member | None], inputs: Mapping[str, TensorType]
) -> Array | Member:
    key = name if name in arrays or len(inputs) > 1 else "x"
    found = arrays.get(key)
    if found is not None:
        return found
    if key in arrays:
        reason = f"'{path}' has an array '{key}' that is damaged or holds Python objects"
        raise DataError("E401", reason, tensor=name, remedy="save plain numbers with numpy.savez")
    raise DataError(
        "E401",
        f"'{path}' has no array '{name}'",
        tensor=name,
        limit=f"found: {', '.join(arrays) or 'nothing'}",
        remedy="name the arrays as the model names its inputs" + (", or 'x'" if len(inputs) == 1 else ""),
    )


def _samples(path: Path, values: Array | Member, name: str, wanted: TensorType, *, finite: bool) -> Rows:
    """The array as (samples, *shape): the data may omit the model's leading 1.

    finite: whether infinities are refused, as NaN always is.
    """
    if isinstance(values, np.ndarray) and _is_structured(wanted):
        return InMemory(_objects(path, values, name, wanted))
    shape = wanted.shape
    per_sample = shape[1:] if shape[:1] == (1,) else shape
    if values.shape[1:] not in (shape, per_sample) or not values.shape or values.dtype.kind not in "fiub":
        raise DataError(
            "E402",
            f"'{path}' has {values.dtype} {list(values.shape)}",
            tensor=name,
            limit=f"[{', '.join(['samples', *map(str, per_sample)])}] of numbers",
        )

    def cast(block: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            found = block.astype(wanted.dtype)
        if found.dtype.kind == "f" and not np.isfinite(found if finite else found[~np.isinf(block)]).all():
            raise DataError("E402", f"'{path}' has values that are not finite in {wanted.dtype}", tensor=name)
        if found.dtype.kind in "iu" and (found != block).any():
            raise DataError("E402", f"'{path}' has values that {wanted.dtype} cannot hold", tensor=name)
        return found.reshape(len(block), *shape)

    return replace(values, convert=cast) if isinstance(values, Member) else InMemory(cast(values))


def _objects(path: Path, values: Array, name: str, wanted: TensorType) -> Array:
    """One object per sample: a tensor that fits the type, or any other value as it is. Raises DataError (E402)."""
    given = values.astype(object) if values.dtype.kind in "US" else values
    found = structured.objects([given[at, ...] for at in range(len(given))] if given.ndim > 1 else list(given))
    if wanted.dtype == OBJECT:
        return found
    for each in map(np.asarray, found):
        fits = len(each.shape) == len(wanted.shape) and all(
            extent in (-1, actual) for extent, actual in zip(wanted.shape, each.shape, strict=True)
        )
        if not fits or (each.dtype == object) != (wanted.dtype == STRING):
            limit = f"{wanted} for every sample"
            raise DataError("E402", f"'{path}' has {each.dtype} {list(each.shape)}", tensor=name, limit=limit)
    return found
