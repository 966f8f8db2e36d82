"""PDP and its RDMA as registers."""

from __future__ import annotations

from npuc.targets.nvdla.emission.writer import Writer, padding
from npuc.targets.nvdla.operations.operation import KernelWindow, Pooling, Surface

PAD_VALUE_BITS = (1 << 19) - 1
"""PDP's padding values, one for each number of padded columns, are signed and have 19 bits."""


def write_pooling(writer: Writer, operation: Pooling, *, flies: bool = False) -> None:
    """PDP on a map in memory, or behind SDP."""
    source, result, window = operation.source, operation.destination, operation.window
    height, width = operation.kernel
    across = {"KERNEL_WIDTH": width - 1, "KERNEL_STRIDE_WIDTH": window.stride_x - 1}
    _cube_in(writer, "PDP", source)
    if not flies:
        writer.cube("PDP", "D_SRC", source)
        _fetch(writer, source, window, across)
    for extent, value in (("WIDTH", result.width), ("HEIGHT", result.height), ("CHANNEL", result.channels)):
        writer.set(f"PDP.D_DATA_CUBE_OUT_{extent}", **{f"CUBE_OUT_{extent}": value - 1})
    method, mode = f"POOLING_METHOD_{operation.method}", "ON_FLYING" if flies else "OFF_FLYING"
    writer.set("PDP.D_OPERATION_MODE_CFG", POOLING_METHOD=method, FLYING_MODE=mode, SPLIT_NUM=0)
    writer.set("PDP.D_PARTIAL_WIDTH_IN")
    writer.set("PDP.D_PARTIAL_WIDTH_OUT")
    along = {"KERNEL_HEIGHT": height - 1, "KERNEL_STRIDE_HEIGHT": window.stride_y - 1}
    writer.set("PDP.D_POOLING_KERNEL_CFG", **across, **along)
    for name, value in zip(("WIDTH", "HEIGHT"), operation.reciprocals, strict=True):
        writer.set(f"PDP.D_RECIP_KERNEL_{name}", **{f"RECIP_KERNEL_{name}": value})
    padding(writer, "PDP.D_POOLING_PADDING_CFG", window)
    for count in range(1, 8):
        value = count * window.value & PAD_VALUE_BITS
        writer.set(f"PDP.D_POOLING_PADDING_VALUE_{count}_CFG", **{f"PAD_VALUE_{count}X": value})
    writer.cube("PDP", "D_DST", result)
    writer.set("PDP.D_DST_RAM_CFG", DST_RAM_TYPE=writer.ram(result.address))


def _fetch(writer: Writer, source: Surface, window: KernelWindow, across: dict[str, int]) -> None:
    """PDP_RDMA."""
    _cube_in(writer, "PDP_RDMA", source)
    writer.cube("PDP_RDMA", "D_SRC", source)
    writer.set("PDP_RDMA.D_FLYING_MODE", FLYING_MODE="OFF_FLYING")
    writer.set("PDP_RDMA.D_SRC_RAM_CFG", SRC_RAM_TYPE=writer.ram(source.address))
    writer.set("PDP_RDMA.D_OPERATION_MODE_CFG", SPLIT_NUM=0)
    writer.set("PDP_RDMA.D_POOLING_KERNEL_CFG", **across)
    writer.set("PDP_RDMA.D_POOLING_PADDING_CFG", PAD_WIDTH=window.left)
    writer.set("PDP_RDMA.D_PARTIAL_WIDTH_IN")


def _cube_in(writer: Writer, block: str, source: Surface) -> None:
    extents = {"WIDTH": source.width, "HEIGHT": source.height, "CHANNEL": source.channels}
    for extent, value in extents.items():
        writer.set(f"{block}.D_DATA_CUBE_IN_{extent}", **{f"CUBE_IN_{extent}": value - 1})
    writer.set(f"{block}.D_DATA_FORMAT", INPUT_DATA=source.precision.upper())
