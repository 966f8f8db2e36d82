"""An export as its user builds it, on the vendor's chip model: launcher and kernel give what `npuc run` gives."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import npuc as api
from npuc.ir import Array
from npuc.models import MODELS
from npuc.program import load
from npuc.targets.bm1684.simulate import running, simulator
from tests.bm1684.kernels import vendor_libraries
from tests.cli.process import SYNTHETIC, npuc
from tests.files import arrays
from tests.images.making import SIZE, network, photos

DEVICE = Path(__file__).with_name("bmlib") / "vendor_device.cpp"
SONAME = "libbackend_1684.so"
"""What the vendor's library calls itself."""
ROOM = 1 << 27
"""Of system memory."""


def built(folder: Path, name: str, libraries: str) -> Path:
    """The launcher with its kernel and the vendor's model, by the rules of the SDK."""
    kernel = folder / f"{name}_ok_device_kernel.o"
    make = ["make", "-C", str(folder), "kernel", "CROSS=", f"OKKERNEL={simulator.MODEL}"]
    subprocess.run(make, check=True, capture_output=True)
    flags = ["-std=c++11", "-Wall", "-Wextra", "-O1", "-rdynamic", "-I", str(DEVICE.parent)]
    (folder / SONAME).symlink_to(Path(libraries).resolve() / running.LIBRARY)
    linked = [f"-Wl,-rpath,{folder}:{libraries}", str(folder / SONAME), "-ldl", "-Wl,--allow-shlib-undefined"]
    sources = [str(folder / f"{name}_launch.cpp"), str(DEVICE), str(kernel)]
    subprocess.run(["g++", *flags, "-o", str(folder / "launched"), *sources, *linked], check=True)
    return folder / "launched"


