"""Samples from .npz files: what is accepted, what is cast, and what is refused by name."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npuc.errors import ArtefactError, DataError, Problem
from npuc.ir import TensorType
from npuc.samples.loading import Samples, load, save, synthetic
from tests.files import arrays

ONE = {"input": TensorType((1, 2, 3))}
TWO = {"left": TensorType((1, 2)), "right": TensorType((3,))}


def _file(tmp_path: Path, name: str = "data.npz", **arrays: Any) -> Path:
    path = tmp_path / name
    np.savez(path, **arrays)
    return path


def _refused(path: Path | list[Path], inputs: dict[str, TensorType]) -> Problem:
    with pytest.raises(DataError) as caught:
        load(path if isinstance(path, list) else [path], inputs)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize("shape", [(5, 2, 3), (5, 1, 2, 3)])
@pytest.mark.parametrize("key", ["input", "x"])
def test_a_single_input_may_be_called_x_and_leave_its_leading_one_out(
    tmp_path: Path, shape: tuple[int, ...], key: str
) -> None:
    values = np.arange(30, dtype=np.float32).reshape(shape)
    found = load([_file(tmp_path, **{key: values})], ONE)
    assert found.inputs["input"].shape == (5, 1, 2, 3)
    assert found.inputs["input"].ravel().tolist() == values.ravel().tolist()
    assert len(found) == 5
    assert not found.synthetic


def test_the_inputs_own_name_comes_before_x(tmp_path: Path) -> None:
    found = load([_file(tmp_path, input=np.ones((1, 2, 3)), x=np.zeros((1, 2, 3)))], ONE)
    assert found.inputs["input"].all()


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "int8", "int64", "bool"])
def test_numbers_of_any_kind_are_cast_to_the_inputs_type(tmp_path: Path, dtype: str) -> None:
    found = load([_file(tmp_path, x=np.ones((2, 2, 3), dtype))], ONE)
    assert found.inputs["input"].dtype == np.float32
    assert found.inputs["input"].all()


def test_several_inputs_are_found_by_name(tmp_path: Path) -> None:
    path = _file(tmp_path, left=np.ones((4, 2)), right=np.zeros((4, 3)), other=np.zeros(7))
    found = load([path], TWO)
    assert {name: values.shape for name, values in found.inputs.items()} == {"left": (4, 1, 2), "right": (4, 3)}
    feeds = list(found.feeds())
    assert len(feeds) == 4
    assert feeds[0]["left"].shape == (1, 2)
    assert feeds[0]["right"].shape == (3,)


def test_files_are_joined_in_their_order(tmp_path: Path) -> None:
    paths = [_file(tmp_path, f"{k}.npz", x=np.full((k, 2, 3), k), y=np.full(k, k)) for k in (2, 1, 3)]
    found = load(paths, ONE)
    assert found.inputs["input"][:, 0, 0, 0].tolist() == [2, 2, 1, 3, 3, 3]
    assert found.labels is not None
    assert found.labels.tolist() == [2, 2, 1, 3, 3, 3]


def test_labels_are_y_unless_an_input_has_that_name(tmp_path: Path) -> None:
    path = _file(tmp_path, x=np.zeros((2, 2, 3)), y=np.array([3, 4]))
    labelled = load([path], ONE)
    assert labelled.labels is not None
    assert labelled.labels.tolist() == [3, 4]
    assert load([_file(tmp_path, y=np.zeros((2, 2)))], {"y": TensorType((1, 2))}).labels is None


@pytest.mark.parametrize(("labels", "reason"), [
    (np.zeros(3), "have the shape [3] for 2 samples"),
    (np.zeros((2, 10)), "have the shape [2, 10] for 2 samples"),
    (np.float32(1), "have the shape [] for 2 samples"),
    (np.array(["cat", "dog"]), "are no class numbers, but <U3"),
    (np.array([0.5, 1]), "are no class numbers, but float64"),
    (np.array([np.nan, 1]), "are no class numbers, but float64"),
])  # fmt: skip
def test_labels_that_are_not_a_class_a_sample_are_left_out_with_a_reason(
    tmp_path: Path, labels: Any, reason: str
) -> None:
    found = load([_file(tmp_path, x=np.zeros((2, 2, 3)), y=labels)], ONE)
    assert found.labels is None and found.left_out.endswith(f"the labels 'y' {reason}")


def test_labels_in_a_column_and_whole_floats_are_classes(tmp_path: Path) -> None:
    found = load([_file(tmp_path, x=np.zeros((2, 2, 3)), y=np.array([[3.0], [1.0]]))], ONE)
    assert found.labels is not None and found.labels.tolist() == [3, 1] and not found.left_out


def test_labels_in_only_some_files_are_left_out(tmp_path: Path) -> None:
    some = _file(tmp_path, "a.npz", x=np.zeros((2, 2, 3)), y=np.zeros(2))
    none = _file(tmp_path, "b.npz", x=np.zeros((2, 2, 3)))
    assert load([some, none], ONE).labels is None


def test_at_most_so_many_samples_can_be_asked_for(tmp_path: Path) -> None:
    found = load([_file(tmp_path, x=np.zeros((5, 2, 3)), y=np.arange(5))], ONE)
    first = found.first(2)
    assert len(first) == 2
    assert first.labels is not None
    assert first.labels.tolist() == [0, 1]
    assert len(found.first(None)) == len(found.first(99)) == 5


@pytest.mark.parametrize(("values", "found"), [
    (np.zeros((5, 3, 2)), "float64 [5, 3, 2]"), (np.zeros((5, 6)), "float64 [5, 6]"), (np.zeros(6), "float64 [6]"),
    (np.float32(3), "float32 []"), (np.zeros((2, 5, 1, 2, 3)), "[2, 5, 1, 2, 3]"),
    (np.zeros((5, 2, 3), complex), "complex128"), (np.full((5, 2, 3), "a"), "<U1"),
])  # fmt: skip
def test_a_wrong_shape_or_type_is_refused_with_what_is_wanted(tmp_path: Path, values: Any, found: str) -> None:
    problem = _refused(_file(tmp_path, x=values), ONE)
    assert (problem.code, problem.tensor) == ("E402", "input")
    assert found in problem.reason
    assert problem.limit is not None
    assert "2, 3" in problem.limit


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_values_that_are_no_finite_32_bit_floats_are_refused(tmp_path: Path, value: float) -> None:
    problem = _refused(_file(tmp_path, x=np.full((1, 2, 3), value)), ONE)
    assert problem.code == "E402"
    assert "finite" in problem.reason


@pytest.mark.parametrize("value", [0.5, -1.0, 256, -3, np.nan, np.inf])
def test_values_that_an_integer_input_cannot_hold_are_refused(tmp_path: Path, value: float) -> None:
    image = {"input": TensorType((1, 2, 3), "uint8")}
    problem = _refused(_file(tmp_path, x=np.full((1, 2, 3), value)), image)
    assert (problem.code, problem.tensor) == ("E402", "input")
    assert "uint8 cannot hold" in problem.reason
    assert (load([_file(tmp_path, x=np.full((1, 2, 3), 255.0))], image).inputs["input"] == 255).all()


def test_no_samples_are_refused(tmp_path: Path) -> None:
    problem = _refused(_file(tmp_path, x=np.zeros((0, 2, 3))), ONE)
    assert (problem.code, "no samples" in problem.reason) == ("E402", True)


def test_different_numbers_of_samples_are_refused(tmp_path: Path) -> None:
    problem = _refused(_file(tmp_path, left=np.ones((4, 2)), right=np.zeros((3, 3))), TWO)
    assert problem.code == "E402"
    assert "[3, 4]" in problem.reason


def test_a_missing_input_is_named_with_what_there_is(tmp_path: Path) -> None:
    problem = _refused(_file(tmp_path, left=np.ones((4, 2)), x=np.ones((4, 3))), TWO)
    assert (problem.code, problem.tensor) == ("E401", "right")
    assert problem.limit == "found: left, x"


def test_python_objects_are_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert _refused(path, ONE).code == "E401"


@pytest.mark.parametrize(
    "content", [b"", b"PK\x05\x06" + bytes(18), b"PK\x03\x04", b"\x93NUMPY", b"hello", b"\x80\x04."]
)
def test_files_that_are_no_npz_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    assert _refused(path, ONE).code == "E401"


def test_a_single_array_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros((1, 2, 3)))
    for name in ("one.npy", ".", "absent.npz"):
        problem = _refused(tmp_path / name, ONE)
        assert problem.code == "E401"
        assert str(tmp_path) in problem.reason


def test_a_zip_of_other_things_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"not an array")
        archive.writestr("readme.txt", b"hello")
    assert _refused(path, ONE).code == "E401"


@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_file_is_refused_or_read_but_never_a_traceback(tmp_path: Path, compressed: bool) -> None:
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, x=np.zeros((3, 2, 3), np.float32), y=np.arange(3))
    good, path = buffer.getvalue(), tmp_path / "data.npz"
    random = np.random.default_rng(0)
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        try:
            found = load([path], ONE)
        except DataError:
            continue
        assert found.inputs["input"].shape[1:] == (1, 2, 3)
    for size in range(0, len(good), 7):
        path.write_bytes(good[:size])
        assert _refused(path, ONE).code == "E401"


def test_synthetic_samples_are_the_same_every_time() -> None:
    types = {**ONE, "count": TensorType((1, 4), "int64"), "scalar": TensorType(())}
    found, again = synthetic(types), synthetic(types)
    assert found.synthetic
    assert len(found) == 8
    for name, each in types.items():
        assert found.inputs[name].shape == (8, *each.shape)
        assert found.inputs[name].dtype == each.dtype
        np.testing.assert_array_equal(found.inputs[name], again.inputs[name])
    assert not np.array_equal(found.inputs["input"], synthetic(types, seed=1).inputs["input"])


def test_outputs_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    save(tmp_path / "y.npz", {"y": np.arange(3)})
    assert arrays(tmp_path / "y.npz")["y"].tolist() == [0, 1, 2]
    assert [each.name for each in tmp_path.iterdir()] == ["y.npz"]
    for path in (tmp_path / "absent" / "y.npz", tmp_path):
        with pytest.raises(ArtefactError) as caught:
            save(path, {"y": np.arange(3)})
        assert caught.value.problems[0].code == "E506"
    assert [each.name for each in tmp_path.iterdir()] == ["y.npz"]


def test_samples_may_have_inputs_without_any_dimension(tmp_path: Path) -> None:
    found = load([_file(tmp_path, s=np.arange(3))], {"s": TensorType(())})
    assert isinstance(found, Samples)
    assert [feed["s"].shape for feed in found.feeds()] == [(), (), ()]


def test_files_of_one_element_each_make_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {"input": TensorType((2, 1, 3))}
    files = [_file(tmp_path, f"{at}.npz", x=np.full((1, 1, 3), at), y=np.array([at])) for at in range(4)]
    for large in (1 << 26, 0):  # in memory, streamed
        monkeypatch.setattr("npuc.samples.streams.LARGE", large)
        found = load(files, batch)
        assert found.inputs["input"][..., 0, 0].tolist() == [[0, 1], [2, 3]] and found.inputs["input"].ndim == 4
        assert found.labels is None and found.truth is not None and found.truth.tolist() == [[0, 1], [2, 3]]
        assert [feed["input"][:, 0, 0].tolist() for feed in found.part(1, 2).feeds()] == [[2, 3]]
    assert load([_file(tmp_path, x=np.zeros((3, 2, 1, 3)))], batch).inputs["input"].shape == (3, 2, 1, 3)
    problem = _refused(files[:3], batch)
    assert (problem.code, problem.reason.partition(",")[0]) == ("E402", "3 elements")
    assert "[samples, 2, 1, 3]" in str(_refused([_file(tmp_path, x=np.zeros((2, 3, 1)))], batch).limit)
