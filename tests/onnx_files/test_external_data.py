"""Tensors whose bytes lie beside the model: inside its folder, and complete."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from npuc.errors import ModelError
from npuc.frontend import import_model, load
from tests.onnx_models import parse

VALUES = np.array([1.5, -2.0, 3.0], np.float32)


def model_with(**entries: str) -> onnx.ModelProto:
    model = parse("g (float[3] x) => (float[3] y) { y = Add(x, w) }")
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    model.graph.initializer.append(tensor)
    return model


def saved(folder: Path, **entries: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "m.onnx"
    path.write_bytes(model_with(**entries).SerializeToString())
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as refused:
        load(path)
    (problem,) = refused.value.problems
    assert (problem.code, problem.tensor) == ("E108", "w")
    return problem.reason


@pytest.mark.parametrize(("offset", "length"), [("0", "12"), ("8", "12"), ("8", None), (None, None)])
def test_data_at_an_offset_is_read(tmp_path: Path, offset: str | None, length: str | None) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(int(offset or 0)) + VALUES.tobytes() + b"more")
    entries = {"location": "w.bin", "offset": offset, "length": length}
    path = saved(tmp_path, **{key: value for key, value in entries.items() if value is not None})
    np.testing.assert_array_equal(load(path).constants["w"], VALUES)


def test_data_in_a_folder_below_is_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(VALUES.tobytes())
    np.testing.assert_array_equal(load(saved(tmp_path, location="data/w.bin")).constants["w"], VALUES)


def test_a_model_written_by_onnx_itself_is_read(tmp_path: Path) -> None:
    model, path = model_with(), tmp_path / "m.onnx"
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(VALUES, "w"))
    onnx.save_model(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    np.testing.assert_array_equal(load(path).constants["w"], VALUES)


@pytest.mark.parametrize("location", ["../secret.bin", "data/../../secret.bin", "link.bin", "linked/secret.bin"])
def test_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(VALUES.tobytes())
    path = saved(tmp_path / "model", location=location)
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "secret.bin")
    (tmp_path / "model" / "linked").symlink_to(tmp_path)
    assert "outside" in refusal(path)


def test_an_absolute_location_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(VALUES.tobytes())
    assert "outside" in refusal(saved(tmp_path / "model", location=str(tmp_path / "secret.bin")))


@pytest.mark.parametrize("location", ["absent.bin", "", ".", "a\0b", "a" * 5000])
def test_data_that_is_no_file_is_refused(tmp_path: Path, location: str) -> None:
    refusal(saved(tmp_path, location=location))


@pytest.mark.parametrize("entries", [
    {"offset": "4"}, {"length": "8"}, {"length": "16"}, {"offset": "99"}, {"offset": "-4"}, {"length": "twelve"},
    {"offset": "9" * 30},
])  # fmt: skip
def test_data_that_is_too_short_or_misdescribed_is_refused(tmp_path: Path, entries: dict[str, str]) -> None:
    (tmp_path / "w.bin").write_bytes(VALUES.tobytes())
    refusal(saved(tmp_path, location="w.bin", **entries))


def test_a_model_in_memory_has_no_external_data() -> None:
    with pytest.raises(ModelError) as refused:
        import_model(model_with(location="w.bin"))
    assert refused.value.problems[0].code == "E108"