@pytest.mark.parametrize(
    ("name", "options"), [("resnet8", ()), ("unet_small", ()), ("digits", ("--precision", "int8", *SYNTHETIC))]
)
def test_an_exported_launcher_gives_what_run_gives(name: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """To the bit, on the same model; its cycles are npuc's within a thousandth."""
    libraries = vendor_libraries()
    if shutil.which("g++") is None or shutil.which("make") is None:
        pytest.skip("there is no g++ or make")
    model, artefact, folder = tmp_path / f"{name}.onnx", tmp_path / "a.npu", tmp_path / "out"
    onnx.save(MODELS[name](), model)
    npuc("compile", model, "--target", "bm1684", "-o", artefact, *options).done()
    program = load(artefact)
    (port,), (result,) = program.inputs, program.outputs
    x = np.random.default_rng(3).normal(0.4, 1.5, (2, *port.shape[1:])).astype(np.float32)
    np.savez(tmp_path / "x.npz", **{port.name: x})
    arguments = ("--data", tmp_path / "x.npz", "-o", tmp_path / "y.npz", "--chip-model", "vendor")
    npuc("run", artefact, *arguments).done()
    wanted = arrays(tmp_path / "y.npz")[result.name]
    npuc(
        "export", artefact, "--format", "okkernel", "-o", folder, "--self-test", "--data", tmp_path / "x.npz"
    ).done()
    launched = built(folder, f"npuc_{name}", libraries)
    for sample, values in enumerate(wanted):
        tests = folder / "self_test" / str(sample)
        command = [str(launched), "weights.bin", str(tests / "input_0.bin"), "found.bin"]
        done = subprocess.run(
            command, cwd=folder, env={"SYSTEM_BYTES": str(ROOM)}, capture_output=True, text=True, check=True
        )
        assert int(done.stdout.split()[-1]) == pytest.approx(program.report["cycles"], rel=0.001)
        found = (folder / "found.bin").read_bytes()
        if options:
            files = (tests / "output_0.bin", folder / "self_test" / "mask_0.bin")
            expected, mask = (np.fromfile(each, np.uint8) for each in files)
            assert (mask * np.frombuffer(found, np.uint8) == mask * expected).all()
        else:
            assert found == values.astype(np.float32).tobytes()


@pytest.mark.parametrize("batch", [1, 5])
def test_a_launcher_takes_the_bytes_of_frames(batch: int, tmp_path: Path) -> None:
    libraries = vendor_libraries()
    if shutil.which("g++") is None or shutil.which("make") is None:
        pytest.skip("there is no g++ or make")
    artefact, folder = tmp_path / "a.npu", tmp_path / "out"
    model = network(tmp_path, (batch, 3, SIZE, SIZE))
    options = ("--precision", "int8", "--input", "imagenet", "--calibration", photos(tmp_path, 10))
    npuc("compile", model, "--target", "bm1684", "-o", artefact, *options).done()
    frames = np.random.default_rng(3).integers(0, 256, (2, batch, SIZE, SIZE, 3)).astype(np.uint8)
    np.savez(tmp_path / "x.npz", x=frames)
    npuc(
        "export", artefact, "--format", "okkernel", "-o", folder, "--self-test", "--data", tmp_path / "x.npz"
    ).done()
    source = (folder / "npuc_net_launch.cpp").read_text("utf-8")
    assert (
        "npuc_net_run(const std::uint8_t *frame_0, void *output_0, bm_handle_t handle, const void *weights)"
        in source
    )
    launched = built(folder, "npuc_net", libraries)
    for sample, pixels in enumerate(frames):
        tests = folder / "self_test" / str(sample)
        assert (tests / "input_0.bin").read_bytes() == pixels.tobytes()
        command = [str(launched), "weights.bin", str(tests / "input_0.bin"), "found.bin"]
        subprocess.run(command, cwd=folder, env={"SYSTEM_BYTES": str(ROOM)}, capture_output=True, check=True)
        files = (folder / "found.bin", tests / "output_0.bin", folder / "self_test" / "mask_0.bin")
        found, wanted, mask = (np.fromfile(each, np.uint8) for each in files)
        assert mask.any() and (mask * found == mask * wanted).all()


def given_by_the_launcher(made: api.Compiled, folder: Path, frame: Array) -> bytes:
    """The input region that the launcher makes of a frame's bytes."""
    files = made.target.export(made.program, "okkernel")
    folder.mkdir()
    for name, data in {**files, "frame.bin": frame.tobytes()}.items():
        (folder / name).write_bytes(data)
    (source,) = (each for each in files if each.endswith("_launch.cpp"))
    device = DEVICE.with_name("writing_device.cpp")
    command = ["g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-I", str(DEVICE.parent), "-o", "launched"]
    subprocess.run([*command, source, str(device)], cwd=folder, check=True)
    run = ["./launched", "weights.bin", "frame.bin", "out.bin"]
    return subprocess.run(run, cwd=folder, check=True, capture_output=True).stderr[len(files["weights.bin"]) :]


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize(
    ("batch", "layout", "preset", "pad"),
    [(1, "nhwc", "imagenet", 1), (5, "nchw", "imagenet", 3), (2, "nhwc", "yolo", 1), (1, "nchw", "tf", 0)],
)
def test_a_launcher_lays_frames_out(batch: int, layout: str, preset: str, pad: int, tmp_path: Path) -> None:
    # by hand: the mean's nearest pixel around it, less 128 (a mean of 0: unsigned), in words of four images
    model, keys = network(tmp_path, (batch, 3, SIZE, SIZE), pad=pad), {"preset": preset, "layout": layout}
    made = api.compile(model, "bm1684", precision="int8", calibration="synthetic", input=keys, proof="off")
    frame = np.random.default_rng(3).integers(0, 256, (batch, 3, SIZE, SIZE)).astype(np.uint8)
    camera = frame if layout == "nchw" else np.moveaxis(frame, 1, -1)
    given = given_by_the_launcher(made, tmp_path / "int8", camera)
    border = {"imagenet": pad, "yolo": 0, "tf": 0}[preset]
    canvas = np.empty((batch, 3, SIZE + 2 * border, SIZE + 2 * border), np.uint8)
    canvas[:] = np.array([124, 116, 104], np.uint8).reshape(3, 1, 1)
    canvas[:, :, border : border + SIZE, border : border + SIZE] = frame
    words = np.frombuffer(given, np.uint8).reshape(-(-batch // 4), *canvas.shape[1:], 4)
    for n in range(batch):
        assert (words[n // 4, ..., n % 4] == canvas[n] ^ np.uint8(0 if preset == "yolo" else 128)).all()
    if preset == "imagenet":  # floats have neither mean nor padding
        floats = api.compile(model, "bm1684", precision="fp32", calibration="synthetic", input=keys, proof="off")
        numbers = given_by_the_launcher(floats, tmp_path / "fp32", camera)
        assert np.array_equal(np.frombuffer(numbers, np.float32), camera.ravel())


@pytest.mark.skipif(None in (shutil.which("cmake"), shutil.which("g++")), reason="there is no cmake or g++")
def test_cmake_builds_both_sides(tmp_path: Path) -> None:
    """The object has a name that the SDK's linker script puts into DDR; the launcher links with bmlib."""
    model, artefact, folder = tmp_path / "resnet8.onnx", tmp_path / "a.npu", tmp_path / "out"
    onnx.save(MODELS["resnet8"](), model)
    npuc("compile", model, "--target", "bm1684", "-o", artefact).done()
    npuc("export", artefact, "--format", "okkernel", "-o", folder, "--prefix", "Net-8").done()
    bmlib, build = tmp_path / "bmlib", tmp_path / "build"
    (bmlib / "lib").mkdir(parents=True)
    shutil.copytree(DEVICE.parent, bmlib / "include")
    undefined = ["-shared", "-fPIC", "-I", str(bmlib / "include"), "-o", str(bmlib / "lib" / "libbmlib.so")]
    subprocess.run(["g++", *undefined, str(DEVICE), "-Wl,--unresolved-symbols=ignore-all"], check=True)
    given = [
        f"-DOKKERNEL={simulator.MODEL}",
        f"-DBMLIB={bmlib}",
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined",
    ]
    subprocess.run(["cmake", "-S", str(folder), "-B", str(build), *given], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(build)], check=True, capture_output=True)
    assert (build / "Net_8_launch").is_file()
    assert [each.name for each in build.rglob("*ok_device_*.o")] == ["Net_8_ok_device_kernel.c.o"]
