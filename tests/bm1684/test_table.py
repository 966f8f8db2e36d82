"""Programs as data: the exported C makes the table's calls, and no table can make the model do anything else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest

import npuc
from npuc.errors import ArtefactError
from npuc.models import MODELS
from npuc.onnx_files.export import to_onnx
from npuc.program import Program, as_loaded, load, save
from npuc.target import Options, Request
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.program.artefact import instructions
from npuc.targets.bm1684.program.table import TABLE_FILE, read
from npuc.targets.bm1684.simulate import simulator
from npuc.targets.bm1684.target import BM1684
from tests.bm1684.kernels import need_compiler
from tests.compiled import compilation as whole
from tests.graphs.drawn import drawn

PRINTED = {
    "local_addr_t": 'printf(" @%u", a{i});',
    "system_addr_t": 'printf(" $%llu", a{i});',
    "const dim4 *": 'if (a{i}) printf(" (%d,%d,%d,%d)", a{i}->n, a{i}->c, a{i}->h, a{i}->w); else printf(" -");',
    "const dim2 *": 'printf(" <%d,%d>", a{i}->h, a{i}->w);',
    "const Padding *": 'printf(" [%d,%d,%d,%d]", a{i}->top, a{i}->bottom, a{i}->left, a{i}->right);',
    "int": 'printf(" %d", a{i});',
    "bool": 'printf(" %d", a{i});',
    "float": 'printf(" =%08x", ((x32){{.fp32 = a{i}}}).u32);',
    "x32": 'printf(" =%08x", a{i}.u32);',
    "npuc_ids *": "(void)a{i};",
}
"""How an argument of C is written as in a table, by its type."""
MAIN = """
static okk_kernel_func_t kernel;
void okk_register_kernel_func(const char *name, okk_kernel_func_t func) { (void)name; kernel = func; }
void okk_initialize(void) {}
void okk_poll(void) {}
void okk_parallel_start(void) { puts("parallel_start"); }
void okk_parallel_end(void) { puts("parallel_end"); }
int main(void)
{
    unsigned long long places[16];
    for (int i = 0; i < 16; i++) places[i] = (unsigned long long)i << 40;
    kernel(places);
}
"""


FIRMWARE = """\
#include "okk.h"
typedef struct { int words[64]; } npuc_ids;
static inline void npuc_parallel_start(npuc_ids *ids) { (void)ids; okk_parallel_start(); }
static inline void npuc_parallel_end(npuc_ids *ids) { (void)ids; okk_parallel_end(); }
"""
"""In place of the header of the firmware's functions, whose calls are written down as those of the interface."""


def _declared(header: str, prefix: str) -> list[tuple[str, str]]:
    """Name and parameters of the functions of a header of the model."""
    command = [simulator.compiler(), "-E", "-P", "-x", "c", "-I", str(simulator.MODEL), "-"]
    text = (simulator.MODEL / header).read_text()
    text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return re.findall(rf"void {prefix}(\w+)\(([^)]*)\)", " ".join(text.split()))


def _recorder(folder: Path) -> str:
    """C that implements every call of the interface's header, and of the firmware's, by writing it down."""
    found = [("okk_", name, parameters) for name, parameters in _declared("okk.h", "okk_(?=bdc|gdma)")]
    firmware = [("npuc_", name, parameters) for name, parameters in _declared("okk_fix8b.h", "npuc_(?=fix8b)")]
    own = [f"void npuc_{name}({parameters});" for _, name, parameters in firmware]
    (folder / "okk_fix8b.h").write_text("\n".join([FIRMWARE, *own, ""]))
    parts = ["#include <stddef.h>", "#include <stdio.h>", '#include "okk_fix8b.h"', MAIN]
    for prefix, name, parameters in [*found, *firmware]:
        kinds = [re.sub(r"\s*\w+$", "", each.strip()).replace("_Bool", "bool") for each in parameters.split(",")]
        if not all(kind in PRINTED for kind in kinds):
            continue  # no kernel of npuc makes it
        given = ", ".join(f"{kind} a{i}" for i, kind in enumerate(kinds))
        body = "".join(PRINTED[kind].format(i=i) for i, kind in enumerate(kinds))
        listed = name if prefix == "okk_" else f"bdc_{name}"
        parts.append(f'void {prefix}{name}({given}) {{ printf("{listed}"); {body} puts(""); }}')
    (folder / "recorder.c").write_text("\n".join(parts))
    return "recorder.c"


