"""A functional model of NVDLA: runs a register program on a memory image, block by block as in the hardware.

Here NVDLA from the driver's point of view: register writes, polls and interrupts. An operation runs as soon as the
last of its blocks is enabled: its interrupts are raised, its register groups are free again, and the other groups
come next (ping-pong). As real hardware takes time, the operation counts as running until the driver has waited for
its interrupt. Until then no other operation may read its results and nothing may write its registers; the model
refuses programs with such races.

BDMA: copies lines and surfaces of bytes within memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.machine.registers import Command, Poll, Register, Wait, Write, register_map
from npuc.targets.nvdla.model.memory import DeviceMemory, MemoryPort, Pattern, overlap
from npuc.targets.nvdla.model.operations import ExecutedOperation, Operations
from npuc.targets.nvdla.model.register_file import RegisterFile, RegisterGroup, expect_within_limits, trap

REMEDY = "enable every block of the layer"
REMEDY_OF_RACES = "wait for its interrupt first"
BLOCK_OF = {"CDMA_DAT": "CDMA", "CDMA_WT": "CDMA", "RUBIK": "RBK"}
"""The block that raises an interrupt, where the names differ."""
STATUS = ("_STATUS", "_PERF_", "_NUM", "OUT_SATURATION")
"""Parts of the names of read-only registers, which only the block sets; writes to them are ignored."""
Interrupt = tuple[str, int]


def run(machine: Machine, commands: Iterable[Command], memory: DeviceMemory) -> DeviceMemory:
    """The memory after a register program; the argument is not modified.

    Raises ArtefactError (E503) where the hardware would hang, race or access addresses outside memory.
    """
    nvdla = ChipModel(machine, memory.copy())
    nvdla.execute(commands)
    return nvdla.memory


class ChipModel:
    """One NVDLA with its memory, which it modifies.

    exact: whether fp16 convolutions are summed bit-exactly like the hardware, or in double precision.
    """

    def __init__(self, machine: Machine, memory: DeviceMemory, *, exact: bool = True) -> None:
        self.machine, self.memory = machine, memory
        self.registers = RegisterFile(register_map(machine.registers), second=machine.sram_bytes > 0)
        self._operations = Operations(machine, memory, self.registers, exact=exact)
        self._copies = _CopyQueue()
        self._raised: dict[Interrupt, deque[int]] = {}
        """Interrupts not waited for yet, each with its positions in the order in which all were raised."""
        self._count = 0
        self._running: list[ExecutedOperation] = []
        self._beside: dict[int, tuple[ExecutedOperation, ...]] = {}
        """The operations that were running when each group of CDMA was enabled."""

    def execute(self, commands: Iterable[Command]) -> None:
        """Runs a whole program. Raises ArtefactError (E503) where the hardware could not run it."""
        for command in commands:
            match command:
                case Write():
                    self.write(command.address, command.value)
                case Poll():
                    self.poll(command)
                case Wait():
                    self.wait(command)
        left = self._operations.waiting_blocks()
        if left:
            raise trap(left[0], f"enabled, but never ran: {self._operations.describe_wait()}", remedy=REMEDY)

    def write(self, address: int, value: int) -> None:
        """A register write. Raises ArtefactError (E503) if its group is running, EncodingError for an unknown
        register.
        """
        register = self.registers.map.register_at(address)
        self._expect_free(register)
        enables = register.name == "D_OP_ENABLE"
        if enables and not value & 1:
            return
        self.registers.set(register, value)
        if enables:
            if register.block == "CDMA":
                self._beside[self.registers.producer("CDMA")] = tuple(self._running)
            while (done := self._operations.run_next()) is not None:
                self._finish(done)
        elif register.of_group:
            return
        elif register.name in ("S_LUT_ACCESS_CFG", "S_LUT_ACCESS_DATA"):
            self._access_table(register, value)
        elif register.block == "BDMA" and value & 1:
            self._command_copies(register)

    def read(self, address: int) -> int:
        """The value that the driver reads from a register, after every operation that can run has run."""
        register = self.registers.map.register_at(address)
        if register.title == "CDMA.S_CBUF_FLUSH_STATUS":
            return 1
        if register.title == "GLB.S_INTR_STATUS":
            return sum(1 << self._bit(each, "STATUS") for each in self._pending_interrupts())
        if register.name == "S_LUT_ACCESS_DATA":
            return self.registers.tables[register.block].read()
        group = self.registers.producer(register.block) if register.of_group else 0
        return self.registers.get(register.block, register.name, group)

    def poll(self, command: Poll) -> None:
        """Polls a register for a value; the running operations of the polled block then count as ended."""
        register, found = self.registers.map.register_at(command.address), self.read(command.address)
        if found & command.mask != command.value & command.mask:
            reason = f"polled for {command.value & command.mask:#x}: {self._operations.describe_wait()}"
            raise trap(register.title, reason, limit=f"it stays {found & command.mask:#x}")
        if register.name in ("S_STATUS", "S_INTR_STATUS", "STATUS"):
            self._running = [each for each in self._running if register.block not in ("GLB", *each.groups)]

    def wait(self, command: Wait) -> None:
        """Waits for an interrupt. Raises ArtefactError (E503) if it never comes."""
        wanted = [
            each
            for each in self._pending_interrupts()
            if command.source is None or each == (command.source, command.group)
        ]
        if not wanted:
            raise trap("GLB", f"{command} never comes: {self._operations.describe_wait()}", remedy=REMEDY)
        audible = [each for each in wanted if not self._is_masked(each)]
        if not audible:
            raise trap("GLB", f"{command} is masked by S_INTR_MASK", remedy="clear its mask bit")
        first = min(audible, key=lambda each: self._raised[each][0])
        self._raised[first].popleft()
        self._end(first)

    def _pending_interrupts(self) -> list[Interrupt]:
        """The raised interrupts that have not been waited for."""
        return [each for each, places in self._raised.items() if places]

    def _end(self, interrupt: Interrupt) -> None:
        """Ends the operation that raised an interrupt, and earlier ones of the same engine."""
        source, group = interrupt
        block = BLOCK_OF.get(source, source)
        for at, each in enumerate(self._running):
            if each.groups.get(block) == group:
                if each.engine == "PDP" != block:  # the blocks in front have finished, PDP still writes
                    self._running[at] = replace(each, groups={"PDP": each.groups["PDP"]})
                    return
                self._running = [
                    other for place, other in enumerate(self._running) if other.engine != each.engine or place > at
                ]
                return

    def _bit(self, interrupt: Interrupt, what: str) -> int:
        source, group = interrupt
        register = self.registers.map["GLB.S_INTR_STATUS" if what == "STATUS" else "GLB.S_INTR_MASK"]
        return register.places[f"{source}_DONE_{what}{group}"].low

    def _is_masked(self, interrupt: Interrupt) -> bool:
        return bool(self.registers.get("GLB", "S_INTR_MASK") >> self._bit(interrupt, "MASK") & 1)

    def _expect_free(self, register: Register) -> None:
        """Raises ArtefactError (E503) if the register belongs to a group that waits to run or is running."""
        if not register.of_group:
            return
        group = self.registers.producer(register.block)
        waits = self.registers.is_enabled(register.block, group)
        runs = waits or any(each.groups.get(register.block) == group for each in self._running)
        if runs and not any(part in register.name for part in STATUS):
            state = "waits to run" if waits else "may still run"
            reason = f"{register.name} of group {group} is written, which {state}"
            raise trap(register.block, reason, remedy="wait for its interrupt, or use the other group")

    def _access_table(self, register: Register, value: int) -> None:
        tables = self.registers.tables[register.block]
        if register.name == "S_LUT_ACCESS_DATA":
            tables.write(register.block, value)
        else:
            fields = register.decode(value)
            tables.access(fields.LUT_ADDR, fields.LUT_TABLE_ID, fields.LUT_ACCESS_TYPE)

    def _command_copies(self, register: Register) -> None:
        """Handles a write to BDMA: CFG_OP queues a copy, CFG_LAUNCH0 and CFG_LAUNCH1 run the queue."""
        if register.name == "CFG_OP":
            expect_within_limits(self.registers.group("BDMA", 0), self.machine)
            self._copies.add(self.registers.group("BDMA", 0))
        elif register.name.startswith("CFG_LAUNCH"):
            port = MemoryPort(self.memory, "BDMA")
            self._copies.launch(self.machine, port)
            self._finish(ExecutedOperation("BDMA", {"BDMA": int(register.name[-1])}, port, ("BDMA",)))

    def _finish(self, operation: ExecutedOperation) -> None:
        """Raises the operation's interrupts. Raises ArtefactError (E503) for a race with a running operation."""
        for each in self._beside.get(operation.groups.get("CDMA", -1), ()):
            _expect_written(each, operation.fetched, operation.engine)
        for each in self._running:
            _expect_no_race(each, operation)
        self._running.append(operation)
        for each in operation.interrupts:
            interrupt = each, operation.groups[BLOCK_OF.get(each, each)]
            self._raised.setdefault(interrupt, deque()).append(self._count)
            self._count += 1


