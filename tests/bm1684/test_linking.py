"""Exported kernels link into firmware with the memory that the SDK leaves them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from npuc.targets.bm1684.simulate import simulator
from tests.cli.process import SYNTHETIC, npuc
from tests.given import GIVEN

COMPILER = "arm-none-eabi-gcc"
SCRIPT = """
MEMORY
{
    itcm : ORIGIN = 0, LENGTH = 83K
    dtcm : ORIGIN = 0x100000, LENGTH = 128
    ddr : ORIGIN = 0x10000000, LENGTH = 1M
}
SECTIONS
{
    .ddr : { *ok_device_*.o(.text* .rodata*) } > ddr
    .itcm : { *(.text* .rodata*) } > itcm
    .dtcm : { *(.data* .bss* COMMON) } > dtcm
}
"""
"""What the SDK's demo leaves free; 1 MB of DDR is this test's, not the SDK's."""
MODELS = (
    "mnist_cnn", "mtcnn_pnet", "pplcnet_doc_ori", "ppocr_cls", "tiny_ad_ae_fp32", "tiny_kws_dscnn_fp32",
    "tiny_resnet8_fp32", "tiny_vww_mbv1_fp32", "effse",
)  # fmt: skip


def _link(model: Path, precision: str, folder: Path) -> int:
    """Compiles a model, links its kernels, and gives their number; lines have at most 120 characters."""
    options = ("--target", "bm1684", "--precision", precision, "-o", folder / "m.npu")
    npuc("compile", *SYNTHETIC, model, *options).done()
    npuc("export", folder / "m.npu", "--format", "okkernel", "-o", folder / "c").done()
    texts = [each for each in (folder / "c").rglob("*") if each.suffix in (".c", ".h", ".cpp", ".hpp")]
    assert [each for each in texts if max(map(len, each.read_text("utf-8").splitlines())) > 120] == []
    shared = ["npuc_kernel.h", "npuc_launch.hpp", *(["okk_fix8b.h"] if precision == "int8" else [])]
    assert sorted(each.name for each in texts if each.name in shared) == shared  # each once
    if shutil.which(COMPILER) is None:
        pytest.skip(f"there is no {COMPILER}")
    sources = sorted((folder / "c").rglob("*_ok_device_kernel.c"))
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2", f"-I{simulator.MODEL}", f"-I{folder / 'c'}", "-c"]
    subprocess.run([COMPILER, *flags, *map(str, sources)], check=True, cwd=folder)
    (folder / "script.ld").write_text(SCRIPT)
    script = ["-nostdlib", "-T", "script.ld", "-Wl,--unresolved-symbols=ignore-all", "-o", "firmware"]
    objects = [f"{each.stem}.o" for each in sources]
    subprocess.run([COMPILER, *script, *objects, "-lgcc"], check=True, cwd=folder)
    return len(objects)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_a_network_links(name: str, precision: str, tmp_path: Path) -> None:
    model = GIVEN / "found" / "bm1684" / f"{name}.onnx" if name == "effse" else GIVEN / "models" / f"{name}.onnx"
    assert _link(model, precision, tmp_path) == 1


def test_a_network_of_thirty_parts_links(tmp_path: Path) -> None:
    """Between them the host computes sines."""
    lines = "\n".join(f"c{at} = Conv(s{at}, w)\n s{at + 1} = Sin(c{at})" for at in range(30))
    text = f"g (float[1,64,8,8] s0) => (float[1,64,8,8] s30) {{ {lines} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    weights = np.random.default_rng(0).normal(0, 0.1, (64, 64, 1, 1)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    assert _link(tmp_path / "m.onnx", "int8", tmp_path) == 30