def _drawn(seed: int) -> onnx.ModelProto:
    return to_onnx(drawn(seed)[0])


def _program(model: onnx.ModelProto, folder: Path, precision: str = "fp32") -> Program:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return as_loaded(whole(Request(path, BM1684, Options(precision=precision, level="0"))).program)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("small")
    return _program(MODELS["residual_awkward"](), folder)


def _write_code(program: Program, folder: Path) -> str:
    """Writes kernel.c and the header that kernels share; gives the former."""
    for name, data in BM1684.export(program, "okkernel").items():
        if name.endswith("kernel.c") or name == "npuc_kernel.h":
            (folder / name.rpartition("_ok_device_")[2]).write_bytes(data)
    return (folder / "kernel.c").read_text("ascii")


def _exported_calls(program: Program, folder: Path) -> list[str]:
    _write_code(program, folder)
    command = [simulator.compiler(), "-std=c11", "-I", str(simulator.MODEL), "-o", "made"]
    subprocess.run([*command, _recorder(folder), "kernel.c"], cwd=folder, check=True)
    return subprocess.run([folder / "made"], capture_output=True, text=True, check=True).stdout.splitlines()


def _expect_the_calls_of_the_table(program: Program, folder: Path) -> None:
    table = program.files[TABLE_FILE].decode()
    place = re.compile(r"\$(\d+)\+(\d+)")
    wanted = [
        place.sub(lambda found: f"${(int(found[1]) << 40) + int(found[2])}", line)
        for line in table.splitlines()
        if not line.startswith("layer")
    ]
    assert _exported_calls(program, folder) == wanted


@pytest.mark.parametrize("seed", range(1, 8))
def test_the_exported_c_makes_exactly_the_calls_of_the_table(seed: int, tmp_path: Path) -> None:
    need_compiler()
    _expect_the_calls_of_the_table(_program(_drawn(seed), tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("name", "precision"),
    [("residual_awkward", "fp32"), ("mobilenet_v2", "fp32"), ("unet_small", "fp32"), ("resnet8", "int8")],
)
def test_the_exported_c_of_a_network_makes_exactly_the_calls_of_its_table(
    name: str, precision: str, tmp_path: Path
) -> None:
    """Loops, tables, functions that layers share: MobileNetV2 has them all; ResNet-8 calls the firmware."""
    need_compiler()
    program = _program(MODELS[name](), tmp_path, precision)
    _expect_the_calls_of_the_table(program, tmp_path)
    code = _write_code(program, tmp_path)
    shared = ("for (int i = 0;", " each[", "_at[0])", "load(to, ", "at->weight), ", "each[i].input_shape_h")
    assert name != "mobilenet_v2" or all(each in code for each in shared)
    assert not re.search(r"(?<!_)at\[|each\[i\]\[|[>.]value", code)  # fields have the parameters' names
    assert _static_data(tmp_path) == []


def _static_data(folder: Path) -> list[str]:
    """Variables outside the stack in a kernel's object: the firmware's data memory has no room for them."""
    if shutil.which("nm") is None:
        pytest.skip("no nm on the path")
    flags = [
        "-std=c99", "-O2", "-I", str(simulator.MODEL), "-c", str(folder / "kernel.c"), "-o", str(folder / "k.o"),
    ]  # fmt: skip
    subprocess.run([simulator.compiler(), *flags], check=True)
    symbols = subprocess.run(["nm", str(folder / "k.o")], capture_output=True, text=True, check=True).stdout
    return re.findall(r" [bBdDC] \w+", symbols)


def test_a_table_is_read_back_as_it_was_written(small: Program) -> None:
    places = [region["name"] for region in small.manifest["regions"]]
    table = read(small.files[TABLE_FILE], places, Machine())
    assert table.data(places, Machine()) == small.files[TABLE_FILE]
    assert [each.call for each in instructions(small)] == list(table.calls)


def test_an_artefact_holds_no_code(small: Program) -> None:
    assert set(small.files) == {"calls.txt", "weights.bin"}


NUMBERS = ("0", "1", "-1", "63", "65535", "65536", "524287", "2147483647", "-2147483648", "4294967295", str(2**63))
WORDS = ("-", "@0", "@33554431", "@4294967295", "$0+0", "$1+4294967296", "$9+0", "=7f800000", "=00000000", "x", "")


def _mutated(table: str, random: Random) -> str:
    """The table with something else in a place or two."""
    lines = table.splitlines()
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(lines))
        match random.randrange(6):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[random.randrange(len(lines))])
            case 2:
                words = lines[at].split(" ")
                words[random.randrange(len(words))] = random.choice(WORDS)
                lines[at] = " ".join(words)
            case _:
                found = list(re.finditer(r"-?\d+", lines[at]))
                if found:
                    one = random.choice(found)
                    lines[at] = lines[at][: one.start()] + random.choice(NUMBERS) + lines[at][one.end() :]
        if not lines:
            lines.append("")
    return "\n".join(lines) + "\n"


