"""Operations: which blocks run together, and what happens once all of them are enabled.

SDP runs alone (input from SDP_RDMA) or behind the convolution pipeline, PDP alone or behind SDP, CDP and RUBIK
alone. BDMA is handled elsewhere, as it has a queue of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.model import cacc, cdma, cdp, csc, pdp, rubik, sdp
from npuc.targets.nvdla.model.memory import DeviceMemory, MemoryPort, Pattern
from npuc.targets.nvdla.model.register_file import RegisterFile, RegisterGroup, expect_within_limits, trap

CONVOLUTION = ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC")
CONVOLUTION_INTERRUPTS = ("CDMA_DAT", "CDMA_WT", "CACC")
PARTNER = {"SDP_RDMA": "SDP", "PDP": "PDP_RDMA", "PDP_RDMA": "PDP", "CDP": "CDP_RDMA", "CDP_RDMA": "CDP"}
AGREED = ("ENTRIES", "DATA_BANK", "WEIGHT_BANK", "WEIGHT_FORMAT", "WEIGHT_KERNEL", "BATCHES")
"""Fields in which CDMA and CSC must agree."""


@frozen
class ExecutedOperation:
    """An operation that has run."""

    engine: str
    """The last block, whose interrupt ends it."""
    groups: Mapping[str, int]
    """Its register group by block."""
    port: MemoryPort
    """Its reads and writes."""
    interrupts: tuple[str, ...]
    fetched: tuple[Pattern, ...] = ()
    """The reads of CDMA, which happen as soon as it is enabled."""


class Operations:
    """The blocks of one NVDLA."""

    def __init__(self, machine: Machine, memory: DeviceMemory, registers: RegisterFile, *, exact: bool) -> None:
        self._exact = exact
        self._machine, self._memory, self._registers = machine, memory, registers
        self._buffered: cdma.Buffered | None = None
        titles = (title.partition(".") for title in registers.map.by_title)
        self._blocks = [block for block, _, name in titles if name == "D_OP_ENABLE"]

    def run_next(self) -> ExecutedOperation | None:
        """Runs an operation whose blocks are all enabled, if any.

        Raises ArtefactError (E503) if its registers are invalid.
        """
        for run in (self._sdp, self._pdp, self._cdp, self._rubik):
            done = run()
            if done is not None:
                return done
        return None

    def waiting_blocks(self) -> list[str]:
        """Blocks with an enabled group."""
        return [each for each in self._blocks if any(self._registers.is_enabled(each, group) for group in (0, 1))]

    def describe_wait(self) -> str:
        """A sentence that says what the enabled blocks wait for."""
        waiting = self.waiting_blocks()
        if not waiting:
            return "no block is enabled"
        absent = [each for block in waiting for each in self._partners(block) if each not in waiting]
        missing = ", ".join(dict.fromkeys(absent)) or "a partner with the same consumer group"
        return f"{', '.join(waiting)} enabled, waiting for {missing}"

    def _partners(self, block: str) -> tuple[str, ...]:
        """The other blocks that an enabled one needs to run."""
        if block in CONVOLUTION:
            return (*CONVOLUTION, "SDP")
        group = self._enabled_group("SDP")
        if block == "SDP" and group is not None:
            return self._blocks_of_sdp(group)
        return (PARTNER[block],) if block in PARTNER else ()

    def _is_enabled(self, block: str) -> bool:
        """Whether a block's next operation is enabled."""
        return self._registers.is_enabled(block, self._registers.consumer(block))

    def _enabled_group(self, block: str) -> RegisterGroup | None:
        """The registers of a block's next operation, if it is enabled."""
        group = self._registers.consumer(block)
        return self._registers.group(block, group) if self._is_enabled(block) else None

    def _blocks_of_sdp(self, group: RegisterGroup) -> tuple[str, ...]:
        """The blocks that run with an operation of SDP."""
        flying = _reads_convolution(group)
        rdma = self._enabled_group("SDP_RDMA")
        fetches = not flying or sdp.needs_memory(group) or (rdma is not None and _fetches_nothing(rdma))
        return (
            *(("SDP_RDMA",) if fetches else ()),
            *(CONVOLUTION if flying else ()),
            *(("PDP",) if group.value_name("OUTPUT_DST") == "PDP" else ()),
        )

    def _expect_within_limits(self, *blocks: str) -> None:
        """Raises ArtefactError (E503) if the registers of a block's next operation break one of its limits."""
        for block in blocks:
            expect_within_limits(self._registers.group(block, self._registers.consumer(block)), self._machine)

    def _sdp(self) -> ExecutedOperation | None:
        """SDP, from memory or behind the convolution, optionally followed by PDP."""
        group = self._enabled_group("SDP")
        if group is None or (_reads_convolution(group) and not all(map(self._is_enabled, CONVOLUTION))):
            return None
        blocks = self._blocks_of_sdp(group)
        if not all(map(self._is_enabled, blocks)):
            return None
        self._expect_within_limits("SDP", *blocks)
        port = MemoryPort(self._memory, "SDP")
        flying, to_pdp = CONVOLUTION[0] in blocks, "PDP" in blocks
        rdma = self._enabled_group("SDP_RDMA") if "SDP_RDMA" in blocks else None
        task = sdp.SdpRun(group, rdma, self._machine, port, self._registers.tables["SDP"])
        if not to_pdp:
            sdp.destination(task, 0)
        sums = self._convolve(port) if flying else None
        fetched = tuple(port.reads)
        values = sdp.run(task, sums)
        if to_pdp:
            self._pool_flying(values, port)
        else:
            sdp.write(task, values)
        self._report("SDP", task.reports)
        raised = (*(CONVOLUTION_INTERRUPTS if flying else ()), "SDP", *(("PDP",) if to_pdp else ()))
        return self._done("PDP" if to_pdp else "SDP", ("SDP", *blocks), port, raised, fetched if flying else ())

    def _convolve(self, port: MemoryPort) -> Array:
        """The sums of the convolution pipeline (batch, H, W, K)."""
        groups = {each: self._registers.group(each, self._registers.consumer(each)) for each in CONVOLUTION}
        _expect_agreement(groups)
        buffered = cdma.fetch(groups["CDMA"], self._machine, port.for_block("CDMA"), self._buffered)
        self._report("CDMA", buffered.reports)
        sums, saturated = cacc.accumulate(
            groups["CACC"], csc.lay_out(groups["CSC"], self._machine, buffered), exact=self._exact
        )
        self._report("CACC", {"D_OUT_SATURATION": saturated})
        kept = groups["CDMA"]["SKIP_DATA_RLS"] or groups["CDMA"]["SKIP_WEIGHT_RLS"]
        self._buffered = buffered if kept else None
        return sums

    def _pool_flying(self, values: Array, port: MemoryPort) -> None:
        group = self._registers.group("PDP", self._registers.consumer("PDP"))
        if group.value_name("FLYING_MODE") != "ON_FLYING" or len(values) != 1:
            raise trap("PDP", "FLYING_MODE = OFF_FLYING behind SDP", limit="ON_FLYING, one batch")
        reports: dict[str, int] = {}
        pdp.write(group, self._machine, port.for_block("PDP"), pdp.run(group, values[0], reports))
        self._report("PDP", reports)

    def _pdp(self) -> ExecutedOperation | None:
        group, rdma = self._enabled_group("PDP"), self._enabled_group("PDP_RDMA")
        if group is None or rdma is None or group.value_name("FLYING_MODE") == "ON_FLYING":
            return None
        self._expect_within_limits("PDP", "PDP_RDMA")
        port = MemoryPort(self._memory, "PDP")
        reports: dict[str, int] = {}
        source = pdp.fetch(rdma, self._machine, port.for_block("PDP_RDMA"))
        pdp.write(group, self._machine, port, pdp.run(group, source, reports))
        self._report("PDP", reports)
        return self._done("PDP", ("PDP", "PDP_RDMA"), port, ("PDP",))

    def _cdp(self) -> ExecutedOperation | None:
        group, rdma = self._enabled_group("CDP"), self._enabled_group("CDP_RDMA")
        if group is None or rdma is None:
            return None
        self._expect_within_limits("CDP", "CDP_RDMA")
        port = MemoryPort(self._memory, "CDP")
        reports: dict[str, int] = {}
        source = cdp.fetch(rdma, self._machine, port.for_block("CDP_RDMA"))
        result = cdp.run(group, self._machine, source, self._registers.tables["CDP"], reports)
        cdp.write(group, self._machine, port, result)
        self._report("CDP", reports)
        return self._done("CDP", ("CDP", "CDP_RDMA"), port, ("CDP",))

    def _rubik(self) -> ExecutedOperation | None:
        group = self._enabled_group("RBK")
        if group is None:
            return None
        port = MemoryPort(self._memory, "RBK")
        rubik.run(group, self._machine, port)
        return self._done("RBK", ("RBK",), port, ("RUBIK",))

    def _report(self, block: str, reports: Mapping[str, int]) -> None:
        """Sets the counting registers of the operation's group."""
        group = self._registers.consumer(block)
        for name, value in reports.items():
            self._registers.report(block, name, group, value)

    def _done(
        self,
        engine: str,
        blocks: Iterable[str],
        port: MemoryPort,
        interrupts: tuple[str, ...],
        fetched: tuple[Pattern, ...] = (),
    ) -> ExecutedOperation:
        """The operation; frees its register groups, so that the other groups are next."""
        groups = {each: self._registers.consumer(each) for each in blocks}
        for block, group in groups.items():
            self._registers.finish(block, group)
        return ExecutedOperation(engine, groups, port, interrupts, fetched)


