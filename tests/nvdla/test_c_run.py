"""npuc_run of the C export on the functional model: hooks in Python hand commands and memory to it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import npuc as api
from npuc.ir import Array
from npuc.program import Program
from npuc.target import target
from npuc.targets.nvdla.machine.registers import Command, Poll, Wait, Write, register_map
from npuc.targets.nvdla.model import ChipModel, DeviceMemory
from npuc.targets.nvdla.program.artefact import STATUS, Contents, Segment
from tests.images.making import SIZE, photos
from tests.images.making import network as pictured
from tests.nvdla.networks import compiled
from tests.onnx_models import network, node, parse, weights

COMPILER = shutil.which("gcc") or shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
STRICT = [
    "-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-pedantic", "-Werror", "-O1",
    "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error",
]  # fmt: skip
ADDRESSES = ("-fsanitize=address", "-fno-sanitize-recover=all")
TWO = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)
THREE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)


class Hooks(ctypes.Structure):
    _fields_ = (
        ("context", ctypes.c_void_p), ("write", TWO), ("poll", THREE), ("wait", TWO), ("offset", ctypes.c_uint32),
    )  # fmt: skip


def library(program: Program, name: str, folder: Path, flags: Sequence[str] = ()) -> ctypes.CDLL:
    files = target(name).export(program, "c")
    for file, data in files.items():
        (folder / file).write_bytes(data)
    sources = [file for file in files if file.endswith(".c")]
    command = [str(COMPILER), *STRICT, *flags, "-fPIC", "-shared", "-o", "run.so", *sources, "-lm"]
    subprocess.run(command, check=True, cwd=folder)
    return ctypes.CDLL(str(folder / "run.so"))


def run(program: Program, found: ctypes.CDLL, inputs: list[Array], outputs: list[Array]) -> int:
    """npuc_run, whose commands the functional model carries out on the same memory."""
    contents = Contents.of(program.manifest)
    memory = DeviceMemory.zeros(contents.dram.base, contents.dram.bytes)
    nvdla = ChipModel(contents.machine, memory, exact=True)
    status = register_map(contents.machine.registers)[STATUS]
    done = {1 << place.low: name for name, place in status.places.items() if "_DONE_" in name}
    names = {bit: name.split("_DONE_STATUS") for bit, name in done.items()}
    ends = [step.count for step in contents.steps if isinstance(step, Segment)]
    waiting: list[Command] = []

    def play(command: Command) -> int:
        waiting.append(command)
        if len(waiting) == ends[0]:
            nvdla.execute(waiting)
            waiting.clear()
            ends.pop(0)
        return 0

    def write(_context: int, address: int, value: int) -> int:
        return play(Write(address, value))

    def poll(_context: int, address: int, mask: int, value: int) -> int:
        return play(Poll(address, mask, value))

    def wait(_context: int, _address: int, mask: int) -> int:
        return play(Wait(names[mask][0], int(names[mask][1])))

    hooks = Hooks(None, TWO(write), THREE(poll), TWO(wait), 0)
    ((_, bytes_of_memory),) = memory.regions
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (*inputs, *outputs, bytes_of_memory)]
    return found.npuc_run(*pointers, ctypes.byref(hooks))


def check(
    model: onnx.ModelProto,
    folder: Path,
    name: str,
    precision: str = "int8",
    flags: Sequence[str] = (),
    **options: Any,
) -> None:
    """Outputs of the library are those of the simulator, to the last bit of what softmax and conversions give."""
    _, _, program = compiled(model, folder, name, precision=precision, **options)
    rng = np.random.default_rng(3)
    inputs = [(rng.normal(0.3, 1, each.shape)).astype(np.float32) for each in program.inputs]
    feeds = {port.name: values[None] for port, values in zip(program.inputs, inputs, strict=True)}
    wanted = target(name).runner(program)(feeds)
    outputs = [np.full(each.shape, np.nan, np.float32) for each in program.outputs]
    assert run(program, library(program, name, folder, flags), inputs, outputs) == 0
    for port, values in zip(program.outputs, outputs, strict=True):
        np.testing.assert_allclose(values, wanted[port.name][0], rtol=2e-6, atol=1e-7)


def classifier() -> onnx.ModelProto:
    constants = {"w": weights(8, 3, 3, 3), "v": weights(5, 8)}
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("GlobalAveragePool", "b", "c"),
        node("Flatten", "c", "d"),
        node("Gemm", "d v", "e", transB=1),
        node("Softmax", "e", "y"),
    ]
    return network(nodes, (1, 3, 8, 8), constants)


@pytest.mark.parametrize(
    ("name", "precision"),
    [("nvdla-small", "int8"), ("nvdla-full", "int8"), ("nvdla-full", "int16"), ("nvdla-full", "fp16")],
)
def test_a_classifier_runs_as_the_simulator_runs_it(name: str, precision: str, tmp_path: Path) -> None:
    check(classifier(), tmp_path, name, precision)


@pytest.mark.parametrize(
    ("name", "precision", "pad"),
    [("nvdla-small", "int8", 1), ("nvdla-full", "int8", 0), ("nvdla-full", "fp16", 1)],
)
def test_npuc_run_takes_the_bytes_of_a_frame(name: str, precision: str, pad: int, tmp_path: Path) -> None:
    folder = photos(tmp_path)
    program = api.compile(
        pictured(tmp_path, pad=pad), name, precision=precision, calibration=folder, input="imagenet"
    ).program
    frame = np.random.default_rng(3).integers(0, 256, (1, SIZE, SIZE, 3)).astype(np.uint8)
    (wanted,) = target(name).runner(program)({"x": frame[None]}).values()
    output = np.full(program.outputs[0].shape, np.nan, np.float32)
    assert run(program, library(program, name, tmp_path), [frame], [output]) == 0
    np.testing.assert_allclose(output, wanted[0], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("wide", ["a", "e"])
def test_int16_beside_int8_runs_as_the_simulator_runs_it(wide: str, tmp_path: Path) -> None:
    check(classifier(), tmp_path, "nvdla-full", layer=((wide, "int16"),))


ALONE = f"""
from pathlib import Path
from tests.nvdla import test_c_run as tests
tests.check(tests.classifier(), Path.cwd(), "nvdla-small", flags={ADDRESSES})
print("done")
"""


def test_no_access_is_outside_the_buffers(tmp_path: Path) -> None:
    """AddressSanitizer must be the first library of a process."""
    found = subprocess.run(
        [str(COMPILER), "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    )
    runtime = Path(found.stdout.strip())
    if not runtime.is_absolute():
        pytest.skip("no AddressSanitizer")
    environment = {
        "LD_PRELOAD": str(runtime.resolve()),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_several_inputs_and_outputs_with_steps_before_and_behind(precision: str, tmp_path: Path) -> None:
    """Channels last at the border; one output in the middle, one that is also read."""
    text = """g (float[1,6,6,4] a, float[1,4,6,6] b) => (float[1,6,6,8] y, float[1,8] z) {
        t = Transpose <perm = [0, 3, 1, 2]> (a) c = Conv <pads = [1, 1, 1, 1]> (t, w) d = Conv (b, v)
        e = Add (c, d) y = Transpose <perm = [0, 2, 3, 1]> (e)
        p = GlobalAveragePool (e) f = Flatten (p) z = Softmax (f) }"""
    model = parse(text, w=weights(8, 4, 3, 3), v=weights(8, 4, 1, 1))
    check(model, tmp_path, "nvdla-full", precision)


@pytest.mark.parametrize(
    ("op", "attributes"), [("MaxPool", {"kernel_shape": [2, 2]}), ("Softmax", {}), ("Relu", {})]
)
def test_a_program_without_weights_or_commands_compiles_and_runs(
    op: str, attributes: dict[str, Any], tmp_path: Path
) -> None:
    check(network([node(op, "x", "y", **attributes)], (1, 3, 8, 8), {}), tmp_path, "nvdla-small")


def test_what_the_library_lacks_is_declared_for_the_application(tmp_path: Path) -> None:
    """The classifier with Cast in place of its Softmax."""
    _, _, program = compiled(classifier(), tmp_path, "nvdla-small")
    softmax = {"op": "Cast", "attrs": {"to": "int32"}}
    steps = [{**each, **softmax} if each.get("op") == "Softmax" else each for each in program.manifest["steps"]]
    changed = replace(program, manifest={**program.manifest, "steps": steps})
    files = target("nvdla-small").export(changed, "c")
    assert files["npuc_steps.h"].count(b"YOURS: supply this function") == 1
    assert b"npuc_host_step_1(in, out)" in files["npuc_run.c"]
    assert b"npuc_host_step_1" not in files["npuc_steps.c"]


class Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("numbers", ctypes.c_uint32 * 7), ("offsets", ctypes.POINTER(ctypes.c_uint32)),
        ("scale", ctypes.c_float), ("zero", ctypes.c_int32),
    )  # fmt: skip


def test_every_number_of_16_bits_and_what_rounds_to_it(tmp_path: Path) -> None:
    """Against numpy's: all halves, the middles between neighbours and their neighbours, extremes, NaN."""
    _, _, program = compiled(classifier(), tmp_path, "nvdla-full", precision="fp16")
    found = library(program, "nvdla-full", tmp_path)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = np.sort(halves[np.isfinite(halves)].astype(np.float32))
    middles = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(middles, np.float32(limit)) for limit in (-np.inf, np.inf)]
    extremes = np.array([np.inf, -np.inf, 1e38, -1e-38, 65519, 65520, 1e-45, np.nan], np.float32)
    values = np.concatenate([finite, middles, *near, extremes])
    tensor = Tensor(b"t", (0, 1, 1, len(values), 0, 2, 2), (ctypes.c_uint32 * 1)(0), 0, 0)
    memory, back = np.zeros(len(values), np.uint16), np.zeros(len(values), np.float32)
    places = [ctypes.c_void_p(each.ctypes.data) for each in (memory, values, back)]
    found.npuc_put_floats(ctypes.byref(tensor), *places[:2])
    wanted = np.clip(values, -65504, 65504).astype(np.float16)
    np.testing.assert_array_equal(memory.view(np.float16), wanted)
    assert (np.signbit(memory.view(np.float16)) == np.signbit(wanted))[~np.isnan(wanted)].all()
    found.npuc_get_floats(ctypes.byref(tensor), places[0], places[2])
    np.testing.assert_array_equal(back, wanted.astype(np.float32))
