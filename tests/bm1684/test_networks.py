"""Networks from the command line's functions: compiled, saved, loaded, verified; on the vendor's model as well."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from npuc.models import MODELS
from npuc.program import as_loaded, load
from npuc.target import Options, Request
from npuc.targets.bm1684.simulate import simulator
from npuc.targets.bm1684.target import BM1684
from tests.bm1684.kernels import need_compiler, vendor_libraries
from tests.cli.process import npuc
from tests.compiled import compilation as whole
from tests.files import arrays
from tests.given import GIVEN

SHARED = GIVEN / "models"
TRAINED = ("mnist_cnn", "tiny_ad_ae_fp32", "tiny_kws_dscnn_fp32", "tiny_resnet8_fp32", "mtcnn_pnet")
BUILT = ("digits", "ds_cnn", "residual_awkward", "unet_small", "small_cnn")


def _path(name: str, folder: Path) -> Path:
    if name in BUILT:
        path = folder / f"{name}.onnx"
        onnx.save(MODELS[name](), path)
        return path
    path = SHARED / f"{name}.onnx"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return path


@pytest.fixture(autouse=True)
def _compiler() -> None:
    need_compiler()


def _json(*arguments: object) -> Any:
    outcome = npuc(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    return outcome.json


def _verified(name: str, folder: Path, *options: str) -> Any:
    """The report of a network that was compiled from the command line."""
    model, artefact = _path(name, folder), folder / "program.npu"
    _json("compile", model, "--target", "bm1684", "-o", artefact)
    return _json("verify", model, artefact, "--samples", "2", *options)


@pytest.mark.parametrize("name", [*TRAINED, *BUILT])
def test_a_network_is_within_a_ten_thousandth_of_onnxruntime(name: str, tmp_path: Path) -> None:
    """60 dB is a relative error of 1e-3 of the whole; the outputs here keep 100 dB, 1e-5."""
    report = _verified(name, tmp_path, "--min-sqnr", "100")
    assert report["status"] == "ok"
    assert report["bit_exact"] is None
    compared = [layer["entire"]["sqnr_db"] for layer in report["layers"] if layer["entire"]]
    assert len(compared) > 2
    assert all(sqnr is None or sqnr > 100 for sqnr in compared)


@pytest.mark.parametrize("name", ["tiny_resnet8_fp32", "mnist_cnn", "unet_small", "small_cnn"])
def test_a_network_runs_on_the_vendor_s_chip_model(name: str, tmp_path: Path) -> None:
    """Its cycles are those of npuc's model within 5 percent (seen: within 0.1)."""
    vendor_libraries()
    report = _verified(name, tmp_path, "--chip-model", "vendor", "--min-sqnr", "100")
    assert report["status"] == "ok"
    program = load(tmp_path / "program.npu")
    assert report["cycles"] == pytest.approx(program.manifest["report"]["cycles"], rel=0.05)


def test_the_modelled_cycles_are_those_of_the_calls_that_the_model_saw(tmp_path: Path) -> None:
    report = _verified("residual_awkward", tmp_path)
    assert report["cycles"] == load(tmp_path / "program.npu").manifest["report"]["cycles"]


def test_a_program_runs_without_its_evidence(tmp_path: Path) -> None:
    artefact = tmp_path / "digits.npu"
    _json("compile", _path("digits", tmp_path), "--target", "bm1684", "-o", artefact)
    for name in ("reference.onnx", "graph.json"):
        (artefact / name).unlink()
    data = Path(__file__).resolve().parents[2] / "models" / "digits_test.npz"
    labels, y = tmp_path / "labels.npz", tmp_path / "y.npz"
    np.savez(labels, **{key: value[:5] for key, value in arrays(data).items()})
    _json("run", artefact, "--data", labels, "-o", y)
    found = next(iter(arrays(y).values()))
    np.testing.assert_array_equal(found.argmax(axis=1), arrays(data)["y"][:5])


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    path = _path("residual_awkward", tmp_path)
    first, second = (whole(Request(path, BM1684, Options(precision="fp32"))).program for _ in range(2))
    assert first == second


def test_the_exported_c_compiles_without_a_warning(tmp_path: Path) -> None:
    artefact, folder = tmp_path / "a.npu", tmp_path / "exported"
    _json("compile", _path("unet_small", tmp_path), "--target", "bm1684", "-o", artefact)
    _json("export", artefact, "--format", "okkernel", "-o", folder)
    kernel, launch = "npuc_unet_small_ok_device_kernel.c", "npuc_unet_small_launch.cpp"
    build = {"Makefile", "CMakeLists.txt", "npuc_kernel.h", "npuc_launch.hpp"}
    assert {each.name for each in folder.iterdir()} == {kernel, launch, "weights.bin", "map.json", *build}
    include = ["-I", str(simulator.MODEL)]
    for standard in ("-std=c99", "-std=c11"):
        flags = [standard, "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-fsyntax-only"]
        subprocess.run([simulator.compiler(), *flags, *include, str(folder / kernel)], check=True)


def _exported(name: str, tmp_path: Path, folder: Path) -> Path:
    program = whole(Request(_path(name, tmp_path), BM1684, Options(precision="fp32"))).program
    for file, data in BM1684.export(as_loaded(program), "okkernel").items():
        (folder / file).write_bytes(data)
    return folder


def test_two_networks_fit_into_one_firmware(tmp_path: Path) -> None:
    """Objects have the name that the linker script puts into DDR, and no symbol in common."""
    need_compiler()
    made = []
    for name in ("digits", "residual_awkward"):
        folder = tmp_path / name
        folder.mkdir()
        _exported(name, tmp_path, folder)
        include, cross = f"OKKERNEL={simulator.MODEL}", "CROSS="
        subprocess.run(["make", "-C", str(folder), "kernel", cross, include], check=True, capture_output=True)
        made += [str(each) for each in folder.glob("*ok_device_*.o")]
    assert len(made) == 2
    together = ["-r", "-nostdlib", "-o", str(tmp_path / "firmware.o"), *made]
    subprocess.run([simulator.compiler(), *together], check=True)


BMLIB = Path(__file__).with_name("bmlib")
"""Declarations of what the launcher calls."""


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_the_launcher_compiles_without_a_warning(tmp_path: Path) -> None:
    folder = _exported("digits", tmp_path, tmp_path)
    for standard in ("-std=c++11", "-std=c++17"):
        flags = [standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I", str(BMLIB)]
        subprocess.run(["g++", *flags, str(folder / "npuc_digits_launch.cpp")], check=True)