def _reads_convolution(sdp: RegisterGroup) -> bool:
    """Whether an operation of SDP takes its input from the convolution."""
    return sdp.value_name("FLYING_MODE") == "ON"


def _fetches_nothing(rdma: RegisterGroup) -> bool:
    """Whether SDP_RDMA is enabled for an operation but fetches nothing."""
    return all(rdma[f"{each}RDMA_DISABLE"] for each in "BNE") and rdma.value_name("FLYING_MODE") == "ON"


def _expect_agreement(groups: Mapping[str, RegisterGroup]) -> None:
    """Raises ArtefactError (E503) if the blocks of the convolution are set up for different layers."""
    wanted = groups["CDMA"]
    for name, group in groups.items():
        if any(group[field] != wanted[field] for field in ("CONV_MODE", "PROC_PRECISION")):
            raise trap(name, "CONV_MODE or PROC_PRECISION differs", limit="that of CDMA")
    for field in AGREED:
        if groups["CSC"][field] != wanted[field]:
            raise trap("CSC", f"{field} = {groups['CSC'][field]}", limit=f"{wanted[field]}, as CDMA")
    if groups["CACC"]["BATCHES"] != wanted["BATCHES"]:
        raise trap("CACC", f"BATCHES = {groups['CACC']['BATCHES']}", limit=f"{wanted['BATCHES']}, as CDMA")
