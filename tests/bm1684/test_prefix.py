"""Names of exported files and functions: several networks, and parts of one, fit into one firmware."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import onnx
import pytest

from npuc.models.digits import FOLDER
from npuc.targets.bm1684.simulate import simulator
from tests.bm1684.kernels import need_compiler
from tests.cli.process import SYNTHETIC, npuc
from tests.onnx_models import parse

DIGITS = FOLDER / "digits.onnx"
FREESTANDING = ("-std=c99", "-ffreestanding", "-Wall", "-Wextra", "-Werror", "-O1", "-c")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits network."""
    artefact = tmp_path_factory.mktemp("whole") / "digits.npu"
    npuc("compile", DIGITS, "--target", "bm1684", "-o", artefact).done()
    return artefact


def _exported(artefact: Path, folder: Path, *options: str) -> list[Path]:
    """The device's sources."""
    npuc("export", artefact, "--format", "okkernel", "-o", folder, *options).done()
    return sorted(folder.rglob("*_ok_device_kernel.c"))


def _symbols(sources: list[Path], folder: Path) -> list[list[str]]:
    """What each object defines for others, freestanding as firmware is; then they are linked."""
    need_compiler()
    if shutil.which("nm") is None:
        pytest.skip("there is no nm")
    objects = [folder / f"{number}_{source.stem}.o" for number, source in enumerate(sources)]
    for source, made in zip(sources, objects, strict=True):
        folders = [simulator.MODEL, next(folder.rglob("npuc_kernel.h")).parent]
        include = [f"-I{each}" for each in folders]
        subprocess.run([simulator.compiler(), *FREESTANDING, *include, "-o", str(made), str(source)], check=True)
    linked = ["-r", "-nostdlib", "-o", str(folder / "firmware.o"), *map(str, objects)]
    subprocess.run([simulator.compiler(), *linked], check=True)
    listed = ["nm", "--defined-only", "--extern-only", "--format=posix"]
    found = [
        subprocess.run([*listed, each], check=True, capture_output=True, text=True).stdout for each in objects
    ]
    return [[line.split()[0] for line in text.splitlines()] for text in found]


def test_one_network_under_two_names_links_into_one_firmware(whole: Path, tmp_path: Path) -> None:
    sources = [
        *_exported(whole, tmp_path / "a", "--prefix", "left"),
        *_exported(whole, tmp_path / "b", "--prefix", "right"),
    ]
    assert _symbols(sources, tmp_path) == [["left_kernel"], ["right_kernel"]]


@pytest.mark.parametrize(("prefix", "name"), [
    ("LeNet-5", "LeNet_5"), ("int", "int"), ("7 nets", "n7_nets"), ("layer_0", "layer_0"),
    ("../a*/ #error\n\\", "a_error"), ("x" * 200, "x" * 40),
])  # fmt: skip
def test_any_name_becomes_one_of_c(prefix: str, name: str, whole: Path, tmp_path: Path) -> None:
    sources = _exported(whole, tmp_path / "out", "--prefix", prefix)
    assert [each.name for each in sources] == [f"{name}_ok_device_kernel.c"]
    assert _symbols(sources, tmp_path) == [[f"{name}_kernel"]]
    launcher = (tmp_path / "out" / f"{name}_launch.cpp").read_text()
    assert f'npuc::launch("{name}_kernel",' in launcher
    makefile = (tmp_path / "out" / "Makefile").read_text()
    assert f"{name}_ok_device_kernel.o: {name}_ok_device_kernel.c\n" in makefile


def test_the_self_test_has_the_name(whole: Path, tmp_path: Path) -> None:
    _exported(whole, tmp_path / "out", "--prefix", "mine", "--self-test")
    assert "./mine_launch weights.bin" in (tmp_path / "out" / "Makefile").read_text()


def test_parts_between_host_regions_have_names_of_their_own(tmp_path: Path) -> None:
    artefact = tmp_path / "parts.npu"
    npuc("compile", DIGITS, "--target", "bm1684", "-o", artefact, "--deny", "MaxPool").done()
    sources = _exported(artefact, tmp_path / "out")
    names = [f"npuc_digits_part_{number}" for number in range(len(sources))]
    assert len(sources) > 1
    assert _symbols(sources, tmp_path) == [[f"{name}_kernel"] for name in names]
    named = _exported(artefact, tmp_path / "named", "--prefix", "mine" * 50, "--self-test")
    assert named[1].name == f"{'mine' * 10}_part_1_ok_device_kernel.c"
    build = ["make", "-C", str(named[1].parent), "kernel", "CROSS=", f"OKKERNEL={simulator.MODEL}"]
    subprocess.run(build, check=True, capture_output=True)
    makefile = named[1].with_name("Makefile").read_text()
    assert f"./{'mine' * 10}_part_1_launch weights.bin" in makefile


def test_a_compile_can_choose_the_name_and_an_export_another(tmp_path: Path) -> None:
    artefact = tmp_path / "a.npu"
    npuc("compile", DIGITS, "--target", "bm1684", "-o", artefact, "--prefix", "my net").done()
    assert _exported(artefact, tmp_path / "b")[0].name == "my_net_ok_device_kernel.c"
    assert _exported(artefact, tmp_path / "c", "--prefix", "other")[0].name == "other_ok_device_kernel.c"


def test_variants_of_a_prefix_are_numbered(tmp_path: Path) -> None:
    model, artefact = tmp_path / "model.onnx", tmp_path / "a.npu"
    text = "g (float[1,3,h,8] x) => (float[1,4,h,8] y) { y = Conv<pads = [1, 1, 1, 1]>(x, w) }"
    onnx.save(parse(text, w=(4, 3, 3, 3)), model)
    shapes = ("--input-shape", "x=1,3,8,8", "--input-shape", "x=1,3,12,8")
    npuc("compile", model, "--target", "bm1684", "-o", artefact, "--prefix", "u", *shapes).done()
    for number in range(2):
        folder = tmp_path / str(number)
        (source,) = _exported(artefact / "variants" / str(number), folder)
        assert source.name == f"u_{number}_ok_device_kernel.c"


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile", *SYNTHETIC, "--target", "easynpu", "--prefix", "a"),
        ("compile", "--target", "bm1684", "--prefix", "é"),
        ("export", "--format", "okkernel", "--prefix", "é"),
        ("export", "--format", "model-explorer", "--model", str(DIGITS), "--prefix", "a"),
    ],
    ids=" ".join,
)
def test_a_name_that_nothing_can_have_is_refused(arguments: tuple[str, ...], whole: Path, tmp_path: Path) -> None:
    command, *options = arguments
    given = DIGITS if command == "compile" else whole
    outcome = npuc(command, given, *options, "-o", tmp_path / "out")
    assert outcome.code == 2 and "--prefix" in outcome.err
    assert not (tmp_path / "out").exists()
