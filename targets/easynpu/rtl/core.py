"""The core: an EasyNPU with its memories behind a memory-mapped port."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Out

from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine, identity
from npuc.targets.easynpu.program.artefact import IMAGES
from npuc.targets.easynpu.rtl import port
from npuc.targets.easynpu.rtl.array import PeArray
from npuc.targets.easynpu.rtl.controller import CYCLES as CYCLE_BITS
from npuc.targets.easynpu.rtl.controller import Controller
from npuc.targets.easynpu.rtl.layouts import AHEAD, WORD
from npuc.targets.easynpu.rtl.loader import Loader
from npuc.targets.easynpu.rtl.memories import ResultQueue, SinglePort
from npuc.targets.easynpu.rtl.pads import IfmapPads, ParameterPads, Tables
from npuc.targets.easynpu.rtl.pe import MODULE, Pe
from npuc.targets.easynpu.rtl.rearranger import Rearranger
from npuc.targets.easynpu.rtl.sequencer import Sequencer, issue
from npuc.targets.easynpu.rtl.verilog import HEADER, modules
from npuc.targets.easynpu.rtl.weight_stream import WeightStream
from npuc.targets.easynpu.rtl.words import delay
from npuc.targets.easynpu.rtl.writer import Writer


class Core(wiring.Component):
    """One EasyNPU.

    The host's port: a cycle with `write` or `read` has an address in words, with the region in its upper bits;
    read data follow a cycle later. The memories respond only while the core is not busy; with overlap, those of
    maps and weights also take writes while it is. `interrupt_request`: a run has ended or paused. observed: adds
    ports `seen...` with the results of every word, written or not, for a test bench. boots: program and weights
    are in their memories from the start, from itcm.hex and weight.hex.
    """

    def __init__(self, machine: Machine, *, observed: bool = False, boots: bool = False) -> None:
        self.machine = machine
        self.observed = observed
        self.boots = boots
        members: dict[str, Any] = dict(port.signature(machine).flip().members)
        if observed:
            fields = issue(machine).members
            members |= {
                "seen": Out(1),
                "seen_count": Out(fields["count"]),
                "seen_stage": Out(fields["stage"]),
                "seen_group": Out(fields["group"]),
                "seen_row": Out(fields["row"]),
                "seen_column": Out(fields["column"]),
                "seen_results": Out(data.ArrayLayout(WORD, machine.pe_rows)),
                "chain_ends": Out(1),
                "cycles": Out(CYCLE_BITS),
            }
        super().__init__(members)

    def elaborate(self, _platform: object) -> Module:
        """The circuit."""
        m = Module()
        machine = self.machine
        m.submodules.controller = self.controller = Controller(machine)
        m.submodules.loader = self.loader = Loader(machine)
        m.submodules.sequencer = self.sequencer = Sequencer(machine)
        m.submodules.weight_stream = self.stream = WeightStream(machine)
        m.submodules.array = self.array = PeArray(machine)
        m.submodules.writer = self.writer = Writer(machine)
        m.submodules.rearranger = self.rearranger = Rearranger(machine)
        self._maps(m)
        self._images(m)
        self._tables(m)
        self._steps(m)
        self._load(m)
        self._pads(m)
        self._pieces(m)
        self._results(m)
        self._host(m)
        return m

    def _maps(self, m: Module) -> None:
        """Fmap and skip DTCM: reads have priority over results."""
        machine, self.maps, self.queues = self.machine, [], []
        for name in isa.MEMORIES:
            words = machine.capacity_words(name)
            m.submodules[name] = dtcm = SinglePort(words, filled=machine.overlap)
            m.submodules[f"{name}_queue"] = queue = ResultQueue(machine, 2 * (8 + machine.pe_rows))
            self.maps.append(dtcm)
            self.queues.append(queue)
        self.load_read, self.operand_read = (Signal(self.loader.request.shape()) for _ in range(2))
        m.d.sync += [self.load_read.eq(self.loader.request), self.operand_read.eq(self.sequencer.operand)]
        for number, (dtcm, queue) in enumerate(zip(self.maps, self.queues, strict=True)):
            loads = self.load_read.valid & (self.load_read.memory == number)
            operand = self.operand_read.valid & (self.operand_read.memory == number)
            with m.If(loads | operand):
                m.d.comb += dtcm.read.eq(1)
                m.d.comb += dtcm.address.eq(Mux(loads, self.load_read.address, self.operand_read.address))
            with m.Elif(queue.valid):
                m.d.comb += [
                    queue.take.eq(1),
                    dtcm.address.eq(queue.next.address),
                    dtcm.write.eq(queue.next.lanes),
                    dtcm.write_data.eq(queue.next.word),
                ]
            m.d.comb += [queue.put.eq(self.writer.write[number]), queue.result.eq(self.writer.result[number])]

    def _images(self, m: Module) -> None:
        """ITCM and weight DTCM."""
        controller, stream = self.controller, self.stream
        self.itcm, self.weight = (
            SinglePort(
                self.machine.capacity_words(name),
                f"{name}.hex" if self.boots else None,
                filled=self.machine.overlap and name == "weight",
            )
            for name in IMAGES
        )
        m.submodules.itcm, m.submodules.weight = self.itcm, self.weight
        m.d.comb += [
            self.itcm.address.eq(controller.fetch),
            self.itcm.read.eq(1),
            controller.word.eq(self.itcm.read_data),
            self.weight.read.eq(controller.read_weight | stream.read),
            self.weight.address.eq(Mux(controller.read_weight, controller.weight_address, stream.address)),
            stream.word.eq(self.weight.read_data),
        ]

    def _tables(self, m: Module) -> None:
        """Connects the tables that the controller fills for every word of a chain."""
        controller, loader, sequencer, stream = self.controller, self.loader, self.sequencer, self.stream
        m.d.comb += [each.chain.eq(controller.chain) for each in (loader, sequencer, stream, self.rearranger)]
        m.d.comb += [
            loader.write.eq(controller.write_load),
            loader.write_stage.eq(controller.stage),
            loader.stage.eq(controller.load),
            sequencer.write.eq(controller.write_run),
            sequencer.write_stage.eq(controller.stage),
            sequencer.stage.eq(controller.run),
            stream.clear.eq(controller.clear_blocks),
            stream.write.eq(controller.write_block),
            stream.block.eq(controller.weight_block),
        ]

    def _steps(self, m: Module) -> None:
        """Connects the control of the steps."""
        controller, loader, sequencer = self.controller, self.loader, self.sequencer
        m.d.comb += [
            self.stream.start.eq(delay(m, controller.begin, 1, "begun")),
            loader.start.eq(controller.begin),
            loader.enable.eq(controller.load_enable),
            loader.advance.eq(controller.advance),
            loader.continues.eq(controller.continues),
            controller.load_complete.eq(loader.complete),
            controller.load_ends.eq(loader.ends),
            controller.load_exists.eq(loader.exists),
            sequencer.ready.eq(controller.step_ready),
            sequencer.step.eq(loader.step),
            sequencer.next_part.eq(loader.next_part),
            controller.step_busy.eq(sequencer.busy),
            controller.step_ends.eq(sequencer.ends),
            controller.blocked.eq(self._is_blocked()),
            controller.late.eq(sequencer.late),
        ]
        self._settling(m)

    def _settling(self, m: Module) -> None:
        """Whether all results are in the DTCMs."""
        queued = ~self.queues[0].empty | ~self.queues[1].empty
        puts = Signal(AHEAD + 1)
        m.d.sync += puts.eq(Cat(self.sequencer.puts, puts))
        under_way = self.sequencer.puts | puts.any()
        m.d.comb += self.controller.quiet.eq(self.array.empty & ~under_way & ~queued & self.writer.empty)

    def _is_blocked(self) -> Value:
        """Whether no sub-ifmap word is loaded in a step; a single set of pads must no longer need its entry."""
        loader, sequencer = self.loader, self.sequencer
        if self.machine.ifmap_pad_sets > 1:
            return sequencer.blocked
        return sequencer.blocked | (sequencer.guards & ~(loader.entry < sequencer.lowest))

    def _load(self, m: Module) -> None:
        """Routes words read from the DTCMs to the ifmap pads and to the PEs."""
        loader, machine = self.loader, self.machine
        m.submodules.ifmap_pads = self.ifmap_pads = pads = IfmapPads(machine)
        loads, padding, lowest, entry = loader.loads, loader.padding, loader.lowest, loader.entry
        loads, entry = (delay(m, each, AHEAD, name) for each, name in ((loads, "loads"), (entry, "entry")))
        loads, padding, lowest, entry = (
            delay(m, each, 2, f"{name}_read")
            for each, name in ((loads, "loads"), (padding, "padding"), (lowest, "lowest"), (entry, "entry"))
        )
        load_memory = delay(m, self.load_read.memory, 1, "load_memory")
        operand = delay(m, self.operand_read, 1, "operand")
        operand_row = delay(m, self.sequencer.operand_row, 2 + AHEAD, "operand_row")
        fmap, skip = (dtcm.read_data for dtcm in self.maps)
        border = Mux(lowest, Value.cast(0x80).replicate(LANES), 0)
        m.d.comb += [
            pads.write.eq(loads),
            pads.write_address.eq(entry),
            pads.word.eq(Mux(padding, border, Mux(load_memory, skip, fmap))),
            self.array.operand_valid.eq(operand.valid),
            self.array.operand_row.eq(operand_row),
            self.array.operand.eq(Mux(operand.memory, skip, fmap)),
        ]

    def _pads(self, m: Module) -> None:
        """The array and the pads that it reads."""
        array = self.array
        put = delay(m, self.controller.parameters, AHEAD, "parameters")
        word = delay(m, self.weight.read_data, AHEAD, "parameter_word")
        m.submodules.parameter_pads = parameters = ParameterPads(self.machine)
        m.submodules.tables = tables = Tables(self.machine)
        m.d.comb += [
            array.issue.eq(self.sequencer.issue),
            array.weights.eq(self.stream.weights),
            self.stream.take.eq(array.take),
            parameters.write.eq(put.planes),
            parameters.write_address.eq(put.entry),
            parameters.word.eq(word),
            parameters.address.eq(array.address),
            tables.write.eq(put.table_planes),
            tables.write_table.eq(put.table),
            tables.word.eq(word),
            tables.table.eq(array.table),
        ]
        for row, address in enumerate(self.ifmap_pads.address):
            m.d.comb += [
                array.pad_ahead[row].eq(self.sequencer.pad[row]),
                address.eq(array.pad[row]),
                array.entry[row].eq(self.ifmap_pads.entry[row]),
            ]
        for lane in range(LANES):
            m.d.comb += array.own[lane].eq(parameters.own[lane])
        for number, line in enumerate(tables.line):
            m.d.comb += [tables.input[number].eq(array.fed[number]), array.line[number].eq(line)]

    def _pieces(self, m: Module) -> None:
        """The destinations of results, and of the words of a map that a reshape word reads."""
        controller, sequencer = self.controller, self.sequencer
        rearranger = self.rearranger
        m.d.comb += [
            rearranger.word.eq(controller.reshape),
            rearranger.start.eq(controller.divide),
            rearranger.take.eq(sequencer.take),
            sequencer.moving.eq(controller.moving),
            sequencer.scattered.eq(rearranger.piece),
            sequencer.scattered_writes.eq(rearranger.writes),
            controller.moved.eq(controller.moving & rearranger.piece.last),
            controller.map_ends.eq(self.loader.last_step),
            self.writer.put.eq(delay(m, sequencer.put, 1, "put")),
            self.writer.piece.eq(delay(m, sequencer.piece, 1, "piece")),
        ]

    def _results(self, m: Module) -> None:
        """Routes results, or words that a reshape has read, to the writer; results also to the test bench."""
        array, writer, pads = self.array, self.writer, self.ifmap_pads
        word, read = Signal(WORD), Signal()
        given = delay(m, self.controller.rearranging, 2 + AHEAD, "rearranging")
        m.d.sync += [word.eq(pads.word), read.eq(pads.write & given)]
        m.d.comb += [
            writer.arrive.eq(array.leaving.write | read),
            writer.count.eq(Mux(read, 1, array.leaving.count)),
        ]
        m.d.comb += [writer.results[row].eq(each) for row, each in enumerate(array.results)]
        with m.If(read):
            m.d.comb += writer.results[0].eq(word)
        if self.observed:
            m.d.comb += [
                getattr(self, f"seen_{name}").eq(array.leaving[name]) for name in ("count", "stage", "group")
            ]
            m.d.comb += [self.seen.eq(array.leaving.result), self.chain_ends.eq(self.controller.chain_ends)]
            m.d.comb += self.cycles.eq(self.controller.cycles)
            m.d.comb += [self.seen_row.eq(array.leaving.row), self.seen_column.eq(array.leaving.column)]
            m.d.comb += [self.seen_results[row].eq(each) for row, each in enumerate(array.results)]

    def _host(self, m: Module) -> None:
        """The memory-mapped port."""
        controller = self.controller
        region, index = self.address[-port.REGION_BITS :], self.address[: -port.REGION_BITS]
        idle = ~controller.busy
        memories = (*self.maps, self.weight, self.itcm)
        region_before, register = Signal(port.REGION_BITS), Signal(WORD)
        m.d.sync += region_before.eq(region)
        for number, memory in enumerate(memories):
            with m.If(idle & (region == number) & (self.read if memory.filled else self.read | self.write)):
                m.d.comb += [memory.address.eq(index), memory.read.eq(self.read)]
                if not memory.filled:
                    m.d.comb += [
                        memory.write.eq(self.write.replicate(LANES)),
                        memory.write_data.eq(self.write_data),
                    ]
            if memory.filled:
                m.d.comb += [
                    memory.fill.eq(self.write & (region == number)),
                    memory.fill_address.eq(index),
                    memory.fill_data.eq(self.write_data),
                ]
            with m.If(region_before == number):
                m.d.comb += self.read_data.eq(memory.read_data)
        with m.If(region_before == len(memories)):
            m.d.comb += self.read_data.eq(register)
        self._registers(m, index, self.write & (region == len(memories)), register)

    def _registers(self, m: Module, index: Value, write: Value, register: Signal) -> None:
        controller, was_busy = self.controller, Signal()
        control = write & (index == port.CONTROL) & ~controller.busy & ~controller.paused
        m.d.comb += [controller.go.eq(control), controller.resume.eq(write & (index == port.RESUME))]
        with m.If(control):
            m.d.sync += [
                controller.count.eq(self.write_data[: port.PAUSE]),
                controller.pause.eq(self.write_data[port.PAUSE]),
            ]
        m.d.sync += was_busy.eq(controller.busy)
        with m.If(was_busy & ~controller.busy):
            m.d.sync += self.interrupt_request.eq(1)
        with m.Elif(write):
            m.d.sync += self.interrupt_request.eq(0)
        status = [(port.BUSY, controller.busy), (port.PAUSED, controller.paused), (port.FAILED, controller.failed)]
        status += [
            (port.LOST, self.writer.lost | self.queues[0].full | self.queues[1].full),
            (port.STARVED, self.stream.starved | self.rearranger.starved),
        ]
        m.d.sync += register.eq(0)
        with m.Switch(index):
            with m.Case(port.STATUS):
                m.d.sync += [register[bit].eq(value) for bit, value in status]
            with m.Case(port.CYCLES):
                m.d.sync += register.eq(controller.cycles)
            for number, value in identity(self.machine).items():
                with m.Case(number):
                    m.d.sync += register.eq(value)


@lru_cache(maxsize=2)
def verilog(machine: Machine, *, observed: bool = False, boots: bool = False) -> str:
    """The core as SystemVerilog, with the top module `easynpu`."""
    core = Core(machine, observed=observed, boots=boots)
    return f"{HEADER}\n{modules('easynpu', core)}\n{modules(MODULE, Pe(machine))}"
