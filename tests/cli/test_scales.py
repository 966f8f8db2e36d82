"""--scales, and what a machine file says of scales."""

from __future__ import annotations

import json
from math import frexp
from pathlib import Path

from tests.cli.process import SYNTHETIC, Digits, npuc

TARGETS = ("easynpu", "nvdla-small")


def test_a_machine_file_demands_it_and_the_option_overrides_the_file(digits: Digits, tmp_path: Path) -> None:
    machine, program = tmp_path / "m.toml", tmp_path / "o"
    machine.write_text('scales = "power-of-two"')

    def powers(*options: object) -> list[bool]:
        npuc("compile", digits.model, "--calibration", digits.few, "-o", program, *options).done()
        manifest = json.loads((program / "manifest.json").read_text("utf-8"))
        demanded = manifest["machine"]["scales"] == "power-of-two"
        layers = json.loads((program / "graph.json").read_text("utf-8"))["tensors"]
        return [demanded, all(frexp(each["scale"])[0] == 0.5 for each in layers.values())]

    for target in TARGETS:
        assert powers("--target", target, "--machine", machine) == [True, True]
        assert powers("--target", target, "--machine", machine, "--scales", "free") == [False, False]
        assert powers("--target", target, "--scales", "power-of-two") == [True, True]
    npuc("verify", digits.model, program, "--data", digits.few).done()
    bad = tmp_path / "bad.toml"
    bad.write_text('scales = "integer"')
    for target in TARGETS:
        arguments = ("compile", *SYNTHETIC, digits.model, "--target", target, "--machine", bad, "-o", program)
        message = npuc(*arguments).refused("E305")
        assert "scales = 'integer'" in message
        assert "free, power-of-two" in message


def test_it_can_be_asked_only_of_what_has_scales(digits: Digits) -> None:
    for target, *precision in (("bm1684",), ("nvdla-full", "--precision", "fp16")):
        asked = ("compile", *SYNTHETIC, digits.model, "--target", target, *precision, "--scales", "power-of-two")
        assert "has no scales" in npuc(*asked).usage()
