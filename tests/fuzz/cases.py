"""What is fed with mutated files: a case is a kind and a seed, and ends in results or in an NpucError."""

from __future__ import annotations

import io
import json
import random
import shutil
import warnings
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import parser

import npuc
from npuc import running
from npuc.driver import compile_model
from npuc.errors import NpucError
from npuc.ir import TensorType
from npuc.program import MANIFEST, Program, as_loaded, canonical_json, save, sealed
from npuc.reports.disassembly import Disassembly
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from tests.compiled import compilation
from tests.fuzz.mutation import changed_bytes, changed_json, changed_lines, changed_model
from tests.onnx_models import parse

TARGETS = ("easynpu", "nvdla-small", "bm1684")
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,3,8,8] x) => (float[1,5] y) <float[4,3,3,3] w, float[4] b, float[5,64] v, int64[2] s = {1, 64}> {
    c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
    r = Relu (c)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    f = Reshape (p, s)
    g = Gemm <transB = 1> (f, v)
    y = Softmax (g)
}
"""


@cache
def model() -> onnx.ModelProto:
    """A small network with a convolution, a pool, a matrix and a host step."""
    made = parser.parse_model(TEXT)
    chance = np.random.default_rng(16)
    for name, extents in (("w", (4, 3, 3, 3)), ("b", (4,)), ("v", (5, 64))):
        values = chance.standard_normal(extents).astype(np.float32) + 0.1
        made.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return made


@cache
def program(name: str) -> Program:
    """The network's program."""
    folder = Path(_folder())
    onnx.save(model(), folder / "model.onnx")
    return as_loaded(compilation(Request(folder / "model.onnx", target(name), Options(level="0"))).program)


@cache
def _folder() -> str:
    import tempfile

    return tempfile.mkdtemp(prefix="npuc-fuzz-")


def models(chance: random.Random, folder: Path) -> None:
    """A model is compiled."""
    path = folder / "model.onnx"
    path.write_bytes(changed_model(chance.choice(seeds()), chance))
    kind = target(chance.choice(TARGETS))
    precision, proof = chance.choice((None, *kind.precisions)), chance.choice(("one", "off", "off"))
    asked = Options(level=chance.choice("001"), precision=precision, proof=proof)
    made, _ = compile_model(Request(path, kind, asked))
    save(made, folder / "model.npu")


CONTROL = """
<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
net (float[1,3,N,8] x, bool c) => (float[1,3,M,8] y) <int64[4] e = {1, 3, 8, 8}, int64 n = {3}, bool t = {1}> {
    k = ConstantOfShape (e)
    h = own.Twice (x)
    a = If (c) <
        then_branch = yes () => (float[1,3,8,8] p) { p = Add (h, k) },
        else_branch = no () => (float[1,3,8,8] q) { q = Relu (h) }
    >
    l = Loop (n, t, a) <body = turn (int64 i, bool g, float[1,3,8,8] s) => (bool o, float[1,3,8,8] r) {
        o = Identity (g)
        r = own.Twice (s)
    }>
    v = Shape (l)
    w = Expand (l, v)
    y = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (w)
}
<domain: "own", opset_import: ["" : 17]>
Twice (v) => (w) { z = Add (v, v) w = Clip (z) }
"""
OLD = """
<ir_version: 3, opset_import: ["" : 6]>
net (float[1,3,8,8] x, float[4,3,3,3] w, float[4] b) => (float[1,4,8,8] y) {
    c = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (x, w)
    d = Add <axis = 1, broadcast = 1> (c, b)
    e = Dropout <is_test = 1> (d)
    f = BatchNormalization (e, b, b, b, b)
    y = Clip <max = 6.0> (f)
}
"""
QUANTISED = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,3,8,8] x) => (float[1,4,8,8] y) <int8[4,3,1,1] w, float s = {0.05}, int8 z = {3}, float[4] v =
    {0.01, 0.02, 0.03, 0.04}, int8[4] o = {0, 0, 0, 0}> {
    a = QuantizeLinear (x, s, z)
    b = DequantizeLinear (a, s, z)
    k = DequantizeLinear <axis = 0> (w, v, o)
    c = Conv (b, k)
    d = QuantizeLinear (c, s, z)
    e = DequantizeLinear (d, s, z)
    f = Add (e, e)
    g = QuantizeLinear (f, s, z)
    y = DequantizeLinear (g, s, z)
}
"""


@cache
def seeds() -> tuple[onnx.ModelProto, ...]:
    """Networks that are changed: plain, in parts, with functions and control flow, in int8, old."""
    kernel = np.random.default_rng(18).integers(-99, 127, (4, 3, 1, 1), np.int8)
    quantised = parse(QUANTISED, w=kernel)
    old = parser.parse_model(OLD)
    old.graph.initializer.extend(each for each in model().graph.initializer if each.name in "wb")
    return model(), split_model(), parser.parse_model(CONTROL), quantised, old


SPLIT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,3,8,8] x) => (float[1,4,8,8] y) <float[4,3,3,3] w, float[4,4,1,1] v, int32 k = {1}> {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    d = CumSum (c, k)
    y = Conv (d, v)
}
"""


