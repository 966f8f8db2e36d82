"""Programs of networks with heavy weights, whose files are never in memory as a whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import npuc
from npuc.ir import Array
from npuc.onnx_files.export import to_onnx
from npuc.program import save
from npuc.storage.mapped import HEAVY, Files, Pieces, contents_of, place_of
from npuc.targets.bm1684.lowering import tensors as region
from npuc.targets.bm1684.lowering.tensors import ConstantRegion
from npuc.verification import equivalence, isolation
from tests.passes.networks import network, node

RANDOM = np.random.default_rng(0)
GRAPH = network(
    (1, 520),
    "y",
    node("MatMul", "x v", "a"),
    node("Relu", "a", "b"),
    node("MatMul", "b w", "y"),
    v=(RANDOM.standard_normal((520, 600)) / 8 + 0.01).astype(np.float32),
    w=(RANDOM.standard_normal((600, 530)) / 8 - 0.01).astype(np.float32),
)
X = {"x": (RANDOM.standard_normal((1, 520)) + 0.5).astype(np.float32)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(to_onnx(GRAPH).SerializeToString())
    assert all(each.nbytes > HEAVY for each in GRAPH.constants.values())
    return path


def written(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted(folder.iterdir())}


@pytest.mark.parametrize(("target", "proved"), [("bm1684", None), ("easynpu", True)])
def test_a_program_is_the_same_file_by_file_however_little_is_in_memory(
    target: str, proved: bool | None, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npuc.compile(model, target, calibration="synthetic").save(tmp_path / "usual")
    for module, name, least in ((equivalence, "WHOLE", 0), (isolation, "LARGE", 0), (region, "PART", 1)):
        monkeypatch.setattr(module, name, least)
    found = npuc.compile(model, target, calibration="synthetic")
    found.save(tmp_path / "little")
    assert found.program.report["proof"] == {"samples": 1, "bit_exact": proved, "model": True}
    assert written(tmp_path / "usual") == written(tmp_path / "little")


def test_a_final_programs_files_are_those_of_one_that_is_kept(model: Path, tmp_path: Path) -> None:
    found = npuc.compile(model, "bm1684").program
    save(found, tmp_path / "kept")
    weights = contents_of(found.files)["weights.bin"]
    save(found, tmp_path / "final", final=True)
    assert isinstance(weights, Pieces) and isinstance(weights.pieces[0], np.ndarray)
    place = place_of(weights.pieces[0])
    assert place is not None and (tmp_path / "final" / "weights.bin").samefile(place.file)
    assert written(tmp_path / "kept") == written(tmp_path / "final")
    modes = [
        {each.name: each.stat().st_mode for each in (tmp_path / name).iterdir()} for name in ("kept", "final")
    ]
    assert modes[0] == modes[1]


def test_equal_weights_are_found_where_samples_of_them_are_equal() -> None:
    weights, values = ConstantRegion(), np.zeros(HEAVY, np.float32)
    swapped, other = values.copy(), values.copy()
    swapped[[1001, 1003]], other[[1003, 1001]] = (2, 1), (2, 1)
    offsets = [weights.image(each) for each in (values, swapped, other, swapped.copy(), values.copy())]
    assert offsets == [0, 4 * HEAVY, 8 * HEAVY, 4 * HEAVY, 0]
    assert bytes(weights.content) == b"".join(each.tobytes() for each in (values, swapped, other))


def test_reference_onnx_is_what_the_model_says(model: Path, tmp_path: Path) -> None:
    found = npuc.compile(model, "bm1684")
    assert isinstance(found.program.evidence, Files)
    assert isinstance(found.program.evidence.contents["reference.onnx"], Pieces)
    found.save(tmp_path / "program")
    reference = tmp_path / "program" / "reference.onnx"
    onnx.checker.check_model(onnx.load(reference), full_check=True)
    (wanted,), (value,) = (onnxruntime.InferenceSession(each).run(["y"], X) for each in (model, reference))
    np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)


def test_the_weights_region_is_the_same_in_parts_and_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values in order at multiples of 128 bytes, equal ones once; zeros behind some values make no difference."""
    values: list[Array] = [RANDOM.standard_normal(count).astype(np.float32) for count in (5, 32, 40, 1, HEAVY)]
    values += [values[1], np.append(values[0], np.float32(0)), np.zeros(0, np.float32)]
    offsets = [0, 128, 256, 512, 640, 128, 0, None]
    content = b"".join(each.tobytes() + bytes(-each.nbytes % 128) for each in values[:5])
    for part in (1 << 24, 1, 300):
        monkeypatch.setattr(region, "PART", part)
        weights = ConstantRegion()
        found = [weights.image(each) for each in values]
        assert found[:-1] == offsets[:-1]
        assert bytes(weights.content) == content
