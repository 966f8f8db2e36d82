"""The compiled program: a directory with a manifest, the words and memory images, and evidence for verification.

    manifest.json     the program's description: target, machine, steps, placements, instructions, sha256 of files
    *.bin             the words and memory images for the machine
    reference.onnx    the integer network in standard ONNX operators          } evidence: opened by verification
    graph.json        which of its tensors represents which float tensor      } only, never by a simulator

The manifest carries a seal: its own sha256, computed without the seal. A directory is written under a temporary
name and renamed, so a partially written program is never visible. No time stamps: same input, same bytes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import stat
import warnings
from collections.abc import Generator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, cast

from npuc.account import Report
from npuc.errors import REMEDIES, ArtefactError, ModelError
from npuc.frozen import frozen
from npuc.images.description import Description
from npuc.storage.files import recover, replacing_folder
from npuc.storage.mapped import Content, Files, Pieces, append, contents_of, link, pieces_of, release, view_of
from npuc.storage.records import damage_error, read
from npuc.system.budget import budget, take
from npuc.text.escaping import terminal
from npuc.text.terminal import plural

FORMAT = "npuc-program"
VERSION = 2
"""The format's version: increased when older programs would be misread or not read at all (docs/artefact.md)."""
MANIFEST = "manifest.json"
EVIDENCE = ("reference.onnx", "graph.json")
GIVEN_BY = "given_by"
"""The manifest entry that only programs of several parts have (npuc.regions.artefact)."""
RANGES = "ranges"
"""The manifest entry of `Ranges`."""
VARIANTS, SHARED = "variants", "files"
"""Entry and folder of programs for other input shapes, and the folder of their files (npuc.regions.variants)."""


class ModifiedArtefact(UserWarning):
    """A file differs from its sha256 and was loaded nevertheless (--allow-modified)."""


@frozen
class Port:
    """An input or output of the network, in the ONNX model's own terms."""

    name: str
    shape: tuple[int, ...]
    """Extents; -1 for one that is only known at run time, in programs with host regions."""
    dtype: str
    type: str = ""
    """For dtype "object": the type in ONNX notation, for instance seq(tensor(float))."""


@frozen
class Cut:
    """The part of a model between tensors: names, none for the model's own, and shapes of the model's inputs."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])


@frozen
class Model:
    """The model that the program was compiled from."""

    name: str = "a network"
    sha256: str = ""
    """Of its file; of a part of the model that of the part's."""
    cut: Cut | None = None


@frozen
class Ranges:
    """Where the ranges of activations come from."""

    origin: str = "unknown"
    """samples, synthetic (samples), model (its own scales), or none (floating point)."""
    files: tuple[str, ...] = ()
    """Names of the files, folders and patterns of samples that were given."""
    samples: int = 0
    sha256: str = ""
    """Of the files' digests, sorted: the order of samples changes nothing."""

    def __str__(self) -> str:
        match self.origin:
            case "samples":
                files = terminal(self.files[0]) if len(self.files) == 1 else plural(len(self.files), "file")
                return f"{plural(self.samples, 'sample')} of {files} ({self.sha256[:12]})"
            case "synthetic":
                return f"{plural(self.samples, 'synthetic sample')}, no data"
            case "model":
                return "the model's own scales"
            case _:
                return ""