def _run(program: Program) -> str:
    """ok, or the code of the refusal."""
    shapes = {port.name: port.shape for port in program.inputs}
    feeds = {name: np.ones((1, *shape), np.float32) for name, shape in shapes.items()}
    return _outcome(lambda: BM1684.runner(program)(feeds))


def _outcome(way: Callable[[], object]) -> str:
    try:
        way()
    except ArtefactError as error:
        return error.problems[0].code
    return "ok"


@pytest.mark.parametrize("seed", range(4))
def test_a_hostile_table_ends_in_a_refusal(small: Program, seed: int) -> None:
    need_compiler()
    random, table = Random(seed), small.files[TABLE_FILE].decode()
    forged = [
        replace(small, files={**small.files, TABLE_FILE: _mutated(table, random).encode()}) for _ in range(25)
    ]
    codes = [_run(each) for each in forged]
    assert set(codes) <= {"ok", "E502", "E503"}
    assert {_outcome(lambda each=each: BM1684.export(each, "okkernel")) for each in forged} == {"ok", "E502"}
    assert codes.count("ok") < len(codes)


HOSTILE: tuple[tuple[tuple[Any, ...], Any], ...] = (
    (("regions", 0, "bytes"), 2**63),
    (("regions", 1, "bytes"), -1),
    (("regions", 0, "name"), "weights; system(0)"),
    (("kernel",), "f(void){} int main"),
    (("placements", 0, "address"), 2**63),
    (("placements", 0, "address"), -4),
    (("placements", 0, "shape"), [-1, -2, 3]),
    (("placements", 0, "direction"), "sideways"),
    (("placements", 0, "region"), "nowhere"),
    (("inputs", 0, "shape"), [2**40]),
    (("machine", "npus"), 2**31),
    (("machine", "npus"), 0),
    (("machine", "local_bytes"), 2**63),
    (("machine", "lanes"), 0),
    (
        ("results",),
        [{"tensor": "t", "layer": 0, "shape": [2**60], "local_shape": [1, 1, 1, 1], "npu": 0, "offset": 0}],
    ),
    (("results", 0, "npu"), 2**40),
    (("results", 0, "local_shape"), [0, -1, 2**40, 1]),
    (("results", 0, "local_shape"), [1, 0, 1, 1]),
    (("results", 0, "shape"), [1, 0]),
    (("buffers", 0, "last"), 10**9),
    (("instructions",), []),
    (("layers",), []),
)


