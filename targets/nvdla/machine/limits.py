"""What NVDLA's blocks demand of their registers: a function per limit, whose docstring is the user's sentence.

Beyond a limit the hardware hangs or computes garbage, often silently. A check reads the registers of one block. It
runs before a program is written, and again in the functional model. docs/nvdla.md lists what needs other blocks.

Source: the assertions of NVDLA's own hardware description; tables 29 to 32 of the in-memory formats, of which
the registers of other blocks can only express what is valid; PDP's lines and the pads of averages also as its RTL
computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from npuc.targets.nvdla.machine.parameters import BYTES, Machine


class Registers(Protocol):
    """A block's registers at the start of an operation, by field."""

    @property
    def block(self) -> str:
        """The block's name."""
        ...

    def __getitem__(self, field: str, /) -> int:
        """The value of a field."""
        ...

    def signed_value(self, field: str, width: int | None = None) -> int:
        """The same in two's complement."""
        ...

    def value_name(self, field: str) -> str:
        """The name of a field's value."""
        ...

    def bytes(self, field: str) -> int:
        """A size or stride in bytes."""
        ...


Limit = Callable[[Registers, Machine], str | None]
"""Says what breaks the limit of its docstring; None if nothing does."""


def _precision(group: Registers, field: str) -> str:
    return group.value_name(field).lower()


def _fits(value: int, bits: int) -> bool:
    """Whether a signed number of so many bits can be this value."""
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def buffered_lines(group: Registers, machine: Machine) -> str | None:
    """A line of PDP's result has at most 128 columns if windows overlap no others below them; 64 if 2 are open at
    once, 32 if 3 or 4 are, 16 if 5 to 8 are.
    """
    parts = ("FIRST", "LAST", "MID")[: group["SPLIT_NUM"] + 1] if group["SPLIT_NUM"] else ()
    widths = [group[f"PARTIAL_WIDTH_OUT_{each}"] + 1 for each in parts] or [group["CUBE_OUT_WIDTH"] + 1]
    kernel, stride = group["KERNEL_HEIGHT"] + 1, group["KERNEL_STRIDE_HEIGHT"] + 1
    most = machine.pooled_columns(kernel, stride)
    return f"{max(widths)} columns, windows {kernel} high with stride {stride}" if max(widths) > most else None


def narrow_maps(group: Registers, _machine: Machine) -> str | None:
    """If a map with its left padding is narrower than PDP's kernel, the right padding completes the first window
    and adds at most 6 strides.
    """
    kernel, stride = group["KERNEL_WIDTH"] + 1, group["KERNEL_STRIDE_WIDTH"] + 1
    given = group["CUBE_IN_WIDTH"] + 1 + group["PAD_LEFT"]
    added = given + group["PAD_RIGHT"] - kernel
    if given >= kernel or 0 <= added // stride <= 6:
        return None
    return f"{given} columns, a kernel of {kernel}, and PAD_RIGHT = {group['PAD_RIGHT']}"


def pads_of_averages(group: Registers, _machine: Machine) -> str | None:
    """In integer averages PAD_VALUE_kX is k times PAD_VALUE_1X, which is a value of the map's precision."""
    kind = _precision(group, "INPUT_DATA")
    if group.value_name("POOLING_METHOD") != "POOLING_METHOD_AVERAGE" or kind == "fp16":
        return None
    one = group.signed_value("PAD_VALUE_1X")
    if not _fits(one, 8 * BYTES[kind]):
        return f"PAD_VALUE_1X = {one} in {kind}"
    wrong = (k for k in range(2, 8) if group.signed_value(f"PAD_VALUE_{k}X") != k * one)
    return next(
        (f"PAD_VALUE_{k}X = {group.signed_value(f'PAD_VALUE_{k}X')}, PAD_VALUE_1X = {one}" for k in wrong), None
    )


def pads_of_half_averages(group: Registers, _machine: Machine) -> str | None:
    """In averages of fp16 every PAD_VALUE is 0 or -0."""
    if group.value_name("POOLING_METHOD") != "POOLING_METHOD_AVERAGE" or group.value_name("INPUT_DATA") != "FP16":
        return None
    wrong = (k for k in range(1, 8) if group[f"PAD_VALUE_{k}X"] not in (0, 0x70000))
    return next((f"PAD_VALUE_{k}X = {group[f'PAD_VALUE_{k}X']:#x}" for k in wrong), None)


