"""Loadables: those of NVDLA's own compiler are read, written, listed and interpreted as its firmware does."""

from __future__ import annotations

import contextlib
import random
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.errors import ArtefactError, EncodingError
from npuc.targets.nvdla import loadable as loadables
from npuc.targets.nvdla import model
from npuc.targets.nvdla.firmware import descriptors, structures
from npuc.targets.nvdla.loadable import engine_tasks, run_of, schema
from npuc.targets.nvdla.loadable.listing import machine_of, rows
from npuc.targets.nvdla.model import DeviceMemory
from tests.given import GIVEN

FOLDER = GIVEN / "nvdla" / "loadables"
FILES = sorted(FOLDER.glob("*.nvdla")) or [FOLDER]
STEP = 0x100000


def base(memory: int) -> int:
    """Where the logs have a memory."""
    return 0x80000000 + STEP * memory


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def file(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    if not path.is_file():
        pytest.skip("no folder `shared` with loadables beside the project")
    return path


def test_the_register_writes_are_those_of_the_stock_firmware(file: Path) -> None:
    log = file.with_suffix("").with_suffix(".registers.txt").read_text().splitlines()
    expected = [line.split() for line in log if line and not line.startswith("#")]
    loadable = loadables.read(file.read_bytes())
    (found,) = loadables.register_writes(loadable, machine_of(loadable), base)
    assert [[title.replace(".", "_"), f"{value:08x}"] for title, value in found] == expected


def test_a_loadable_that_is_written_is_read_again(file: Path) -> None:
    loadable = loadables.read(file.read_bytes())
    assert loadables.read(loadables.write(loadable)) == loadable


def test_a_loadable_runs_on_the_model_without_a_trap(file: Path) -> None:
    loadable = loadables.read(file.read_bytes())
    machine = machine_of(loadable)
    memory = DeviceMemory.zero_pages((base(each.id), each.size) for each in loadable.memory_list)
    blobs = {each.name: each.data for each in loadable.blobs}
    for each in loadable.memory_list:
        for name, offset in zip(each.contents, each.offsets, strict=True):
            memory.write(base(each.id) + offset, blobs[name])
    pixels = np.random.default_rng(0).integers(0, 120, loadable.tensor_desc_list[0].size).astype(np.uint8)
    memory.write(base(3), pixels)
    (task,) = engine_tasks(loadable)
    after = model.run(machine, run_of(loadable, task, machine, base), memory)
    assert any(after.read(base(2), 256))


def test_the_contents_of_a_loadable_are_listed(shared: Path) -> None:
    text = [each["text"] for each in rows(shared / "nvdla" / "loadables" / "p_avgpool2_small_int8.nvdla")]
    assert text[0] == "loadable 0.7.0"
    assert "tensor 0 data: int8 1x4x24x24, T_A8B8G8R8, memory 3, 2304 bytes" in text
    assert "memory 1: 8192 bytes, allocated, filled: tb-1 at 0x0, tb-2 at 0x1000" in text
    assert "task 0 on the engine: addresses [5, 1, 2, 3, 4, 6, 7, 8, 9, 10]" in text
    assert "CDMA.D_WEIGHT_BYTES WEIGHT_BYTES=0x240" in text


def test_a_damaged_loadable_is_refused_and_never_a_traceback(shared: Path, tmp_path: Path) -> None:
    whole = (shared / "nvdla" / "loadables" / "p_avgpool2_small_int8.nvdla").read_bytes()
    chance = random.Random(0)
    path = tmp_path / "x.nvdla"
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(4):
            damaged[chance.randrange(8, 1400)] = chance.randrange(256)
        path.write_bytes(damaged[: chance.randrange(100, len(damaged))])
        with contextlib.suppress(ArtefactError):
            assert rows(path)


@pytest.mark.parametrize("data", [b"", b"abc", b"\0\0\0\0NVDB" + bytes(100), b"\xff\xff\xff\xffNVDA" + bytes(100)])
def test_what_is_no_loadable_is_refused(data: bytes) -> None:
    with pytest.raises(ArtefactError) as caught:
        loadables.read(data)
    assert caught.value.problems[0].code == "E502"


SIZES = {
    descriptors.NetworkDescriptor: 40, descriptors.Common: 36, descriptors.DataCube: 32,
    descriptors.Convolution: 92,
    descriptors.ConvolutionSurfaces: 172, descriptors.SdpUnit: 32, descriptors.Sdp: 116,
    descriptors.SdpSurfaces: 160, descriptors.Pdp: 52, descriptors.Cdp: 24, descriptors.PlanarSurfaces: 64,
    descriptors.Lut: 700,
}  # fmt: skip


@pytest.mark.parametrize(
    ("structure", "size"), SIZES.items(), ids=lambda each: getattr(each, "__name__", str(each))
)
def test_descriptors_have_the_sizes_that_the_firmware_knows(structure: type, size: int) -> None:
    assert structures.size(structure) == size == len(structures.pack(structure()))


@given(st.sampled_from(list(SIZES)), st.binary(min_size=700, max_size=700))
def test_any_bytes_are_a_descriptor_and_give_themselves_back(structure: type, data: bytes) -> None:
    value = structures.unpack(structure, data)
    assert structures.pack(value) == data[: structures.size(structure)]


def test_a_number_that_a_descriptor_cannot_hold_is_refused() -> None:
    with pytest.raises(EncodingError, match="width = 65536"):
        structures.pack(descriptors.DataCube(width=65536))


def test_tables_without_contents_are_written_and_read() -> None:
    loadable = schema.Loadable(task_list=(schema.Task(id=3, interface=schema.DLA, address_list=(1, 2)),))
    assert loadables.read(loadables.write(loadable)) == loadable
    assert {each.name for each in fields(schema.Loadable)} >= {"task_list", "submit_list"}


def test_a_task_that_waits_for_ever_is_refused() -> None:
    network = descriptors.NetworkDescriptor(
        operations=2, surfaces=3, dependencies=1, heads=(-1, -1, -1, 0, -1, -1), operation_count=1
    )
    blobs = {
        "net": structures.pack(network),
        "dep_graph": structures.pack(descriptors.Common(engine=descriptors.PDP, dependency_count=1)),
        "ops": structures.pack(descriptors.Pdp()).ljust(descriptors.OPERATION_BYTES, b"\0"),
        "surfaces": structures.pack(
            descriptors.PlanarSurfaces(
                source=descriptors.DataCube(width=1, height=1, channels=1),
                result=descriptors.DataCube(width=1, height=1, channels=1),
            )
        ).ljust(descriptors.SURFACE_BYTES, b"\0"),
    }
    loadable = schema.Loadable(
        task_list=(schema.Task(interface=schema.DLA, address_list=(0, 1, 2, 3)),),
        memory_list=tuple(
            schema.Memory(id=at, size=len(data), contents=(name,), offsets=(0,))
            for at, (name, data) in enumerate(blobs.items())
        ),
        address_list=tuple(schema.Address(id=at, mem_id=at) for at in range(len(blobs))),
        blobs=tuple(schema.Blob(name=name, size=len(data), data=data) for name, data in blobs.items()),
    )
    with pytest.raises(ArtefactError, match="0 of 1 operations end"):
        loadables.register_writes(loadable, machine_of(loadable), base)