def _expect_written(first: ExecutedOperation, reads: Iterable[Pattern], reader: str) -> None:
    """Raises ArtefactError (E503) if a read overlaps what another operation may still write."""
    for written in first.port.writes:
        if any(overlap(written, read) for read in reads):
            reason = f"reads at {written.address:#x} what {first.engine} may still write"
            raise trap(reader, reason, remedy=REMEDY_OF_RACES)


def _expect_no_race(first: ExecutedOperation, second: ExecutedOperation) -> None:
    """Raises ArtefactError (E503) if an operation conflicts with the reads or writes of one that may still run.

    Operations of one engine write in order, and each reads before the next one writes.
    """
    _expect_written(first, second.port.reads, second.engine)
    if first.engine == second.engine:
        return
    for written in second.port.writes:
        if any(overlap(written, used) for used in (*first.port.reads, *first.port.writes)):
            reason = f"writes at {written.address:#x} what {first.engine} may still use"
            raise trap(second.engine, reason, remedy=REMEDY_OF_RACES)


BLOCK = "BDMA"
UNIT = 32
"""The unit of sizes and strides, in bytes."""
SLOTS = 20


class _CopyQueue:
    """Copies waiting for a launch."""

    def __init__(self) -> None:
        self._waiting: list[RegisterGroup] = []

    def add(self, group: RegisterGroup) -> None:
        """Queues a copy described by its registers. Raises ArtefactError (E503) if all slots are taken."""
        if len(self._waiting) == SLOTS:
            raise trap(BLOCK, f"more than {SLOTS} copies wait", limit=f"{SLOTS}", remedy="launch them first")
        self._waiting.append(group)

    def launch(self, machine: Machine, port: MemoryPort) -> None:
        """Runs the queued copies in order."""
        if not machine.bdma:
            raise trap(BLOCK, f"{machine.name} has no BDMA")
        for each in self._waiting:
            _copy(each, port)
        self._waiting = []


def _copy(group: RegisterGroup, port: MemoryPort) -> None:
    """Runs one copy."""
    source, target = (_place(group, side) for side in ("SRC", "DST"))
    port.cube(target, UNIT, write=True)[...] = port.cube(source, UNIT).copy()


def _place(group: RegisterGroup, side: str) -> Pattern:
    low, high = f"CFG_{side}_ADDR_LOW.V32", f"CFG_{side}_ADDR_HIGH.V8"
    start = group.address(low, high, f"CFG_CMD.{side}_RAM_TYPE")
    line = (group["CFG_LINE.SIZE"] + 1) * UNIT
    lines, surfaces = group["CFG_LINE_REPEAT.NUMBER"] + 1, group["CFG_SURF_REPEAT.NUMBER"] + 1
    strides = group.bytes(f"CFG_{side}_LINE.STRIDE"), group.bytes(f"CFG_{side}_SURF.STRIDE")
    return Pattern(start, line, lines, strides[0], surfaces, strides[1])


__all__ = ["ChipModel", "DeviceMemory", "run"]