def _operands(group: Registers) -> Iterable[tuple[str, str]]:
    """The units of SDP whose operands SDP_RDMA fetches, and the letters of their DMAs."""
    units = (("BS", "B"), ("BN", "N"), ("EW", "E"))
    return (each for each in units if not group[f"{each[1]}RDMA_DISABLE"])


def converted_maps(group: Registers, _machine: Machine) -> str | None:
    """SDP converts a map in memory between int8 and int16, processing int8, or between int16 and fp16, processing
    the map's precision.
    """
    source, result, inside = (group.value_name(f"{each}_PRECISION") for each in ("IN", "OUT", "PROC"))
    allowed = {source, result} != {"INT8", "FP16"} and inside == ("INT8" if result == "INT8" else source)
    return None if group["FLYING_MODE"] or allowed else f"{source} to {result}, processed as {inside}"


def kept_bits(group: Registers, _machine: Machine) -> str | None:
    """Behind a convolution SDP keeps the number of bits of an element."""
    inside, result = group.value_name("PROC_PRECISION"), group.value_name("OUT_PRECISION")
    changed = group["FLYING_MODE"] and (inside == "INT8") != (result == "INT8")
    return f"{inside} to {result}" if changed else None


def sizes_of_operands(group: Registers, _machine: Machine) -> str | None:
    """Operands of SDP have two bytes unless it processes int8."""
    if group.value_name("PROC_PRECISION") == "INT8":
        return None
    for _, letter in _operands(group):
        if group.value_name(f"{letter}RDMA_DATA_SIZE") == "ONE_BYTE":
            return f"{letter}RDMA_DATA_SIZE is ONE_BYTE in {_precision(group, 'PROC_PRECISION')}"
    return None


def pairs_of_operands(group: Registers, machine: Machine) -> str | None:
    """Pairs of operands of two bytes lie at multiples of 64 bytes, as do lines and surfaces (not on nv_small)."""
    if machine.atom_bytes < 32:
        return None
    for unit, letter in _operands(group):
        if (group.value_name(f"{letter}RDMA_DATA_USE"), group.value_name(f"{letter}RDMA_DATA_SIZE")) != (
            "BOTH",
            "TWO_BYTE",
        ):
            continue
        per_element = group.value_name(f"{letter}RDMA_DATA_MODE") == "PER_ELEMENT"
        strides = (f"{unit}_LINE_STRIDE", f"{unit}_SURFACE_STRIDE") if per_element else ()
        for name in (f"{unit}_BASE_ADDR_LOW", *strides):
            if group.bytes(name) % 64:
                return f"{name} {group.bytes(name):#x} with BOTH operands of TWO_BYTE"
    return None


def operands_of_tiles(group: Registers, _machine: Machine) -> str | None:
    """Behind Winograd SDP_RDMA fetches operands for a multiple of 4 lines."""
    height = group["HEIGHT"] + 1
    fetches = group["WINOGRAD"] and any(True for _ in _operands(group))
    return f"{height} lines" if fetches and height % 4 else None


def batches(group: Registers, machine: Machine) -> str | None:
    """Only direct convolutions of feature cubes take several images: on nv_full up to 32."""
    count, image = group["BATCHES"] + 1, group.value_name("DATAIN_FORMAT") == "PIXEL"
    if count <= (1 if image or group["CONV_MODE"] else machine.max_batches):
        return None
    mode = "image" if image else group.value_name("CONV_MODE").lower()
    return f"{count} batches in {mode} convolution of {machine.name}"


def first_line(group: Registers, _machine: Machine) -> str | None:
    """An image begins at its first line: PIXEL_Y_OFFSET is 0."""
    image = group.value_name("DATAIN_FORMAT") == "PIXEL"
    return f"PIXEL_Y_OFFSET = {group['PIXEL_Y_OFFSET']}" if image and group["PIXEL_Y_OFFSET"] else None


def _is_compressed(group: Registers) -> bool:
    return group.value_name("WEIGHT_FORMAT") == "COMPRESSED"


def _mask_bits(group: Registers, kernels: int) -> int:
    """Bits of the mask of some kernels, by the registers of CDMA."""
    return kernels * (group["BYTE_PER_KERNEL"] + 1) // BYTES[_precision(group, "PROC_PRECISION")]


