"""AXI adapters with a mistake: an expression of the hardware description with another in its place."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.easynpu_rtl.mutants import PACKAGE, Mutant, imported, source

CHANNELS, REGISTERS, MEMORIES, WRAPPER = "axi", "wrapper", "axi", "wrapper"
COPIES = "reads_and_writes_do_not_wait_for_each_other"
PATHS = "no_output_follows_an_input_within_a_cycle"
VALUES = "registers_refuse_what_the_core_would_pass_over"
BURSTS = "bursts_leave_and_find_what_the_model_says"
RUNS = "memories_are_refused_during_a_run"
STRANGE = "bursts_that_axi_does_not_know_are_refused"
"""Trials of the adapter."""
MUTANTS = (
    Mutant("ready stays though nothing fits", CHANNELS, "channel.ready.eq(queue.w_rdy)", "channel.ready.eq(1)",
        COPIES),
    Mutant("ready waits for valid", CHANNELS, "channel.ready.eq(queue.w_rdy)",
        "channel.ready.eq(queue.w_rdy & channel.valid)", PATHS),
    Mutant("an answer stays one cycle", CHANNELS, "queue.r_en.eq(channel.ready)", "queue.r_en.eq(1)", COPIES),
    Mutant("valid waits for ready", CHANNELS, "channel.valid.eq(queue.r_rdy)",
        "channel.valid.eq(queue.r_rdy & channel.ready)", PATHS),
    Mutant("a register is written before its value came", REGISTERS, "places.r_rdy & values.r_rdy & answers.w_rdy",
        "places.r_rdy & answers.w_rdy", VALUES),
    Mutant("a register is read with no room for its value", REGISTERS,
        "places.r_rdy & (answers.level < axi.DEPTH - 1)", "places.r_rdy", COPIES),
    Mutant("the value of a register is taken a cycle early", REGISTERS, "answers.w_en.eq(asked)",
        "answers.w_en.eq(access.granted)", COPIES),
    Mutant("parts of a register are written as a whole", REGISTERS, "access.granted & whole & accepted",
        "access.granted & accepted", VALUES),
    Mutant("a beat is taken while another side has the port", MEMORIES, "values.r_en.eq(done)",
        "values.r_en.eq(beats.valid)", COPIES),
    Mutant("a burst is answered with no room for the answer", MEMORIES,
        "beats.valid & values.r_rdy & answers.w_rdy & ~self.reading", "beats.valid & values.r_rdy & ~self.reading",
        BURSTS),
    Mutant("every beat is answered", MEMORIES, "answers.w_en.eq(done & beats.last)", "answers.w_en.eq(done)",
        COPIES),
    Mutant("the last beat is marked a cycle early", MEMORIES, "found.last.eq(last)", "found.last.eq(beats.last)",
        RUNS),
    Mutant("words are read with no room for them", MEMORIES, "beats.valid & (answers.level < DEPTH - 1)",
        "beats.valid", COPIES),
    Mutant("strobes are ignored", MEMORIES, "access.granted & writes & ~value.strb.all() & ~ready", "0", BURSTS),
    Mutant("wrapping bursts go on", MEMORIES, "Mux(burst.burst == Burst.WRAP, wrapped, ahead)", "ahead", BURSTS),
    Mutant("the error of a burst stays for the next", MEMORIES, "Mux(beats.last, Response.OKAY, response)",
        "response", STRANGE),
    Mutant("the error of a beat is forgotten", MEMORIES, "error.eq(Mux(beats.last", "error.eq(Mux(1", BURSTS),
    Mutant("memories are written during a run", WRAPPER, "(register_writes, memory_writes, memory_reads)]",
        "(register_writes, memory_reads)]", RUNS),
    Mutant("a run is not noticed", WRAPPER, "[busy.eq(1), paused.eq(0)]", "paused.eq(0)", RUNS),
)  # fmt: skip


def adapter(mutant: Mutant) -> Any:
    """The adapter's class with this mistake."""
    with imported({mutant.module: source(mutant.module).replace(mutant.right, mutant.wrong)}):
        return import_module(f"{PACKAGE}.{WRAPPER}").Adapter
