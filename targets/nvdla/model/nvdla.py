"""NVDLA as a driver sees it: registers that are written, operations that run when all their blocks are enabled.

An operation runs as soon as the last of its blocks is enabled; its interrupts are raised, its groups are free for
the next layer and the other groups follow (ping-pong). The hardware takes its time, though: until the driver has
waited for the interrupt, the operation counts as running. What it writes must not be read, nor its registers be
written; the model refuses programs that would race.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from npuc.targets.nvdla.commands import Command, Poll, Wait, Write
from npuc.targets.nvdla.machine import Machine
from npuc.targets.nvdla.model import bdma, cacc, cdma, cdp, csc, pdp, rubik, sdp
from npuc.targets.nvdla.model.memory import Memory, Port, overlap
from npuc.targets.nvdla.model.register_file import Group, RegisterFile
from npuc.targets.nvdla.model.traps import trap
from npuc.targets.nvdla.registers import Register, register_map

CONVOLUTION = ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC")
MEMORY_INPUT = {"PDP": "PDP_RDMA", "CDP": "CDP_RDMA"}
IDLE = 0


@dataclass(frozen=True)
class Operation:
    """An operation that has run, until the driver has waited for it."""

    engine: str
    """The block whose interrupt ends it."""
    groups: Mapping[str, int]
    """Its register group by block."""
    port: Port


class Nvdla:
    """One NVDLA with its memory. The memory that is given is changed."""

    def __init__(self, machine: Machine, memory: Memory) -> None:
        self.machine = machine
        self.memory = memory
        self.registers = RegisterFile(register_map(machine.registers))
        self._raised: list[tuple[str, int]] = []
        self._running: list[Operation] = []
        self._buffered: cdma.Buffered | None = None
        self._bdma = bdma.Queue()

    def execute(self, commands: Iterable[Command]) -> None:
        """Runs a program to its end. Raises ArtefactError (E503) where the hardware could not."""
        for command in commands:
            match command:
                case Write():
                    self.write(command.address, command.value)
                case Poll():
                    self.poll(command)
                case Wait():
                    self.wait(command)
        left = self._waiting()
        if left:
            raise trap(
                left[0], f"enabled, but never ran: {self._missing()}", remedy="enable every block of the layer"
            )

    def write(self, address: int, value: int) -> None:
        """A register write. Raises ArtefactError (E503) for a group that runs, EncodingError for no register."""
        register = self.registers.map.at(address)
        self._expect_free(register)
        if register.name == "D_OP_ENABLE" and not value & 1:
            return
        self.registers.set(register, value)
        if register.name == "D_OP_ENABLE":
            self._run_what_can()
        elif register.name in ("S_LUT_ACCESS_CFG", "S_LUT_ACCESS_DATA"):
            self._access_table(register, value)
        elif register.block == "BDMA":
            self._command_bdma(register, value)

    def read(self, address: int) -> int:
        """What the driver reads from a register, once everything that can run has run."""
        register = self.registers.map.at(address)
        if register.title == "CDMA.S_CBUF_FLUSH_STATUS":
            return 1
        if register.title == "GLB.S_INTR_STATUS":
            return sum(1 << self._bit(each, "STATUS") for each in dict.fromkeys(self._raised))
        if register.name == "S_LUT_ACCESS_DATA":
            return self.registers.tables[register.block].read()
        group = self.registers.producer(register.block) if register.of_group else 0
        return self.registers.get(register.block, register.name, group)

    def poll(self, command: Poll) -> None:
        """The driver waits for a value: whatever still runs has then ended."""
        found = self.read(command.address)
        if found & command.mask != command.value & command.mask:
            title = self.registers.map.at(command.address).title
            raise trap(title, f"polled for {command.value:#x}", limit=f"it stays {found:#x}. {self._missing()}")
        register = self.registers.map.at(command.address)
        if register.name in ("S_STATUS", "S_INTR_STATUS", "STATUS"):
            self._running = [each for each in self._running if register.block not in ("GLB", *each.groups)]

    def wait(self, command: Wait) -> None:
        """The driver waits for an interrupt. Raises ArtefactError (E503) where it would wait for ever."""
        wanted = [
            each for each in self._raised if command.source is None or each == (command.source, command.group)
        ]
        if not wanted:
            raise trap(
                "GLB", f"{command} never comes: {self._missing()}", remedy="enable every block of the layer"
            )
        if self._masked(wanted[0]):
            source, group = wanted[0]
            raise trap("GLB", f"{source}_{group} is masked by S_INTR_MASK", remedy="clear its mask bit")
        self._raised.remove(wanted[0])
        self._end(*wanted[0])

    def _end(self, source: str, group: int) -> None:
        """Forgets the operations that an interrupt ends: that of its group, and those of its engine before it."""
        ends = [at for at, each in enumerate(self._running) if each.groups.get(_engine(source)) == group]
        if ends:
            ended = self._running[ends[0]].engine
            self._running = [each for at, each in enumerate(self._running) if each.engine != ended or at > ends[0]]

    def _bit(self, interrupt: tuple[str, int], what: str) -> int:
        source, group = interrupt
        register = self.registers.map["GLB.S_INTR_STATUS" if what == "STATUS" else "GLB.S_INTR_MASK"]
        return register.places[f"{source}_DONE_{what}{group}"].low

    def _masked(self, interrupt: tuple[str, int]) -> bool:
        return bool(self.registers.get("GLB", "S_INTR_MASK") >> self._bit(interrupt, "MASK") & 1)

    def _expect_free(self, register: Register) -> None:
        """Raises ArtefactError (E503) where a register of a group that waits or runs is written."""
        if not register.of_group:
            return
        group = self.registers.producer(register.block)
        waits = self.registers.enabled(register.block, group)
        runs = any(each.groups.get(register.block) == group for each in self._running)
        if (waits or runs) and not _is_status(register):
            state = "waits to run" if waits else "may still run: no interrupt was waited for"
            raise trap(register.block, f"{register.name} of group {group} is written, which {state}")

    def _access_table(self, register: Register, value: int) -> None:
        tables = self.registers.tables[register.block]
        if register.name == "S_LUT_ACCESS_DATA":
            tables.write(register.block, value)
        else:
            fields = register.decoded(value)
            tables.access(fields.LUT_ADDR, fields.LUT_TABLE_ID, fields.LUT_ACCESS_TYPE)

    def _command_bdma(self, register: Register, value: int) -> None:
        """CFG_OP queues a copy, CFG_LAUNCH0 and 1 run what is queued."""
        if register.name == "CFG_OP" and value & 1:
            self._bdma.add(self.registers.group("BDMA", 0))
        elif register.name in ("CFG_LAUNCH0", "CFG_LAUNCH1") and value & 1:
            port = Port(self.memory, "BDMA")
            self._bdma.launch(self.machine, port)
            self._finish("BDMA", {"BDMA": int(register.name[-1])}, port, ("BDMA",))

    def _next(self, block: str) -> Group | None:
        """The registers of a block's next operation, if it is enabled."""
        group = self.registers.consumer(block)
        return self.registers.group(block, group) if self.registers.enabled(block, group) else None

    def _waiting(self) -> list[str]:
        """Blocks with an enabled group."""
        known = [each for each in self.registers.map.by_title if each.endswith(".D_OP_ENABLE")]
        blocks = [each.partition(".")[0] for each in known]
        return [each for each in blocks if any(self.registers.enabled(each, group) for group in (0, 1))]

    def _missing(self) -> str:
        """What the enabled blocks wait for."""
        waiting = self._waiting()
        if not waiting:
            return "no block is enabled"
        absent = [each for block in waiting for each in self._partners(block) if each not in waiting]
        missing = ", ".join(dict.fromkeys(absent)) or "a partner"
        return f"{', '.join(waiting)} enabled, waiting for {missing}"

    def _partners(self, block: str) -> tuple[str, ...]:
        """The blocks without which an enabled one does not run."""
        if block in CONVOLUTION:
            return (*CONVOLUTION, "SDP")
        if block == "SDP":
            group = self._next("SDP")
            flying = group is not None and group.named("FLYING_MODE") == "ON"
            return CONVOLUTION if flying else ("SDP_RDMA",)
        pairs = {"SDP_RDMA": "SDP", "PDP": "PDP_RDMA", "PDP_RDMA": "PDP", "CDP": "CDP_RDMA", "CDP_RDMA": "CDP"}
        return (pairs[block],) if block in pairs else ()

    def _run_what_can(self) -> None:
        runners: list[Callable[[], bool]] = [self._run_sdp, self._run_pdp, self._run_cdp, self._run_rubik]
        while any(run() for run in runners):
            pass

    def _run_sdp(self) -> bool:
        """SDP alone or behind the convolution, and PDP behind it."""
        group = self._next("SDP")
        if group is None:
            return False
        blocks = ["SDP"]
        flying = group.named("FLYING_MODE") == "ON"
        to_pdp = group.named("OUTPUT_DST") == "PDP"
        rdma = self._next("SDP_RDMA")
        if not flying or sdp.needs_memory(group) or (rdma is not None and _fetches_nothing(rdma)):
            blocks.append("SDP_RDMA")
        blocks += CONVOLUTION if flying else ()
        blocks += ["PDP"] if to_pdp else ()
        if any(self._next(each) is None for each in blocks):
            return False
        port = Port(self.memory, "SDP")
        sums = self._convolve(port) if flying else None
        used = rdma if "SDP_RDMA" in blocks else None
        task = sdp.Task(group, used, self.machine, port, self.registers.tables["SDP"])
        values = sdp.run(task, sums)
        if to_pdp:
            self._pool_flying(values, port)
        else:
            sdp.write(task, values)
        self._report("SDP", task.reports)
        raised = [*(("CDMA_DAT", "CDMA_WT", "CACC") if flying else ()), "SDP", *(("PDP",) if to_pdp else ())]
        self._finish("SDP", self._consumers(blocks), port, raised)
        return True

    def _convolve(self, port: Port) -> cdma.Array:
        """The sums of the convolution pipeline (batch, H, W, K)."""
        groups = {each: self.registers.group(each, self.registers.consumer(each)) for each in CONVOLUTION}
        _expect_agreement(groups)
        buffered = cdma.fetch(groups["CDMA"], self.machine, port.named("CDMA"), self._buffered)
        self._report("CDMA", buffered.reports)
        layer = csc.lay_out(groups["CSC"], self.machine, buffered)
        sums, saturated = cacc.accumulate(groups["CACC"], layer)
        self._report("CACC", {"D_OUT_SATURATION": saturated})
        kept = groups["CDMA"]["SKIP_DATA_RLS"] or groups["CDMA"]["SKIP_WEIGHT_RLS"]
        self._buffered = buffered if kept else None
        return sums

    def _pool_flying(self, values: cdma.Array, port: Port) -> None:
        group = self.registers.group("PDP", self.registers.consumer("PDP"))
        if group.named("FLYING_MODE") != "ON_FLYING" or len(values) != 1:
            raise trap("PDP", "FLYING_MODE = OFF_FLYING behind SDP", limit="ON_FLYING, one batch")
        reports: dict[str, int] = {}
        pdp.write(group, self.machine, port.named("PDP"), pdp.run(group, values[0], reports))
        self._report("PDP", reports)

    def _run_pdp(self) -> bool:
        group, rdma = self._next("PDP"), self._next("PDP_RDMA")
        if group is None or rdma is None or group.named("FLYING_MODE") == "ON_FLYING":
            return False
        port = Port(self.memory, "PDP")
        reports: dict[str, int] = {}
        source = pdp.fetch(rdma, self.machine, port.named("PDP_RDMA"))
        pdp.write(group, self.machine, port, pdp.run(group, source, reports))
        self._report("PDP", reports)
        self._finish("PDP", self._consumers(["PDP", "PDP_RDMA"]), port, ("PDP",))
        return True

    def _run_cdp(self) -> bool:
        group, rdma = self._next("CDP"), self._next("CDP_RDMA")
        if group is None or rdma is None:
            return False
        port = Port(self.memory, "CDP")
        reports: dict[str, int] = {}
        source = cdp.fetch(rdma, self.machine, port.named("CDP_RDMA"))
        result = cdp.run(group, self.machine, source, self.registers.tables["CDP"], reports)
        cdp.write(group, self.machine, port, result)
        self._report("CDP", reports)
        self._finish("CDP", self._consumers(["CDP", "CDP_RDMA"]), port, ("CDP",))
        return True

    def _run_rubik(self) -> bool:
        group = self._next("RBK") if "RBK" in self.registers else None
        if group is None:
            return False
        port = Port(self.memory, "RBK")
        rubik.run(group, self.machine, port)
        self._finish("RBK", self._consumers(["RBK"]), port, ("RUBIK",))
        return True

    def _consumers(self, blocks: Iterable[str]) -> dict[str, int]:
        return {each: self.registers.consumer(each) for each in blocks}

    def _report(self, block: str, reports: Mapping[str, int]) -> None:
        """Counting registers of the operation's group."""
        group = self.registers.consumer(block)
        for name, value in reports.items():
            self.registers.report(block, name, group, value)

    def _finish(self, engine: str, groups: Mapping[str, int], port: Port, interrupts: Iterable[str]) -> None:
        """Frees the groups, raises the interrupts, and refuses a race with what may still run."""
        operation = Operation(engine, groups, port)
        for each in self._running:
            _expect_no_race(each, operation)
        self._running.append(operation)
        for block, group in groups.items():
            if block != "BDMA":
                self.registers.finish(block, group)
        for each in interrupts:
            source = _engine(each)
            self._raised.append((each, groups[source]))


