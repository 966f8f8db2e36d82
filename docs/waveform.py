"""Draws the waveforms of one layer on the EasyNPU hardware: docs/easynpu-wave.svg.

    python docs/waveform.py

The first layer of digits on the default machine, from the cycle in which its word is decoded to the results of its
first tile, as Verilator traces the core (npuc run --chip-model rtl --trace).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from npuc import compile as compile_model
from npuc import running
from npuc.samples import loading
from npuc.target import target

ROOT = Path(__file__).resolve().parents[1]
SIGNALS = {
    "controller.decodes": "the word is decoded",
    "controller.read_weight": "parameters are loaded",
    "loader.loads": "a sub-ifmap word is requested",
    "loader.entry": "its entry of the pads",
    "sequencer.busy": "a step runs",
    "sequencer.hki": "kernel row",
    "sequencer.wki": "kernel column",
    "sequencer.oyi0": "row in the tile",
    "sequencer.oxi0": "column in the tile",
    "ifmap_pads.address__0": "if_hw_addr",
    "weight_stream.take": "w_och_gcnt moves on",
    "array.pe0_0.read_address": "Pe_ps_addr",
    "array.pe0_0.psum": "new psum of PE 0",
    "array.pe0_0.ofmap": "int8 of PE 0",
    "writer.arrive": "the results of a position",
    "writer.write__0": "a word to the fmap DTCM",
    "writer.address__0": "its address",
}
"""The signals by their path in the Verilog, with what they mean or the document's name."""
SIGNED = {"array.pe0_0.psum": 32, "array.pe0_0.ofmap": 8}
"""Those that are signed, with their bits."""
CYCLES, STEP, ROW, LEFT = 76, 13, 22, 330
STYLE = (
    "text{font:11px ui-monospace,monospace;fill:#5b6573}path{fill:none;stroke:#0b62c4}"
    ".n{fill:#1a1f27}.v{font-size:8px;fill:#1a1f27;text-anchor:middle}.g{stroke:#dde2e8}"
    "@media (prefers-color-scheme:dark){text{fill:#9aa6b5}.n,.v{fill:#e6eaef}.g{stroke:#2c343d}}"
)


def changes(trace: str, paths: Sequence[str]) -> Mapping[str, list[tuple[int, int]]]:
    """The (cycle, value) at which each signal changes, by its path below the top module."""
    scopes, codes = list[str](), dict[str, list[str]]()
    head, _, body = trace.partition("$enddefinitions")
    for line in head.splitlines():
        words = line.split()
        if words[:1] == ["$scope"]:
            scopes.append(words[2])
        elif words[:1] == ["$upscope"]:
            scopes.pop()
        elif words[:1] == ["$var"]:
            codes.setdefault(words[3], []).append(".".join([*scopes[2:], words[4]]))
    found: dict[str, list[tuple[int, int]]] = {path: [] for path in paths}
    cycle = 0
    for line in body.splitlines():
        if line.startswith("#"):
            cycle = int(line[1:])
        elif change := re.fullmatch(r"b([01]+) (\S+)|([01])(\S+)", line):
            for path in codes[change[2] or change[4]]:
                if path in found:
                    found[path].append((cycle, int(change[1] or change[3], 2)))
    return found


def draw_signals(found: Mapping[str, list[tuple[int, int]]]) -> str:
    """The signals as an SVG, a row each; a value of several bits stands where there is room for it."""
    height, width = ROW * (len(SIGNALS) + 1), LEFT + STEP * CYCLES
    first = next(cycle for cycle, value in found["controller.decodes"] if value)
    parts = [f'<text x="{LEFT + STEP * at}" y="12">{at}</text>' for at in range(0, CYCLES, 10)]
    grid = "".join(f"M{LEFT + STEP * at} 16V{height}" for at in range(0, CYCLES, 10))
    parts.append(f'<path class="g" d="{grid}"/>')
    for row, (path, meaning) in enumerate(SIGNALS.items(), 1):
        top, bottom = ROW * row + 2, ROW * row + 16
        parts.append(f'<text x="0" y="{bottom - 3}"><tspan class="n">{path}</tspan> {meaning}</text>')
        seen = [(max(cycle - first, 0), value) for cycle, value in found[path] if cycle - first < CYCLES]
        ends = [cycle for cycle, _ in seen[1:]] + [CYCLES]
        line, bit = "", max(value for _, value in found[path]) == 1
        for (cycle, value), end in zip(seen, ends, strict=True):
            left, right = LEFT + STEP * cycle, LEFT + STEP * end
            if bit:
                line += f"{'L' if line else 'M'}{left} {top if value else bottom}H{right}"
                continue
            line += f"M{left} {bottom}L{left + 2} {top}H{right - 2}L{right} {bottom}Z"
            bits = SIGNED.get(path, 0)
            text = str(value - (1 << bits if bits and value >> (bits - 1) else 0))
            if 5 * len(text) < right - left:
                parts.append(f'<text class="v" x="{(left + right) // 2}" y="{bottom - 4}">{text}</text>')
        parts.append(f'<path d="{line}"/>')
    label = "Waveforms of the first layer of digits"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{label}"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    """Compiles digits, runs a sample on the hardware, and writes the picture."""
    easynpu = target("easynpu")
    images = ROOT / "models" / "digits_test.npz"
    program = compile_model(ROOT / "models" / "digits.onnx", target="easynpu", calibration=str(images)).program
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "wave.vcd"
        samples = loading.load([images], running.program_inputs(program))
        runner = easynpu.trace_runner(program, trace)
        assert runner is not None
        runner({name: values[:1] for name, values in samples.inputs.items()})
        found = changes(trace.read_text(encoding="ascii"), tuple(SIGNALS))
    (ROOT / "docs" / "easynpu-wave.svg").write_text(draw_signals(found), encoding="utf-8")


if __name__ == "__main__":
    main()