@pytest.mark.parametrize(("path", "value"), HOSTILE, ids=lambda each: str(each)[:40])
def test_a_hostile_manifest_ends_in_a_refusal(small: Program, path: tuple[Any, ...], value: Any) -> None:
    """Every command that reads it: none gives a traceback, or takes gigabytes."""
    manifest = json.loads(json.dumps(small.manifest))
    inner = manifest
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    forged, codes = replace(small, manifest=manifest), list[str]()
    feeds = {port.name: np.ones((1, *port.shape), np.float32) for port in small.inputs}
    ways = (
        lambda: BM1684.runner(forged)(feeds, lambda _name, _values: None),
        lambda: BM1684.listing(forged),
        lambda: BM1684.timeline(forged),
        lambda: BM1684.export(forged, "okkernel"),
        lambda: list(BM1684.memory_annotations(forged, "weights.bin")),
        lambda: BM1684.origin(forged, small.outputs[0].name, (0, 0)),
    )  # fmt: skip
    for way in ways:
        try:
            way()
        except ArtefactError as error:
            codes.append(error.problems[0].code)
    assert codes and set(codes) <= {"E502", "E503"}


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("extent", [0, 1, 5])
def test_a_sealed_extent_that_the_model_has_not_ends_in_no_traceback(precision: str, extent: int) -> None:
    need_compiler()
    model = Path(__file__).parents[2] / "models" / "digits.onnx"
    program = npuc.compile(
        model, "bm1684", level="0", proof="off", precision=precision, calibration="synthetic"
    ).program
    refused: list[str] = []
    for at in range(len(program.manifest["results"])):
        manifest = json.loads(json.dumps(program.manifest))
        shape = manifest["results"][at]["shape"]
        if shape[-1] != extent:
            shape[-1] = extent
            forged = npuc.Compiled(replace(program, manifest=manifest))
            try:
                npuc.verify(model, forged)
            except ArtefactError as error:
                refused.append(error.problems[0].code)
    assert set(refused) <= {"E502", "E503"} and (extent or len(refused) == len(program.manifest["results"]))


def test_a_table_that_is_gone_or_changed_is_named(small: Program, tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"there is no calls\.txt"):
        BM1684.listing(replace(small, files={"weights.bin": b""}))
    save(small, tmp_path / "a.npu")
    file = tmp_path / "a.npu" / TABLE_FILE
    file.write_bytes(file.read_bytes().replace(b"bdc_", b"gdma_", 1))
    with pytest.raises(ArtefactError, match=r"calls\.txt"):
        load(tmp_path / "a.npu")


@pytest.mark.parametrize(
    "name", ["a*/ int x; /*", "a\\\n#error spliced\nint y;", "a??/\n#error trigraph", "é\u202e"]
)
def test_names_of_tensors_stay_in_their_comments(name: str, tmp_path: Path) -> None:
    need_compiler()
    model = _drawn(1)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"{each}{name}" if each.startswith("t") and "/" not in each else each for each in names]
    for each in model.graph.output:
        each.name += name
    onnx.save(model, tmp_path / "model.onnx")
    program = as_loaded(whole(Request(tmp_path / "model.onnx", BM1684, Options(precision="fp32"))).program)
    _write_code(program, tmp_path)
    for standard in ("-std=c99", "-std=c11"):
        flags = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", str(simulator.MODEL)]
        subprocess.run([simulator.compiler(), standard, *flags, str(tmp_path / "kernel.c")], check=True)


def test_a_kernel_without_calls_compiles_without_a_warning(tmp_path: Path) -> None:
    need_compiler()
    text = '<ir_version: 8, opset_import: ["": 17]> net (float[1,4] x) => (float[1,4] y) { y = Softmax (x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    program = as_loaded(whole(Request(tmp_path / "model.onnx", BM1684, Options(precision="int8"))).program)
    _write_code(program, tmp_path)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", str(simulator.MODEL)]
    subprocess.run([simulator.compiler(), *flags, str(tmp_path / "kernel.c")], check=True)


@pytest.mark.parametrize(("file", "name"), [
    ("ResNet-50 (v2).onnx", "npuc_resnet_50_v2"), ("int.onnx", "npuc_int"), ("7.onnx", "npuc_7"),
    ("é.onnx", "npuc_network"), ("a/../b;c.onnx", "npuc_b_c"), (f"{'x' * 300}.onnx", f"npuc_{'x' * 35}"),
])  # fmt: skip
def test_functions_and_files_are_called_as_the_model(file: str, name: str, small: Program) -> None:
    named = replace(small, manifest={**small.manifest, "model": {"name": file}})
    files = BM1684.export(named, "okkernel")
    assert {f"{name}_ok_device_kernel.c", f"{name}_launch.cpp"} <= set(files)
    assert f"OKKERNEL_FUNC_REGISTER({name}_kernel)".encode() in files[f"{name}_ok_device_kernel.c"]