DTYPES = (
    *("float16", "float32", "float64", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
"""Element types of inputs and outputs."""
STRING, OBJECT = "string", "object"
"""Only in programs with host regions: strings, and non-tensors (sequences, maps, optional values)."""
BLOCK = 1 << 24
"""Bytes of mapped values that are read before their memory is released."""
LARGEST_PORT = 1 << 31
"""The most elements of an input or output."""


@frozen
class Program:
    """A program: the manifest and its files by name; `evidence` is for verification only.

    The properties raise ArtefactError (E502) if npuc did not write the manifest.
    """

    manifest: Mapping[str, Any]
    files: Mapping[str, bytes]
    evidence: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def target(self) -> str:
        """The target's name."""
        return read(str, self.manifest.get("target"), "target")

    @property
    def precision(self) -> str:
        """The number format of its computations."""
        return read(str, self.manifest.get("precision", "int8"), "precision")

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The network's inputs."""
        return _ports(self.manifest, "inputs")

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The network's outputs, at least one."""
        found = _ports(self.manifest, "outputs")
        if not found:
            raise damage_error("outputs is empty")
        return found

    @property
    def report(self) -> Mapping[str, Any]:
        """The report of the compile."""
        read(Report, self.manifest.get("report"), "report")
        found: Mapping[str, Any] = self.manifest["report"]
        return found

    @property
    def bound(self) -> Mapping[str, float]:
        """Inputs of the model that were bound to constants, and their values."""
        return read(Mapping[str, float], self.manifest.get("bound", {}), "bound")

    @property
    def ranges(self) -> Ranges:
        """Where the ranges of its activations come from; "unknown" in programs of older versions."""
        return read(Ranges, self.manifest.get(RANGES, {}), RANGES)

    @property
    def images(self) -> tuple[Description, ...]:
        """The descriptions of its image inputs."""
        found = read(tuple[Description, ...], self.manifest.get("images", []), "images")
        shapes = {port.name: port.shape for port in self.inputs} if found else {}
        for number, each in enumerate(found):
            reason = each.unsound(shapes.get(each.input, ()))
            if reason is not None:
                raise damage_error(f"images[{number}]: {reason}")
        return found

    @property
    def model(self) -> Model:
        """The model that it was compiled from."""
        return read(Model, self.manifest.get("model", {}), "model")


def with_labels(program: Program, labels: Sequence[str]) -> Program:
    """The program with other names of its classes, by which folders and lists label pictures."""
    images = [replace(each, labels=tuple(labels)).as_json() for each in program.images]
    return replace(program, manifest={**program.manifest, "images": images})


def _ports(manifest: Mapping[str, Any], key: str) -> tuple[Port, ...]:
    found = read(tuple[Port, ...], manifest.get(key), key)
    dtypes, least = ((*DTYPES, STRING, OBJECT), -1) if GIVEN_BY in manifest else (DTYPES, 0)
    for number, port in enumerate(found):
        if port.dtype not in dtypes:
            raise damage_error(f"{key}[{number}].dtype is {port.dtype!r}", ", ".join(dtypes))
        if min(port.shape, default=0) < least or prod(map(abs, port.shape)) > LARGEST_PORT:
            raise damage_error(f"{key}[{number}].shape is {list(port.shape)}", f"0..{LARGEST_PORT} elements")
    if len({port.name for port in found}) < len(found):
        raise damage_error(f"two of the {key} have one name")
    return found


def count_of(feeds: Mapping[str, Sized]) -> int:
    """The number of samples in a program's inputs. Raises ArtefactError (E502) for a program without inputs."""
    if not feeds:
        raise damage_error("inputs is empty")
    return len(next(iter(feeds.values())))


def sha256(data: Content) -> str:
    """The hexadecimal digest that the manifest records."""
    digest = hashlib.sha256()
    for piece in pieces_of(data):
        view = view_of(piece)
        for first in range(0, len(view), BLOCK):
            digest.update(view[first : first + BLOCK])
            release()
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """The same for a file, which is not loaded whole. Raises OSError if it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


LEVELS = 2
"""What lies deeper in a JSON file, such as the fields of a layer, is on one line."""
EVERY_LEVEL = 1 << 20
"""Before, every number had a line of its own; manifests were sealed so."""


def canonical_json(value: Mapping[str, Any], levels: int = LEVELS) -> bytes:
    """JSON with sorted keys, so that equal values give equal bytes. File names that are not UTF-8 are escaped."""
    return f"{_on_lines(value, levels)}\n".encode("utf-8", "backslashreplace")


def _on_lines(value: Any, levels: int, indent: str = "") -> str:
    """The JSON of a value, of whose outer levels each entry begins a line."""
    within = f"{indent} "
    if isinstance(value, dict) and value and levels:
        items = sorted(cast("dict[str, Any]", value).items())
        lines = (f"{_one_line(key)}: {_on_lines(each, levels - 1, within)}" for key, each in items)
        opened, closed = "{}"
    elif isinstance(value, list | tuple) and value and levels:
        lines = (_on_lines(each, levels - 1, within) for each in cast("Sequence[Any]", value))
        opened, closed = "[]"
    else:
        return _one_line(value)
    return opened + ",".join(f"\n{within}{line}" for line in lines) + f"\n{indent}{closed}"


_one_line = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode  # in C, unlike with an indent


UNSEALED = b'\n "seal": "",'
"""The line for the seal, which is never the last one: the version follows."""


def sealed(manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """The manifest's file: with format, version, the digests of all files, and the seal of all other entries."""
    contents = sorted(contents_of(files).items())
    digests = {name: {"bytes": len(data), "sha256": sha256(data)} for name, data in contents}
    text = canonical_json({**manifest, "format": FORMAT, "version": VERSION, "files": digests, "seal": ""})
    before, line, after = text.partition(UNSEALED)
    seal = sha256(before + after)
    return before + line[:-2] + f'{seal}",'.encode() + after


def as_loaded(program: Program) -> Program:
    """A program just compiled, in the form in which `load` returns it, but with its evidence."""
    manifest = sealed(program.manifest, Files(contents_of(program.files, program.evidence)))
    return replace(program, manifest=json.loads(manifest))


def save(program: Program, directory: Path, *, force: bool = False, final: bool = False) -> None:
    """Writes the program, replacing an npuc artefact (or, with force, anything) in one step.

    final: the program's values are not used afterwards, so that its temporary files may become the artefact's.
    An artefact's directory that contains other files is not replaced without force: nobody's notes are deleted.
    Raises ArtefactError: E505 if something else is in the way, E506 if the system refuses.
    """
    expect_replaceable(directory, force=force)
    contents = contents_of(program.files, program.evidence)
    manifest = sealed(program.manifest, Files(contents))
    _write(directory, Files({**contents, MANIFEST: manifest}), final=final)


def expect_replaceable(directory: Path, *, force: bool = False) -> None:
    """Raises ArtefactError (E505) if anything not written by npuc is in the way, also inside an artefact.

    The folder that npuc runs in, and those around it, are not replaced even with force.
    """
    if not _is_occupied(directory):
        return
    if directory.resolve() in (Path.cwd(), *Path.cwd().parents):
        reason, remedy = "holds the working folder", "choose another name with -o"
        raise ArtefactError("E505", f"'{directory}' {reason}", remedy=remedy)
    if force:
        return
    reason = None if is_artefact(directory) else "exists and is not an npuc artefact"
    if reason is None and (foreign := _foreign_files(directory)):
        reason = f"holds '{foreign[0]}', which npuc did not write"
    if reason is not None:
        remedy = "choose another name with -o, or replace it with --force"
        raise ArtefactError("E505", f"'{directory}' {reason}", remedy=remedy)


def save_files(files: Mapping[str, bytes], directory: Path) -> None:
    """Writes files into a new or empty folder, all of them or none.

    Raises ArtefactError: E505 if the folder is not empty, E506 if the system refuses.
    """
    if _is_occupied(directory) and not _is_empty(directory):
        raise ArtefactError("E505", f"'{directory}' exists and is not empty", remedy="choose a new folder with -o")
    _write(directory, files)


def _is_occupied(directory: Path) -> bool:
    """Whether something exists there. Raises ArtefactError (E506) for a name that the system does not accept."""
    try:
        return directory.exists()
    except OSError as error:
        raise _unwritable(directory, error) from None


def _is_empty(directory: Path) -> bool:
    try:
        return directory.is_dir() and not any(directory.iterdir())
    except OSError:  # a folder that cannot be listed counts as occupied
        return False


def _write(directory: Path, files: Mapping[str, bytes], *, final: bool = False) -> None:
    """Puts a directory with these files in place, in one step. final: as in `save`."""
    with replacing_folder(directory) as staging:
        for name, data in contents_of(files).items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(data, bytes):
                (staging / name).write_bytes(data)
            else:
                _write_pieces(staging / name, data, final=final)


def _write_pieces(path: Path, data: Pieces, *, final: bool) -> None:
    if final and len(data.pieces) == 1 and not isinstance(data.pieces[0], bytes) and link(data.pieces[0], path):
        return
    with path.open("wb", buffering=0) as file:
        for piece in data.pieces:
            append(file, piece)


def _unwritable(directory: Path, error: OSError) -> ArtefactError:
    reason = f"'{directory}' cannot be written: {error.strerror or error}"
    return ArtefactError("E506", reason, remedy="choose another place with -o")


def is_artefact(directory: Path) -> bool:
    """Whether the directory holds an npuc manifest (or nothing at all)."""
    if _is_empty(directory):
        return True
    try:
        return json.loads(_content(directory / MANIFEST, PARSED)).get("format") == FORMAT
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def _foreign_files(directory: Path) -> list[str]:
    """Names of files in an artefact's directory that are not in its table of files."""
    try:
        names = sorted(each.name for each in directory.iterdir())
        files = json.loads(_content(directory / MANIFEST)).get("files") if names else None
    except OSError as error:
        raise _unwritable(directory, error) from None
    written = {MANIFEST, *(name.split("/")[0] for name in (files if isinstance(files, dict) else ()))}
    return [name for name in names if name not in written]


@contextmanager
def showing(directory: Path) -> Generator[None]:
    """A block that displays a report or evidence. Raises ArtefactError (E502) if they are malformed."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        said = f"'{directory}': its report or evidence has a form that npuc does not write: {error}"
        raise ArtefactError("E502", said) from error


@budget()
def load(directory: Path, *, allow_modified: bool = False) -> Program:
    """The program without its evidence, every file checked against its digest.

    Raises ArtefactError: E501 for a foreign or unreadable directory, E502 for a damaged file, by name.
    """
    with suppress(OSError, ValueError):  # an unreadable place is reported below
        recover(directory)
    manifest = _manifest(directory, allow_modified)
    names = [name for name in manifest["files"] if not _is_evidence(name)]
    return Program(manifest, {name: _file(directory, manifest, name, allow_modified) for name in names})


@budget()
def manifest_of(directory: Path, *, allow_modified: bool = False) -> Mapping[str, Any]:
    """The manifest alone, checked against its seal. Raises ArtefactError (E501, E502)."""
    with suppress(OSError, ValueError):  # as above
        recover(directory)
    return _manifest(directory, allow_modified)


@budget()
def load_evidence(directory: Path, program: Program, *, allow_modified: bool = False) -> Mapping[str, bytes]:
    """reference.onnx and graph.json, of the program or of its parts. Raises ArtefactError (E502)."""
    files = program.manifest["files"]
    names = [name for name in files if _is_evidence(name)] if GIVEN_BY in program.manifest else EVIDENCE
    return {name: _file(directory, program.manifest, name, allow_modified) for name in names}


def _is_evidence(name: str) -> bool:
    """Whether a file is evidence, of the program or of a part of it."""
    return PurePosixPath(name).name in EVIDENCE


def _is_inside(name: str) -> bool:
    """Whether a name denotes a file within the directory or its folders, in canonical notation."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts) and str(path) == name


def _unreadable(directory: Path, error: OSError) -> str:
    """Why there is no manifest to read."""
    match error:
        case FileNotFoundError() if directory.exists():
            return f"'{directory}' has no {MANIFEST}"
        case FileNotFoundError():
            return f"'{directory}' does not exist"
        case NotADirectoryError():
            return f"'{directory}' is not a directory"
        case _:
            return f"{MANIFEST} of '{directory}' cannot be read: {error.strerror or error}"


def _manifest(directory: Path, allow_modified: bool) -> dict[str, Any]:
    try:
        raw = _content(directory / MANIFEST)
    except OSError as error:
        limit = "the directory npuc compile wrote"
        raise ArtefactError("E501", _unreadable(directory, error), limit=limit) from None
    try:
        manifest = json.loads(raw)
    except (ValueError, RecursionError):
        raise ArtefactError("E502", f"{MANIFEST} is damaged: it is not JSON") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtefactError("E501", f"{MANIFEST} is not of an npuc program")
    if manifest.get("version") != VERSION:
        raise ArtefactError(
            "E501",
            f"the program has format version {manifest.get('version')}",
            limit=f"version {VERSION}, which this npuc writes and reads",
            remedy=REMEDIES["E502"],
        )
    if not _intact(manifest):
        _check_modified(MANIFEST, "it does not match its seal", allow_modified)
    if not _lists_files(manifest):
        raise damage_error("it has no table of files")
    if "report" in manifest:
        read(Report, manifest["report"], "report")
    return manifest


PARSED = 10
"""Bytes of Python objects per byte of JSON."""


def _content(path: Path, copies: int = 1) -> bytes:
    """The bytes of a regular file: a pipe or a device may have no end. Raises OSError for any other.

    copies: the factor by which they grow in memory. Raises ArtefactError (E509) if memory does not suffice.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    try:
        take(copies * status.st_size, "a file")
    except ModelError as error:
        (problem,) = error.problems
        raise ArtefactError(
            "E509", f"'{path.name}' is {problem.reason}", limit=problem.limit, remedy=problem.remedy
        ) from None
    return path.read_bytes()


def _intact(manifest: Mapping[str, Any]) -> bool:
    """Whether the manifest matches its seal; text that cannot be encoded was never sealed."""
    body = {key: value for key, value in manifest.items() if key != "seal"}
    try:
        return any(manifest.get("seal") == sha256(canonical_json(body, each)) for each in (LEVELS, EVERY_LEVEL))
    except (UnicodeEncodeError, RecursionError):
        return False


def _lists_files(manifest: Mapping[str, Any]) -> bool:
    """Whether the manifest gives size and digest of its files."""
    files = manifest.get("files")
    return isinstance(files, dict) and all(
        isinstance(each, dict) and {"bytes", "sha256"} <= each.keys() for each in files.values()
    )


def _file(directory: Path, manifest: Mapping[str, Any], name: str, allow_modified: bool) -> bytes:
    if name not in manifest["files"] or not _is_inside(name):
        raise ArtefactError("E502", f"{name!r} is not listed in {MANIFEST} as a file of its directory")
    expected = manifest["files"][name]
    try:
        path = _place(directory, name, expected["sha256"])
        if not allow_modified and path.stat().st_size != expected["bytes"]:  # excludes devices, too
            size = path.stat().st_size
            _check_modified(name, f"it has {size} bytes, {expected['bytes']} were written", allow_modified)
        data = _content(path)
    except (FileNotFoundError, ValueError):  # ValueError: an invalid file name
        raise ArtefactError("E502", f"{name!r} is missing") from None
    except OSError as error:
        raise ArtefactError("E502", f"{name!r} cannot be read: {error.strerror or error}") from None
    if len(data) != expected["bytes"]:
        _check_modified(name, f"it has {len(data)} bytes, {expected['bytes']} were written", allow_modified)
    elif sha256(data) != expected["sha256"]:
        _check_modified(name, "it does not match its sha256", allow_modified)
    return data


def _place(directory: Path, name: str, digest: str) -> Path:
    """The path of a file: in the directory, or, for a variant, in the folder shared with other variants."""
    own, above = directory / name, directory.absolute().parent
    if own.exists() or above.name != VARIANTS or not re.fullmatch("[0-9a-f]{64}", digest):
        return own
    return above.parent / SHARED / digest / own.name


def _check_modified(name: str, reason: str, allow_modified: bool) -> None:
    if not allow_modified:
        raise ArtefactError(
            "E502",
            f"{name} is damaged: {reason}",
            remedy="compile the model again, or load it as it is with --allow-modified",
        )
    warnings.warn(f"{name} is loaded though {reason}", ModifiedArtefact, stacklevel=4)
