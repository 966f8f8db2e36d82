"""What a machine file says of scales, and the keyword `scales` of Python, which overrides it."""

from __future__ import annotations

import json
from math import frexp
from pathlib import Path

import pytest

import npuc as api
from tests.cli.process import SYNTHETIC, Digits, npuc

TARGETS = ("easynpu", "nvdla-small")


@pytest.mark.parametrize("target", TARGETS)
def test_a_machine_file_demands_it_and_the_keyword_overrides_the_file(
    target: str, digits: Digits, tmp_path: Path
) -> None:
    machine, program = tmp_path / "m.toml", tmp_path / "o"
    machine.write_text('scales = "power-of-two"')

    def powers() -> list[bool]:
        manifest = json.loads((program / "manifest.json").read_text("utf-8"))
        demanded = manifest["machine"]["scales"] == "power-of-two"
        layers = json.loads((program / "graph.json").read_text("utf-8"))["tensors"]
        return [demanded, all(frexp(each["scale"])[0] == 0.5 for each in layers.values())]

    samples = ("--calibration", digits.few, "-o", program)
    npuc("compile", digits.model, "--target", target, "--machine", machine, *samples).done()
    assert powers() == [True, True]
    npuc("verify", digits.model, program, "--data", digits.few).done()
    free = api.compile(digits.model, target, calibration=digits.few, machine=machine, scales="free")
    free.save(program, force=True)
    assert powers() == [False, False]
    machine.write_text('scales = "integer"')
    arguments = ("compile", *SYNTHETIC, digits.model, "--target", target, "--machine", machine, "-o", program)
    message = npuc(*arguments).refused("E305")
    assert "scales = 'integer'" in message and "free, power-of-two" in message


def test_it_can_be_asked_only_of_what_has_scales(digits: Digits) -> None:
    for target, precision in (("bm1684", "fp32"), ("nvdla-full", "fp16")):
        with pytest.raises(ValueError, match="has no scales"):
            api.compile(digits.model, target, precision=precision, scales="power-of-two")
