"""`npuc export --self-test`: a device that computes what was simulated passes, and one wrong bit is found."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npuc import program
from npuc.models.digits import FOLDER
from npuc.program import Program
from npuc.target import Request, target, usual_options
from npuc.targets.nvdla.model import ChipModel
from npuc.targets.nvdla.program.artefact import Contents, Segment
from npuc.targets.nvdla.program.running import Runner
from tests.cli.process import npuc
from tests.compiled import compilation

compiling = pytest.mark.skipif(
    None in (shutil.which("gcc"), shutil.which("g++"), shutil.which("make")), reason="there is no gcc or make"
)
QUICK = "CFLAGS=-std=c99 -Wall -Wextra -Werror -O0"
Programs = Callable[[str], Path]
TEST = FOLDER / "digits_test.npz"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The digits network for a target, compiled once."""
    folder = tmp_path_factory.mktemp("programs")

    def compiled(name: str) -> Path:
        artefact = folder / f"{name}.npu"
        if not artefact.exists():
            model, calibration = FOLDER / "digits.onnx", FOLDER / "digits_calibration.npz"
            options = usual_options(target(name))
            program.save(compilation(Request(model, target(name), options, [calibration])).program, artefact)
        return artefact

    return compiled


def exported(artefact: Path, form: str, folder: Path) -> Path:
    npuc("export", artefact, "--format", form, "--self-test", "--data", TEST, "-o", folder).done()
    return folder


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "-s", "-C", folder, *words], capture_output=True, text=True, check=False)


@compiling
def test_easynpu_in_software_passes_and_a_wrong_weight_is_named(programs: Programs, tmp_path: Path) -> None:
    folder = exported(programs("easynpu"), "c", tmp_path / "c")
    done = make(folder, "check", QUICK)
    assert (done.returncode, done.stdout) == (0, "2 samples as simulated\n"), done.stderr
    vectors = (folder / "npuc_vectors.c").read_text()
    start = vectors.index("expected_1_0[] = {\n") + len("expected_1_0[] = {\n")
    (folder / "npuc_vectors.c").write_text(vectors[:start] + "77.5f" + vectors[vectors.index(",", start) :])
    done = make(folder, "check", QUICK)
    assert done.returncode != 0
    assert "1 elements differ, first: sample 1, output n11_Gemm, element 0: expected 77.5, found" in done.stderr


PLAYER = r"""
#include <stdio.h>
#include <stdlib.h>
#include "npuc_self_test.h"

static FILE *after;
static uint8_t *memory;
static uint32_t left, played;

static int on_write(void *c, uint32_t a, uint32_t v) { (void)c; (void)a; (void)v; played++; return 0; }
static int on_poll(void *c, uint32_t a, uint32_t m, uint32_t v) { (void)c; (void)a; (void)m; (void)v; played++;
    return 0; }
/* What NVDLA has written when the last command of a segment has been played. */
static int on_wait(void *c, uint32_t a, uint32_t m)
{
    (void)c; (void)a; (void)m;
    if (--left == 0 && fread(memory, 1, NPUC_DRAM_BYTES, after) != NPUC_DRAM_BYTES) return 1;
    if (left == 0) left = WAITS;
    return 0;
}

int main(int count, char **names)
{
    struct npuc_hooks hooks = {0, on_write, on_poll, on_wait, 0};
    struct npuc_difference first;
    long wrong;

    left = WAITS;
    after = fopen(names[count - 1], "rb");
    memory = malloc(NPUC_DRAM_BYTES);
    wrong = npuc_self_test(memory, &hooks, &first);
    printf("%ld", wrong);
    if (wrong > 0)
        printf(" %u %s %u %d %d", first.sample, first.tensor->name, first.channel, (int)first.expected,
               (int)first.found);
    return 0;
}
"""


class Watching(Runner):
    """Keeps memory behind every segment: what an NVDLA would leave there."""

    def __init__(self, found: Program) -> None:
        super().__init__(found)
        self.after: list[bytes] = []

    def _segment(self, segment: Segment, nvdla: ChipModel, tensors: dict[str, np.ndarray], seen: object) -> None:
        super()._segment(segment, nvdla, tensors, None)
        dram = self.contents.dram
        self.after.append(nvdla.memory.read(dram.base, dram.bytes))