@cache
def split_model() -> onnx.ModelProto:
    """A small network with a node in the middle that only the host runs."""
    made = parser.parse_model(SPLIT)
    chance = np.random.default_rng(17)
    for name, extents in (("w", (4, 3, 3, 3)), ("v", (4, 4, 1, 1))):
        values = chance.standard_normal(extents).astype(np.float32) + 0.1
        made.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return made


@cache
def split_program(name: str) -> Program:
    """Its program: two parts and a region."""
    onnx.save(split_model(), Path(_folder()) / "split.onnx")
    kind = target(name)
    asked = Options(level="0", precision=kind.precisions[0])
    return as_loaded(compile_model(Request(Path(_folder()) / "split.onnx", kind, asked))[0])


def _npy(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def samples(chance: random.Random, folder: Path) -> None:
    """Samples are read."""
    values = np.random.default_rng(1).standard_normal((4, 1, 3, 8, 8)).astype(np.float32)
    arrays: dict[str, Any] = {"x": values, "y": np.arange(4)}
    if chance.random() < 0.3:
        arrays[chance.choice("xy")] = chance.choice(
            (
                np.array(["a"]),
                np.zeros((0, 3)),
                np.float64("nan"),
                np.zeros(3, complex),
                np.zeros((4, 1, 3, 8, 8), ">f8"),
            )
        )
    members = {f"{name}.npy": _npy(values) for name, values in arrays.items()}
    inside = chance.random() < 0.6
    with zipfile.ZipFile(
        folder / "s.npz", "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as archive:
        for name, content in members.items():
            archive.writestr(name, changed_bytes(content[:200], chance) + content[200:] if inside else content)
    if not inside:
        (folder / "s.npz").write_bytes(changed_bytes((folder / "s.npz").read_bytes(), chance))
    for block in data.load([folder / "s.npz"], {"x": TensorType((1, 3, 8, 8), "float32")}).batches(2):
        assert block.inputs["x"].shape[1:] == (1, 3, 8, 8)


def machines(chance: random.Random, folder: Path) -> None:
    """A machine file is read and compiled for."""
    name = chance.choice(TARGETS)
    kind = target(name)
    from npuc.storage.records import as_toml

    text = as_toml(kind.machine_values(None))
    text = (
        changed_lines(text, chance)
        if chance.random() < 0.8
        else changed_bytes(text.encode(), chance).decode(errors="replace")
    )
    (folder / "m.toml").write_text(text, encoding="utf-8", errors="replace")
    onnx.save(model(), folder / "model.onnx")
    compilation(Request(folder / "model.onnx", kind, Options(str(folder / "m.toml"), level="0")))


def artefacts(chance: random.Random, folder: Path) -> None:
    """An artefact, sealed again, is loaded and used by three of the commands, or calls, that take one."""
    _use(*_changed(program(chance.choice(TARGETS)), chance), chance, folder, model())


def regions(chance: random.Random, folder: Path) -> None:
    """The same of a program with a host region: its own manifest, a part's, or the region is changed."""
    name = chance.choice(TARGETS)
    original = split_program(name)
    files = {**original.files, **original.evidence}
    inside = [each for each in sorted(files) if each.endswith(MANIFEST)]
    match chance.randrange(4):
        case 0:
            manifest, files = _changed(original, chance)
        case 1:
            manifest, changed = original.manifest, chance.choice(inside)
            body = changed_json(json.loads(files[changed]), chance, ("seal", "files"))
            files[changed] = canonical_json({**body, "seal": ""})
        case _:
            manifest, (changed,) = original.manifest, [each for each in files if each.startswith("host/")]
            files[changed] = changed_model(onnx.ModelProto.FromString(files[changed]), chance)
    _use(manifest, files, chance, folder, split_model())


def _changed(original: Program, chance: random.Random) -> tuple[Any, dict[str, bytes]]:
    """A manifest or a file of the program is changed; the rest is as it was."""
    manifest: Any = json.loads(json.dumps(original.manifest))
    files = {**original.files, **original.evidence}
    if chance.random() < 0.75:
        manifest = changed_json(manifest, chance, ("seal", "files", "report") if chance.random() < 0.8 else ())
    else:
        changed = chance.choice(sorted(files))
        content = files[changed]
        structured = changed.endswith(".json") and chance.random() < 0.8
        files[changed] = (
            canonical_json(changed_json(json.loads(content), chance))
            if structured
            else changed_model(onnx.ModelProto.FromString(content), chance)
            if changed.endswith(".onnx")
            else changed_bytes(content, chance)
        )
    return manifest, files


def _use(manifest: Any, files: dict[str, bytes], chance: random.Random, folder: Path, of: onnx.ModelProto) -> None:
    values = np.random.default_rng(2).standard_normal((1, 3, 8, 8)).astype(np.float32)
    np.savez(folder.parent / "x.npz", x=values)
    (folder.parent / "l.txt").write_text(_listing())
    path = folder / "a.npu"
    path.mkdir()
    for each, content in files.items():
        (path / each).parent.mkdir(parents=True, exist_ok=True)
        (path / each).write_bytes(content)
    made = json.loads(sealed(manifest, files))
    if chance.random() < 0.1:
        made = changed_json(made, chance)
    (path / MANIFEST).write_bytes(canonical_json(made))
    onnx.save(of, folder / "model.onnx")
    if chance.random() < 0.25:
        _call(npuc.load(path), values, chance)
        return
    for command in chance.sample(COMMANDS, 3):
        told = io.StringIO()
        with redirect_stdout(told), redirect_stderr(told):
            ended = _command([each.replace("@", str(folder)) for each in command])
        assert all(line.isprintable() for line in told.getvalue().split("\n"))
        if ended:
            raise ended


@cache
def _listing() -> str:
    from npuc.targets.easynpu.target import EASYNPU

    made = program("easynpu")
    found = Disassembly.of(EASYNPU.listing(made), EASYNPU.outline(made))
    return "\n".join(each.text for each in found.lines())


def _call(loaded: npuc.Compiled, values: Any, chance: random.Random) -> None:
    """Everything that the Python interface does with a program."""
    calls: list[Callable[[], object]] = [
        lambda: loaded.report, lambda: loaded.timeline, lambda: loaded.run(values), loaded.listing,
        lambda: npuc.verify(split_model() if "host/region_0.onnx" in loaded.program.files else model(), loaded),
        lambda: [list(loaded.target.memory_annotations(loaded.program, name)) for name in loaded.program.files],
        lambda: npuc.Session(loaded).run(None, {port.name: values for port in loaded.program.inputs}),
        *(partial(loaded.target.export, loaded.program, form) for form in loaded.target.exports),
    ]  # fmt: skip
    chance.shuffle(calls)
    ended: NpucError | None = None
    for call in calls:
        try:
            call()
        except NpucError as error:
            ended = error
    if ended:
        raise ended


COMMANDS = [
    each.split()
    for each in (
        "dump @/a.npu", "dump @/a.npu --json", "dump @/a.npu --image weight", "dump @/a.npu --image weights",
        "run @/a.npu --data @/../x.npz -o @/y.npz", "report @/a.npu -o @/r.html",
        "verify @/model.onnx @/a.npu --samples 1", "verify @/model.onnx @/a.npu --samples 1 --bisect -o @/bisect",
        "explain @/a.npu c", "explain @/a.npu 1", "diff @/a.npu @/a.npu", "export @/a.npu --format c -o @/c",
        "export @/a.npu --format bin -o @/b", "export @/a.npu --format readmemh -o @/h",
        "export @/a.npu --format loadable -o @/l", "export @/a.npu --format nvdla-trace -o @/t",
        "export @/a.npu --format okkernel -o @/o", "assemble @/../l.txt --images @/a.npu -o @/d.npu",
    )
]  # fmt: skip


def _command(arguments: list[str]) -> NpucError | None:
    """Runs a command; usage errors are none, as not every target has every format."""
    from npuc.cli import npuc as commands

    try:
        commands.main(arguments, standalone_mode=False, prog_name="npuc")
    except NpucError as error:
        return error
    except click.ClickException:
        pass
    return None


def texts(chance: random.Random, folder: Path) -> None:
    """A listing is assembled and run."""
    kind = target("easynpu")
    original = program("easynpu")
    (folder / "l.txt").write_text(changed_lines(_listing(), chance), encoding="utf-8", errors="surrogatepass")
    made = kind.assemble(original, folder / "l.txt")
    running.run_program(made, kind, data.synthetic(running.program_inputs(made), 1))


def loadables(chance: random.Random, folder: Path) -> None:
    """A loadable, or raw words, are listed."""
    kind = target("nvdla-small")
    content = exported_loadable()
    (folder / "n.nvdla").write_bytes(changed_bytes(content, chance))
    Disassembly.of(kind.raw_listing(folder / "n.nvdla"), None).lines()


@cache
def exported_loadable() -> bytes:
    return target("nvdla-small").export(program("nvdla-small"), "loadable")["network.nvdla"]


@cache
def exported_trace() -> dict[str, bytes]:
    return target("nvdla-small").export(program("nvdla-small"), "nvdla-trace")


def traces(chance: random.Random, folder: Path) -> None:
    """A test program is read."""
    from npuc.targets.nvdla.trace import read

    files = dict(exported_trace())
    name = chance.choice(sorted(files))
    if name.endswith(".dat") or chance.random() < 0.2:
        files[name] = changed_bytes(files[name], chance)
    else:
        files[name] = changed_lines(files[name].decode(), chance).encode(errors="replace")
    for each, content in files.items():
        (folder / each).write_bytes(content)
    read(folder / "trace_0.cfg")


KINDS: dict[str, Callable[[random.Random, Path], None]] = {
    "models": models, "samples": samples, "machines": machines, "artefacts": artefacts, "regions": regions,
    "listings": texts,
    "loadables": loadables, "traces": traces,
}  # fmt: skip


def outcome(kind: str, seed: int, folder: Path) -> str:
    """ "done", or the code of the NpucError that a case ends in; whatever else is raised is a finding."""
    folder.mkdir(parents=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            KINDS[kind](random.Random(f"{kind} {seed}"), folder)
        told, code = "", "done"
    except NpucError as error:
        told, code = str(error), error.problems[0].code
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert all(line.isprintable() for line in told.split("\n"))
    return code
