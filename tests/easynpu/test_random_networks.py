"""Random networks on small machines: tiles, halo, segments and views change no bit, or the network is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from npuc import driver, program, verify
from npuc.data import synthetic
from npuc.errors import NpucError
from npuc.export_onnx import to_onnx
from npuc.target import Options, target
from tests.easynpu.networks import Network, random_machine


def compiled_and_verified(folder: Path, seed: int) -> dict[str, object]:
    """The verification report of a random network on a random machine."""
    model, machine, out = folder / "model.onnx", folder / "machine.toml", folder / "out.npu"
    model.write_bytes(to_onnx(Network(seed).graph()).SerializeToString())
    machine.write_text("".join(f"{key} = {value}\n" for key, value in random_machine(seed).items()))
    easynpu = target("easynpu")
    compiled, _ = driver.compile_model(model, easynpu, Options(machine=str(machine)), {})
    program.save(compiled, out)
    loaded = program.load(out)
    samples = synthetic(driver.program_inputs(loaded), 2, seed=1)
    tolerance = verify.Tolerance(sqnr_db=-100, cosine=-1)
    return verify.verify(model, out, replace(loaded), easynpu, samples, tolerance)


@pytest.mark.parametrize("seed", range(40))
def test_a_random_network_on_a_small_machine_is_bit_exact_or_refused(seed: int, tmp_path: Path) -> None:
    try:
        report = compiled_and_verified(tmp_path, seed)
    except NpucError as error:
        assert error.problems[0].code in ("E202", "E205", "E302", "E303"), str(error)
        return
    assert report["bit_exact"] is True