@compiling
def test_nvdla_whose_memory_ends_as_simulated_passes_and_one_bit_is_named(
    programs: Programs, tmp_path: Path
) -> None:
    artefact = programs("nvdla-small")
    folder, found = exported(artefact, "c", tmp_path / "c"), program.load(artefact)
    contents = Contents.of(found.manifest)
    (segment,) = (step for step in contents.steps if isinstance(step, Segment))
    inputs = {"input": np.load(TEST)["x"][:2].astype(np.float32).reshape(2, 1, 1, 8, 8)}
    watching = Watching(found)
    watching(inputs)
    waits = sum(type(each).__name__ == "Wait" for each in watching.commands)
    (folder / "player.c").write_text(PLAYER)
    assert make(folder, QUICK).returncode == 0
    command = ["gcc", f"-DWAITS={waits}", "-I.", "-o", "player", "player.c", "libnpuc.a"]
    subprocess.run(command, cwd=folder, check=True)

    def played(memory: bytes) -> str:
        (folder / "after").write_bytes(memory)
        return subprocess.run(["./player", "after"], cwd=folder, capture_output=True, text=True, check=True).stdout

    right = b"".join(watching.after)
    assert played(right) == "0"
    assert played(right[:1]) == "-1"
    place = segment.stores[0].place
    at = contents.dram.bytes + place.address - contents.dram.base + 3
    wrong = bytearray(right)
    wrong[at] ^= 1
    before, after = (int(np.int8(np.uint8(each[at]))) for each in (right, wrong))
    assert played(bytes(wrong)) == f"1 1 {segment.stores[0].tensor} 3 {before} {after}"


BMLIB = r"""
#include <bmlib_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
/* A device whose kernel writes the file $RESULT into its output. */
bm_status_t bm_dev_request(bm_handle_t *, int) { return BM_SUCCESS; }
void bm_dev_free(bm_handle_t) {}
bm_status_t bm_malloc_device_byte(bm_handle_t, bm_device_mem_t *m, unsigned int n)
{ m->address = (unsigned long long)calloc(n, 1); return BM_SUCCESS; }
void bm_free_device(bm_handle_t, bm_device_mem_t m) { free((void *)m.address); }
unsigned long long bm_mem_get_device_addr(bm_device_mem_t m) { return m.address; }
bm_status_t bm_memcpy_s2d(bm_handle_t, bm_device_mem_t m, void *) { return m.address ? BM_SUCCESS : 1; }
bm_status_t bm_memcpy_d2s(bm_handle_t, void *to, bm_device_mem_t)
{ FILE *file = fopen(getenv("RESULT"), "rb"); return fread(to, 1, 40, file) == 40 ? fclose(file) : 1; }
extern "C" bm_status_t okkernel_launch_sync(bm_handle_t, const char *, const void *, unsigned int)
{ return BM_SUCCESS; }
"""


@compiling
def test_the_launcher_of_bm1684_runs_samples_and_compares_them(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(programs("bm1684"), "okkernel", tmp_path / "kernel")
    expected = np.fromfile(folder / "self_test" / "0" / "output_0.bin", np.float32)
    (folder / "self_test" / "1" / "output_0.bin").write_bytes(expected.tobytes())
    include = tmp_path / "include"
    shutil.copytree(Path(__file__).parents[1] / "bm1684" / "bmlib", include)
    (tmp_path / "bmlib.cpp").write_text(BMLIB)
    words = ["check", f"BMLIB={tmp_path}", f"HOST_LIBS={tmp_path}/bmlib.cpp"]
    monkeypatch.setenv("RESULT", str(tmp_path / "result"))
    expected.tofile(tmp_path / "result")
    done = make(folder, *words)
    assert done.returncode == 0 and done.stdout.count("10 elements as simulated") == 2, done.stderr
    expected[7] *= 1.001
    expected.tofile(tmp_path / "result")
    done = make(folder, *words)
    assert done.returncode != 0 and "1 of 10 elements differ, first: element 7" in done.stdout


@compiling
def test_a_loadable_brings_buffers_and_padding_is_not_compared(programs: Programs, tmp_path: Path) -> None:
    folder = exported(programs("nvdla-small"), "loadable", tmp_path / "loadable")
    tests = folder / "self_test"
    first = bytearray((tests / "0" / "output_0.bin").read_bytes())
    assert first != (tests / "1" / "output_0.bin").read_bytes()
    assert make(folder, "LDLIBS=-lm", "npuc_compare").returncode == 0
    readme = (folder / "README.md").read_text()
    (line,) = (each for each in readme.splitlines() if each.startswith("./npuc_compare"))

    def status() -> int:
        (folder / "found_0.bin").write_bytes(first)
        return subprocess.run(line.replace("/K/", "/0/").split(), cwd=folder, capture_output=True).returncode

    first[12] ^= 5  # of ten channels
    assert status() == 0
    first[9] ^= 1
    assert status() == 1


def test_a_format_without_a_self_test_is_a_usage_error(programs: Programs, tmp_path: Path) -> None:
    artefact = programs("easynpu")
    done = npuc("export", artefact, "--format", "bin", "--self-test", "-o", tmp_path / "x")
    assert "it has: c" in done.usage()
    assert not (tmp_path / "x").exists()
