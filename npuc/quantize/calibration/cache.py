"""Calibration results cached in a file: histograms by what was computed, so that a hit gives the same bytes.

A file belongs to one model, one set of calibration data and one version of this format. A file that does not match
or is damaged is reported and replaced. In a folder there is a file for each combination.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from npuc import __version__
from npuc.errors import ArtefactError
from npuc.ir import Array, Graph
from npuc.quantize.calibration.histograms import BINS, Histogram, HistogramSource, histograms, source
from npuc.samples.loading import save
from npuc.samples.sources import files_of
from npuc.samples.streams import DAMAGED
from npuc.target import Options

VERSION = f"npuc {__version__}, calibration 3"
"""The version of the format, and of what `histograms` finds for the same data."""
Tell = Callable[[str], None]


@dataclass
class Cache:
    """Histograms by digest of the graph and the request."""

    key: str
    known: dict[str, dict[str, Histogram]] = field(default_factory=dict[str, dict[str, Histogram]])
    find: HistogramSource = histograms
    hits: int = 0
    misses: int = 0

    def histograms(
        self,
        graph: Graph,
        samples: Iterable[Mapping[str, Array]],
        tensors: Sequence[str],
        domains: Mapping[str, tuple[float, float]] | None = None,
        gains: Mapping[str, Array] | None = None,
    ) -> dict[str, Histogram]:
        """The histograms of the samples, from the cache if present. Its key must identify these samples."""
        asked = _digest_of(graph, tensors, domains or {}, gains or {})
        if asked in self.known:
            self.hits += 1
        else:
            self.misses += 1
            self.known[asked] = self.find(graph, samples, tensors, domains, gains)
        return dict(self.known[asked])


@contextmanager
def remembering(options: Options, path: Path | None, files: Sequence[Path], tell: Tell) -> Generator[Options]:
    """The options with calibration routed through the cache, which is written if the block succeeds.

    path: a file or a folder; None: no cache. files: the model and its calibration data, whose contents form the
    key.
    tell: receives messages on hits. Raises ArtefactError (E506) if the cache cannot be written.
    """
    if path is None:
        yield options
        return
    key = _key(files)
    file = path / f"{files[0].stem}-{key[:16]}.calibration.npz" if path.is_dir() else path
    cache = replace(_open_cache(file, key, tell), find=source(None, synthetic=not files_of(files[1:])))
    yield replace(options, histograms=cache.histograms)
    tell(f"calibration cache '{file}': {cache.hits} of {cache.hits + cache.misses} calibrations found")
    if cache.misses:
        save(file, _arrays(cache))


def _key(files: Sequence[Path]) -> str:
    """A digest of the files' bytes; unreadable files are skipped, and reported when they are used."""
    found = hashlib.sha256(VERSION.encode())
    for path in (files[0], *files_of(files[1:])):
        one = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    one.update(block)
        except OSError:
            continue
        found.update(one.digest())
    return found.hexdigest()


def _digest_of(
    graph: Graph, tensors: Sequence[str], domains: Mapping[str, tuple[float, float]], gains: Mapping[str, Array]
) -> str:
    from npuc.onnx_files.export import to_onnx

    found = hashlib.sha256(to_onnx(graph, [*graph.outputs]).SerializeToString(deterministic=True))
    found.update(repr((list(tensors), sorted(domains.items()))).encode())
    for name, values in sorted(gains.items()):
        found.update(repr((name, values.shape, str(values.dtype))).encode())
        found.update(np.ascontiguousarray(values).tobytes())
    return found.hexdigest()


def _arrays(cache: Cache) -> dict[str, Array]:
    """The cache as named arrays: tensor names and bin widths of each calibration, and counts for each tensor."""
    found: dict[str, Array] = {"key": np.array(cache.key)}
    for asked, known in cache.known.items():
        found[f"{asked}/names"] = np.array(list(known), np.str_)
        found[f"{asked}/widths"] = np.array([each.width for each in known.values()], np.float64)
        found |= {f"{asked}/{position}": each.counts for position, each in enumerate(known.values())}
    return found


FIRST = b"key.npy"
"""The name of the first array, which the head of a cache shows even if the file is damaged."""


def _open_cache(file: Path, key: str, tell: Tell) -> Cache:
    """The cache in a file if its key matches; otherwise an empty one.

    Raises ArtefactError: E505 for a file of another kind, which would be replaced, E506 if it cannot be read.
    """
    if not file.exists():
        return Cache(key)
    try:
        with file.open("rb") as content:
            head = content.read(64)
        if head and FIRST not in head:
            remedy = "choose another file for --calibration-cache"
            raise ArtefactError("E505", f"'{file}' exists and is not a calibration cache", remedy=remedy)
        with file.open("rb") as content, np.load(content, allow_pickle=False) as archive:
            if str(archive["key"]) != key:
                tell(f"calibration cache '{file}' is of another model, other data or another npuc: not used")
                return Cache(key)
            asked = [name.removesuffix("/names") for name in archive.files if name.endswith("/names")]
            return Cache(key, {each: _read(archive, each) for each in asked})
    except OSError as error:
        raise ArtefactError("E506", f"'{file}' cannot be read: {error.strerror or error}") from None
    except (KeyError, TypeError, AttributeError, *DAMAGED):
        tell(f"calibration cache '{file}' is damaged: not used")
        return Cache(key)


def _read(archive: Mapping[str, Array], asked: str) -> dict[str, Histogram]:
    """The histograms of one calibration. Raises ValueError if they are invalid."""
    names, widths = archive[f"{asked}/names"], archive[f"{asked}/widths"]
    if widths.shape != names.shape or not np.isfinite(widths).all() or (widths <= 0).any():
        raise ValueError("widths")
    found: dict[str, Histogram] = {}
    for position, (name, width) in enumerate(zip(names.tolist(), widths.tolist(), strict=True)):
        counts = archive[f"{asked}/{position}"]
        if counts.shape != (BINS,) or counts.dtype.kind not in "if" or not (counts >= 0).all():
            raise ValueError("counts")
        found[name] = Histogram(counts, width)
    return found