def mask_bytes(group: Registers, machine: Machine) -> str | None:
    """WMB_BYTES is the mask's size, one bit per weight, rounded up to an entry of the CBUF."""
    if not _is_compressed(group):
        return None
    unit = machine.cbuf_entry_bytes
    wanted = -(-_mask_bits(group, group["WEIGHT_KERNEL"] + 1) // (8 * unit)) * unit
    found = group.bytes("WMB_BYTES")
    return f"WMB_BYTES = {found} for a mask of {wanted}" if found != wanted else None


def mask_of_group(group: Registers, machine: Machine) -> str | None:
    """The mask of a kernel group leaves an entry of its bank free."""
    if not _is_compressed(group):
        return None
    kernels = min(machine.kernel_group(_precision(group, "PROC_PRECISION")), group["WEIGHT_KERNEL"] + 1)
    size, most = -(-_mask_bits(group, kernels) // 8), machine.bank_bytes - machine.cbuf_entry_bytes
    return f"a mask of {size} bytes" if size > most else None


def kept_weights(group: Registers, machine: Machine) -> str | None:
    """Weights that stay in the CBUF for the next operation fit their banks, and their mask its bank."""
    if not group["SKIP_WEIGHT_RLS"]:
        return None
    weights, mask = group.bytes("WEIGHT_BYTES"), group.bytes("WMB_BYTES") if _is_compressed(group) else 0
    if weights > (group["WEIGHT_BANK"] + 1) * machine.bank_bytes:
        return f"{weights} bytes in {group['WEIGHT_BANK'] + 1} banks are kept"
    return f"a mask of {mask} bytes is kept" if mask > machine.bank_bytes else None


def fetched_lines(group: Registers, _machine: Machine) -> str | None:
    """GRAINS, which is one less than the lines fetched together, is at most 4094."""
    return f"GRAINS = {group['GRAINS']}" if group["GRAINS"] > 4094 else None


def extended_data(group: Registers, _machine: Machine) -> str | None:
    """Winograd's data are a feature cube of whole atoms of 32 bytes; with padding it has stride times the extended
    size, which is a multiple of 4 in both directions.
    """
    if not group["CONV_MODE"]:
        return None
    if group.value_name("DATAIN_FORMAT") != "FEATURE":
        return "an image"
    channels = group["DATAIN_CHANNEL"] + 1
    if channels * BYTES[_precision(group, "IN_PRECISION")] % 32:
        return f"{channels} channels"
    for extent, axis, sides in (("WIDTH", "X", ("LEFT", "RIGHT")), ("HEIGHT", "Y", ("TOP", "BOTTOM"))):
        extended, stride = group[f"DATAIN_{extent}_EXT"] + 1, group[f"CONV_{axis}_STRIDE"] + 1
        padded = group[f"DATAIN_{extent}"] + 1 + sum(group[f"PAD_{side}"] for side in sides)
        if extended % 4 or padded != extended * stride:
            return f"{extent} of {padded} with padding, {extended} extended, stride {stride}"
    return None


def extended_entries(group: Registers, _machine: Machine) -> str | None:
    """A line of Winograd's data takes at most 1024 entries of the CBUF."""
    return f"{group['ENTRIES'] + 1} entries" if group["CONV_MODE"] and group["ENTRIES"] >= 1024 else None


def tiles(group: Registers, _machine: Machine) -> str | None:
    """In CSC Winograd has stride and dilation 1; extended data, results and RLS_SLICES are multiples of 4."""
    if not group["CONV_MODE"]:
        return None
    counts = ("DATAIN_WIDTH_EXT", "DATAIN_HEIGHT_EXT", "DATAIN_CHANNEL_EXT", "DATAOUT_WIDTH", "DATAOUT_HEIGHT",
              "RLS_SLICES")  # fmt: skip
    for name in counts:
        if (group[name] + 1) % 4:
            return f"{name} = {group[name]}"
    once = ("CONV_X_STRIDE_EXT", "CONV_Y_STRIDE_EXT", "X_DILATION_EXT", "Y_DILATION_EXT", "BATCHES")
    wrong = (f"{name} = {group[name]}" for name in once if group[name])
    return next(wrong, None)


def pixels_of_kernel(group: Registers, _machine: Machine) -> str | None:
    """A line of an image's kernel has at most 128 elements."""
    elements = group["WEIGHT_CHANNEL_EXT"] + 1
    return f"{elements} elements" if group.value_name("DATAIN_FORMAT") == "PIXEL" and elements > 128 else None


def joined_lines(group: Registers, machine: Machine) -> str | None:
    """Post-extension joins 2 or 4 lines of an image's kernel; they fit a block of channels, as do that many
    strides of pixels.
    """
    extension, block = group["Y_EXTENSION"], machine.atomic_c
    if not extension:
        return None
    if extension == 3 or group.value_name("DATAIN_FORMAT") != "PIXEL" or group["BATCHES"]:
        kind = group.value_name("DATAIN_FORMAT").lower()
        return f"Y_EXTENSION = {extension} of {group['BATCHES'] + 1} {kind} inputs"
    kernel, pixel = group["WEIGHT_CHANNEL_EXT"] + 1, group["DATAIN_CHANNEL_EXT"] + 1
    step = (group["CONV_X_STRIDE_EXT"] + 1) * pixel
    lines = 1 << extension
    return (
        f"{lines} lines of {kernel} elements, {step} from pixel to pixel"
        if lines * max(kernel, step) > block
        else None
    )


def held_entries(group: Registers, machine: Machine) -> str | None:
    """The lines that a dilation steps over, of all images of a batch, fit all banks but one, as do those released
    at the end (nv_full).
    """
    if machine.registers != "nv_full":
        return None
    entries, most = group["ENTRIES"] + 1, (machine.cbuf_banks - 1) * machine.cbuf_entries
    dilated = (group["Y_DILATION_EXT"] + 1) * (group["BATCHES"] + 1)
    lines = max(dilated, group["RLS_SLICES"] + 1)
    return f"{lines} lines of {entries} entries" if lines * entries > most else None


def results_of_kernels(group: Registers, _machine: Machine) -> str | None:
    """A convolution has as many result channels as kernels."""
    results, kernels = group["DATAOUT_CHANNEL"] + 1, group["WEIGHT_KERNEL"] + 1
    return f"{results} channels of {kernels} kernels" if results != kernels else None


def offsets(group: Registers, machine: Machine) -> str | None:
    """CDP's offsets are values of its precision: of the input 8 or 16 bits, of the output 25 or 32 (nv_full)."""
    if machine.registers != "nv_full":
        return None
    bits = 8 * BYTES[_precision(group, "INPUT_DATA_TYPE")]
    wide = 25 if bits == 8 else 32
    wrong = (
        f"{name} = {group.signed_value(name)}"
        for name, size in (("DATIN_OFFSET", bits), ("DATOUT_OFFSET", wide))
        if not _fits(group.signed_value(name), size)
    )
    return next(wrong, None) if group.value_name("INPUT_DATA_TYPE") != "FP16" else None


def starts_of_tables(group: Registers, _machine: Machine) -> str | None:
    """In fp16 CDP's tables start at numbers."""
    if group.value_name("INPUT_DATA_TYPE") != "FP16":
        return None
    starts = (name for name in ("LUT_LE_START_LOW", "LUT_LO_START_LOW") if group[name] & 0x7FFFFFFF > 0x7F800000)
    return next((f"{name} is NaN" for name in starts), None)


def copied_lines(group: Registers, _machine: Machine) -> str | None:
    """BDMA's lines are no longer than their distance in the source, even a single one."""
    size, stride = group["CFG_LINE.SIZE"] + 1, group["CFG_SRC_LINE.STRIDE"]
    return f"lines of {size} atoms every {stride}" if size > stride else None


LIMITS: Mapping[str, tuple[Limit, ...]] = {
    "PDP": (buffered_lines, narrow_maps, pads_of_averages, pads_of_half_averages),
    "SDP": (kept_bits,),
    "SDP_RDMA": (converted_maps, sizes_of_operands, pairs_of_operands, operands_of_tiles),
    "CDMA": (
        batches,
        first_line,
        mask_bytes,
        mask_of_group,
        kept_weights,
        fetched_lines,
        extended_data,
        extended_entries,
    ),
    "CSC": (tiles, pixels_of_kernel, joined_lines, held_entries, results_of_kernels),
    "CDP": (offsets, starts_of_tables),
    "BDMA": (copied_lines,),
}
"""The limits of each block."""


def sentence(limit: Limit) -> str:
    """The limit in words."""
    return " ".join((limit.__doc__ or "").split())


def breach(group: Registers, machine: Machine) -> tuple[str, str] | None:
    """What the registers of a block contain beyond a limit, and that limit; None if they keep all of them."""
    for limit in LIMITS.get(group.block, ()):
        reason = limit(group, machine)
        if reason is not None:
            return reason, sentence(limit)
    return None