def _engine(interrupt: str) -> str:
    """The block that raises an interrupt."""
    return {"CDMA_DAT": "CDMA", "CDMA_WT": "CDMA", "RUBIK": "RBK"}.get(interrupt, interrupt)


def _is_status(register: Register) -> bool:
    """Whether a driver may write a register at any time: counters that only the block sets."""
    return any(part in register.name for part in ("_STATUS", "_PERF_", "_NUM", "OUT_SATURATION"))


def _fetches_nothing(rdma: Group) -> bool:
    """Whether an operation of SDP_RDMA belongs to a layer that takes nothing from it."""
    disabled = all(rdma[f"{each}RDMA_DISABLE"] for each in "BNE")
    return disabled and rdma.named("FLYING_MODE") == "ON"


def _expect_agreement(groups: Mapping[str, Group]) -> None:
    """Raises ArtefactError (E503) where blocks of the convolution are set up for different modes."""
    modes = {name: (group["CONV_MODE"], group["PROC_PRECISION"]) for name, group in groups.items()}
    for name, mode in modes.items():
        if mode != modes["CDMA"]:
            raise trap(name, "CONV_MODE or PROC_PRECISION differs", limit="that of CDMA")
    for field in ("ENTRIES", "DATA_BANK", "WEIGHT_BANK", "WEIGHT_FORMAT", "WEIGHT_KERNEL", "BATCHES"):
        if groups["CSC"][field] != groups["CDMA"][field]:
            limit = f"{groups['CDMA'][field]}, as CDMA"
            raise trap("CSC", f"{field} = {groups['CSC'][field]}", limit=limit)


def _expect_no_race(first: Operation, second: Operation) -> None:
    """Raises ArtefactError (E503) where an operation touches what another, which may still run, writes or reads.

    Operations of one engine write in order, and one reads before the next one writes.
    """
    remedy = "wait for its interrupt first"
    for written in first.port.writes:
        if any(overlap(written, read) for read in second.port.reads):
            reason = f"reads at {written.address:#x} what {first.engine} may still write"
            raise trap(second.engine, reason, remedy=remedy)
    if first.engine == second.engine:
        return
    for written in second.port.writes:
        if any(overlap(written, used) for used in (*first.port.reads, *first.port.writes)):
            raise trap(
                second.engine, f"writes at {written.address:#x} what {first.engine} may still use", remedy=remedy
            )


def run(machine: Machine, commands: Iterable[Command], memory: Memory) -> Memory:
    """The memory after a register program; the memory that is given is not changed.

    Raises ArtefactError (E503) where the hardware would hang, race or leave memory.
    """
    nvdla = Nvdla(machine, memory.copy())
    nvdla.execute(commands)
    return nvdla.memory
