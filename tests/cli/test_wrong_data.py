"""Bad data files: one clear block for `--calibration` as for `--data`, whatever numpy makes of them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from npuc.ir import Array
from tests.cli.process import Digits, compiled, npuc

SAMPLES = np.random.default_rng(1).uniform(0, 16, (4, 1, 8, 8)).astype(np.float32)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data.npz"


def expect_refusal(digits: Digits, data: Path, code: str, *facts: str) -> None:
    """compile, run and verify say the same, and write nothing."""
    output = data.parent / "o"
    message = compiled(digits.model, output, "--calibration", data).refused(code)
    assert npuc("run", digits.program, "--data", data, "-o", output).refused(code) == message
    assert npuc("verify", digits.model, digits.program, "--data", data).refused(code) == message
    assert str(data) in message and all(fact in message for fact in facts), message
    assert not output.exists()


ARRAYS: dict[str, tuple[dict[str, object], str, tuple[str, ...]]] = {
    "no array": ({}, "E401", ("'input'", "found: nothing", "or 'x'")),
    "another name": ({"images": SAMPLES}, "E401", ("no array 'input'", "found: images", "or 'x'")),
    "python objects": ({"x": np.array([None, {}])}, "E401", ("'x'", "Python objects")),
    "text": ({"x": np.array(["a", "b"])}, "E402", ("<U1 [2]", "[samples, 1, 8, 8] of numbers")),
    "complex": ({"x": SAMPLES.astype(np.complex64)}, "E402", ("complex64",)),
    "dates": ({"x": SAMPLES.astype("M8[s]")}, "E402", ("datetime64",)),
    "records": ({"x": np.zeros((4, 1, 8, 8), [("a", "f4")])}, "E402", ("[4, 1, 8, 8]",)),
    "a scalar": ({"x": np.float32(1)}, "E402", ("float32 []", "[samples, 1, 8, 8]")),
    "one sample without its axis": ({"x": SAMPLES[0]}, "E402", ("[1, 8, 8]", "[samples, 1, 8, 8]")),
    "a wrong extent": ({"x": SAMPLES[:, :, :7]}, "E402", ("[4, 1, 7, 8]", "[samples, 1, 8, 8]")),
    "another order": ({"x": SAMPLES.transpose(0, 2, 3, 1)}, "E402", ("[4, 8, 8, 1]",)),
    "no samples": ({"x": SAMPLES[:0]}, "E402", ("no samples",)),
    "not a number": ({"x": np.where(SAMPLES > 8, np.nan, SAMPLES)}, "E402", ("not finite",)),
    "infinity": ({"x": np.where(SAMPLES > 8, np.inf, SAMPLES)}, "E402", ("not finite",)),
    "more than float32 holds": ({"x": SAMPLES.astype(np.float64) * 1e300}, "E402", ("not finite",)),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_do_not_fit_the_model_are_refused(digits: Digits, data: Path, case: str) -> None:
    arrays, code, facts = ARRAYS[case]
    np.savez(data, **arrays)  # type: ignore[arg-type]
    expect_refusal(digits, data, code, *facts)


@pytest.mark.parametrize("content", [b"", b"text\n", b"PK\x03\x04 and no more", b"\x80\x04N."])
def test_a_file_that_is_no_npz_is_refused(digits: Digits, data: Path, content: bytes) -> None:
    data.write_bytes(content)
    expect_refusal(digits, data, "E401", "not a NumPy .npz file")


def test_a_single_array_is_refused(digits: Digits, data: Path) -> None:
    np.save(data.with_suffix(".npy"), SAMPLES)
    expect_refusal(digits, data.with_suffix(".npy"), "E401", "single array", "numpy.savez")


def test_a_missing_file_and_a_folder_without_samples_are_refused(digits: Digits, data: Path) -> None:
    expect_refusal(digits, data, "E401", "No such file")
    data.mkdir()
    expect_refusal(digits, data, "E401", "the folder", "has no .npz files")


def test_one_bad_file_of_two_is_refused_by_name(digits: Digits, data: Path) -> None:
    command = ("run", digits.program, "--data", digits.few, "--data", data, "-o", data.parent / "y.npz")
    assert str(data) in npuc(*command).refused("E401")


@pytest.mark.parametrize("member", [b"text", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x01\x00\xff\xff{"])
def test_a_member_that_is_no_array_is_refused(digits: Digits, data: Path, member: bytes) -> None:
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("x.npy", member)
    expect_refusal(digits, data, "E401", "'x'", "damaged")


def test_an_array_that_claims_to_be_enormous_is_refused(digits: Digits, data: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000000, 1, 8, 8), }".ljust(117) + b"\n"
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    expect_refusal(digits, data, "E401", "'x'")


def test_whatever_happens_to_a_file_it_is_refused_or_read(digits: Digits, data: Path) -> None:
    np.savez_compressed(data, x=SAMPLES[:1])
    whole, random = data.read_bytes(), np.random.default_rng(3)
    for _ in range(150):
        damaged = bytearray(whole)
        for at in random.integers(0, len(whole), 2):
            damaged[at] = int(random.integers(256))
        data.write_bytes(damaged[: int(random.integers(len(whole) // 2, 2 * len(whole)))])
        outcome = npuc("run", digits.program, "--data", data, "-o", data.parent / "y.npz")
        assert outcome.code == 0 or outcome.err.startswith("error[E40"), outcome.err


@pytest.mark.parametrize(
    "values", [SAMPLES.astype(np.float16), SAMPLES.astype(np.uint8), SAMPLES.astype(np.int64), SAMPLES > 8]
)
def test_other_numbers_are_cast(digits: Digits, data: Path, values: Array) -> None:
    np.savez(data, x=values)
    np.savez(data.parent / "f.npz", x=values.astype(np.float32))
    for name in ("data", "f"):
        npuc(
            "run", digits.program, "--data", data.parent / f"{name}.npz", "-o", data.parent / f"{name}_y.npz"
        ).done()
    assert (data.parent / "data_y.npz").read_bytes() == (data.parent / "f_y.npz").read_bytes()


def test_the_input_s_own_name_comes_before_x_and_other_keys_are_ignored(digits: Digits, data: Path) -> None:
    strange = np.array([{}, None], dtype=object)
    np.savez(data, input=SAMPLES, x=SAMPLES[:1], y=strange, z=strange)
    outcome = npuc("run", digits.program, "--data", data, "-o", data.parent / "y.npz", "--json")
    assert outcome.json["samples"] == 4


def test_the_batch_axis_may_be_written_out(digits: Digits, data: Path) -> None:
    for name, values in (("data", SAMPLES), ("long", SAMPLES[:, None])):
        np.savez(data.parent / f"{name}.npz", x=values)
        npuc(
            "run", digits.program, "--data", data.parent / f"{name}.npz", "-o", data.parent / f"{name}_y.npz"
        ).done()
    assert (data.parent / "data_y.npz").read_bytes() == (data.parent / "long_y.npz").read_bytes()


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30])
def test_constant_calibration_gives_a_program_or_a_refusal(digits: Digits, data: Path, value: float) -> None:
    np.savez(data, x=np.full_like(SAMPLES, value))
    outcome = compiled(digits.model, data.parent / "o", "--calibration", data)
    if outcome.code:
        outcome.refused("E304")
    else:
        npuc("run", data.parent / "o", "--data", data, "-o", data.parent / "y.npz").done()
