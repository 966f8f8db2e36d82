"""Programs as C: compiled with warnings as errors, and played into a file that is registers.bin again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from npuc.ir import Array
from npuc.program import Program
from npuc.target import target
from npuc.targets.nvdla.formats import feature, pixels
from npuc.targets.nvdla.machine.registers import register_map
from npuc.targets.nvdla.program.artefact import Contents, Segment, TensorMove
from tests.nvdla.networks import compiled
from tests.onnx_models import network, node, weights

COMPILER = shutil.which("gcc") or shutil.which("cc")
HOST = r"""
#include <stdio.h>
#include <stdlib.h>
#include "npuc_program.h"

static int record(void *file, uint32_t kind, uint32_t address, uint32_t mask, uint32_t value)
{
    uint32_t words[4];
    words[0] = kind; words[1] = address; words[2] = mask; words[3] = value;
    return fwrite(words, sizeof words, 1, file) != 1;
}
static int on_write(void *file, uint32_t address, uint32_t value)
{
    return record(file, 0, address, 0xffffffffu, value);
}
static int on_poll(void *file, uint32_t address, uint32_t mask, uint32_t value)
{
    return record(file, 1, address, mask, value);
}
static int on_wait(void *file, uint32_t address, uint32_t mask) { return record(file, 2, address, mask, mask); }

int main(int count, char **names)
{
    FILE *played = fopen(names[1], "wb"), *image = fopen(names[2], "rb"), *dump = fopen(names[3], "wb");
    struct npuc_hooks hooks = {0, on_write, on_poll, on_wait, 0};
    const struct npuc_tensor *load = &npuc_segments[0].loads[0], *store = &npuc_segments[0].stores[0];
    uint8_t *memory = malloc(NPUC_DRAM_BYTES), *values = malloc(1 << 20);
    size_t at, size = (size_t)load->channels * load->height * load->width * load->element_bytes;

    hooks.context = played;
    hooks.memory_offset = count > 4 ? (uint32_t)strtoul(names[4], 0, 0) : 0;
    if (fread(values, 1, size, image) != size) return 1;
    npuc_fill(npuc_blobs, NPUC_BLOBS, memory, NPUC_DRAM_BYTES);
    npuc_put(load, memory, values);
    fwrite(memory, 1, NPUC_DRAM_BYTES, dump);
    for (at = 0; at < NPUC_SEGMENTS; at++)
        if (npuc_play(npuc_segments[at].commands, npuc_segments[at].command_count, &hooks)) return 1;
    size = fread(memory, 1, NPUC_DRAM_BYTES, image);
    npuc_get(store, memory, values);
    fwrite(values, 1, (size_t)store->channels * store->height * store->width * store->element_bytes, dump);
    return fclose(played) || fclose(image) || fclose(dump);
}
"""


def program_of(folder: Path, name: str) -> Program:
    """Two convolutions, a pooling, a concatenation, 11 channels at the end."""
    constants = {"w": weights(5, 3, 3, 3), "v": weights(8, 5, 1, 1), "u": weights(11, 13, 1, 1)}
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("MaxPool", "a", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p v", "c"),
        node("Concat", "p c", "t", axis=1),
        node("Conv", "t u", "y"),
    ]
    _, _, program = compiled(network(nodes, (1, 3, 8, 8), constants), folder, name)
    return program


def built(program: Program, name: str, folder: Path) -> Path:
    """The host program beside the exported files."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    for file, data in target(name).export(program, "c").items():
        (folder / file).write_bytes(data)
    (folder / "main.c").write_text(HOST)
    strict = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-pedantic", "-Werror", "-O1"]
    objects = ["npuc_program.o", "npuc_nvdla.o"]
    subprocess.run([COMPILER, *strict, "-c", "npuc_program.c", "npuc_nvdla.c"], check=True, cwd=folder)
    subprocess.run([COMPILER, "-std=c99", "-Werror", "-o", "host", "main.c", *objects], check=True, cwd=folder)
    return folder / "host"


def filled(program: Program, contents: Contents, move: TensorMove, values: Array) -> Array:
    """The program's memory with its blobs and one loaded tensor."""
    memory = np.zeros(contents.dram.bytes, np.uint8)
    for each in contents.dram.images:
        at, data = each.address - contents.dram.base, np.frombuffer(program.files[each.file], np.uint8)
        memory[at : at + len(data)] = data
    at = move.place.address - contents.dram.base
    place = memory[at : at + move.bytes(contents.machine)]
    if move.place.pixels:
        pixels.store(move.image(), values, place, move.place.line_stride)
    else:
        feature.store(move.cube(contents.machine), values, place)
    return memory


@pytest.mark.parametrize("name", ["nvdla-small", "nvdla-full"])
def test_what_the_loop_plays_is_the_register_program(name: str, tmp_path: Path) -> None:
    program = program_of(tmp_path, name)
    host = built(program, name, tmp_path)
    contents = Contents.of(program.manifest)
    (segment,) = (step for step in contents.steps if isinstance(step, Segment))
    values = np.random.default_rng(0).integers(-128, 128, (3, 8, 8)).astype(np.int8)
    after = np.random.default_rng(1).integers(0, 256, contents.dram.bytes).astype(np.uint8)
    (tmp_path / "image").write_bytes(values.tobytes() + after.tobytes())
    subprocess.run([host, "played", "image", "dump"], check=True, cwd=tmp_path)
    assert (tmp_path / "played").read_bytes() == program.files["registers.bin"]

    dump = (tmp_path / "dump").read_bytes()
    assert dump[: contents.dram.bytes] == filled(program, contents, segment.loads[0], values).tobytes()
    (store,) = segment.stores
    cube = store.cube(contents.machine)
    lanes = feature.unpack(cube, after[store.place.address - contents.dram.base :])[store.place.lane_numbers]
    assert dump[contents.dram.bytes :] == lanes.astype(np.int8).tobytes()


def test_memory_addresses_move_with_the_memory(tmp_path: Path) -> None:
    program = program_of(tmp_path, "nvdla-small")
    host = built(program, "nvdla-small", tmp_path)
    size = Contents.of(program.manifest).dram.bytes
    (tmp_path / "image").write_bytes(bytes(3 * 8 * 8 + size))
    subprocess.run([host, "played", "image", "dump", "0x1000"], check=True, cwd=tmp_path)
    played, given = (
        np.frombuffer(data, "<u4").reshape(-1, 4)
        for data in ((tmp_path / "played").read_bytes(), program.files["registers.bin"])
    )
    moved = played[:, 3] != given[:, 3]
    assert set(played[moved, 3] - given[moved, 3]) == {0x1000}
    registers = register_map("nv_small")
    assert {registers.register_at(int(address)).name for address in played[moved, 1]} >= {
        "D_DAIN_ADDR_LOW_0", "D_WEIGHT_ADDR_LOW", "D_DST_BASE_ADDR_LOW", "D_BS_BASE_ADDR_LOW",
    }  # fmt: skip


def test_the_readme_names_the_tensors_with_their_scales(tmp_path: Path) -> None:
    program = program_of(tmp_path, "nvdla-small")
    readme = target("nvdla-small").export(program, "c")["README.md"].decode()
    scale = program.manifest["steps"][0]["attrs"]["scale"]
    assert f"| `x/int8` | int8 | 3x8x8 | {scale:g} | 0 |" in readme
    assert "QuantizeLinear" in readme and "segment 0" in readme and "$" not in readme
