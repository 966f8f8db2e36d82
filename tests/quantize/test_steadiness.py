"""The last digits of float results, which differ from processor to processor, do not change an artefact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npuc import reference
from npuc.ir import Array
from npuc.program import Program
from npuc.quantize.arithmetic.steadiness import better, octave, rounded, upward
from npuc.quantize.calibration.histograms import EMPTY
from npuc.target import Options, Request, target
from tests.compiled import compilation

MODELS = Path(__file__).resolve().parents[2] / "models"
TARGETS = {
    "easynpu": Options(),
    "nvdla-small": Options(),
    "nvdla-full": Options(precision="int16"),
    "nvdla-full in fp16": Options(precision="fp16"),
}


class Disturbed:
    """A session whose float results are off by up to three units in the last place."""

    def __init__(self, session: Any, seed: int) -> None:
        self.session, self.random = session, np.random.default_rng(seed)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """What the session gives, each float a little larger or smaller."""
        return [
            (each * (1 + 2e-7 * self.random.uniform(-1, 1, each.shape))).astype(np.float32)
            if each.dtype == np.float32
            else each
            for each in self.session.run(names, feeds)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


def compiled(name: str, samples: Path) -> Program:
    """Digits for a target."""
    model = MODELS / "digits.onnx"
    return compilation(Request(model, target(name.partition(" ")[0]), TARGETS[name], [samples])).program


@pytest.mark.parametrize("name", TARGETS)
def test_other_last_digits_in_every_float_give_the_same_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.load(MODELS / "digits_calibration.npz") as file:
        np.savez(tmp_path / "few.npz", x=file["x"][:24])
    expected = compiled(name, tmp_path / "few.npz")
    plain = reference.session
    opened: list[int] = []

    def disturbed(*arguments: Any, **more: Any) -> Any:
        opened.append(len(opened))
        return Disturbed(plain(*arguments, **more), len(opened))

    monkeypatch.setattr(reference, "session", disturbed)
    found = compiled(name, tmp_path / "few.npz")
    assert opened and found.files == expected.files
    assert found.manifest["report"]["cycles"] == expected.manifest["report"]["cycles"]


def test_a_histogram_does_not_depend_on_the_order_of_samples_or_their_last_digits() -> None:
    random = np.random.default_rng(0)
    parts = [random.uniform(0, top, 50).astype(np.float32) for top in (0.3, 7.0, 1.0, 2.0)]
    parts[2][0] = 1.0
    one, other = EMPTY, EMPTY
    for part in parts:
        one = one.with_values(part)
    for part in parts[::-1]:
        other = other.with_values(part)
    assert one.width == other.width and (one.counts == other.counts).all()
    below = np.nextafter(np.array([1.0, 2.0, 8.0], np.float32), np.float32(0))
    above = np.nextafter(np.array([1.0, 2.0, 8.0], np.float32), np.float32(9))
    exact, under, over = (EMPTY.with_values(each) for each in (np.array([1, 2, 8], np.float32), below, above))
    assert exact.width == under.width == over.width
    assert (exact.counts == under.counts).all() and (exact.counts == over.counts).all()
    assert exact.largest >= 8


@pytest.mark.parametrize("value", [1e-30, 0.99999999, 1.0, 1.0000001, 3.0, 1e30])
def test_ranges_reach_beyond_what_another_processor_finds(value: float) -> None:
    for found in (octave(value), upward(value, 12)):
        assert value * (1 + 1e-6) < found
    assert octave(value) <= 2.01 * value and upward(value, 12) <= value * (1 + 2**-10)
    assert octave(value) == octave(value * (1 + 1e-7)) and upward(value, 12) == upward(value * (1 + 1e-7), 12)


def test_equal_candidates_stay_and_better_ones_replace() -> None:
    assert not better(1.0, 1.0) and not better(1.0 - 1e-7, 1.0) and not better(0.0, 0.0)
    assert better(0.999, 1.0) and better(0.0, 1e-9)


def test_few_digits_are_left_of_what_is_rounded() -> None:
    found = rounded(np.array([0.0, 1.0, 1.001, -3.3, 1e-20, 65504.0]), 6)
    assert found.tolist()[:3] == [0.0, 1.0, 1.0] and found[3] == -3.3125
    assert (np.abs(found - [0.0, 1.0, 1.001, -3.3, 1e-20, 65504.0]) <= np.abs(found) / 64).all()
