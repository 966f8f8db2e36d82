"""CDMA: fetches features or an image, converts and pads them, and fetches weights, into the convolution buffer.

An image has pixels of up to four components, in one or two planes.

Source: in-memory formats (Precision Conversion, Feature Data Format, Pixel Format, table 33, FP16 Supporting); the
buffer limits of the hardware; formats, offsets and padding of images in each configuration as seen on the RTL.
"""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.formats import pixels as formats
from npuc.targets.nvdla.formats.alignment import align
from npuc.targets.nvdla.formats.precision import DTYPES
from npuc.targets.nvdla.machine.parameters import BYTES, Machine
from npuc.targets.nvdla.model import fp16
from npuc.targets.nvdla.model.arithmetic import saturate, shift_right
from npuc.targets.nvdla.model.memory import MemoryPort, Pattern
from npuc.targets.nvdla.model.register_file import RegisterGroup, trap

BLOCK = "CDMA"
PIXEL_CHANNELS = 4
"""The most channels that can have a mean."""


@frozen
class FetchedWeights:
    """Contents of the weight banks: bytes as in memory; with mask and group sizes if compressed."""

    data: bytes
    mask: bytes | None = None
    group_sizes: Array | None = None


@frozen
class Buffered:
    """The convolution buffer, filled for one operation."""

    features: Array
    """(batch, H, W, C) integers in int8 or int16, or float32 of fp16 values."""
    weights: FetchedWeights
    reports: dict[str, int]
    """Counting registers."""
    banks: tuple[int, int]
    """DATA_BANK and WEIGHT_BANK; the hardware empties the buffer when they change."""
    keeps_data: bool = False
    keeps_weights: bool = False


def precision(group: RegisterGroup, field: str) -> str:
    """int8, int16 or fp16, as a field names it."""
    return group.value_name(field).lower()


def expect_precision(block: str, machine: Machine, found: str) -> None:
    """Raises ArtefactError (E503) if the configuration does not support a precision."""
    if found not in machine.precisions:
        raise trap(block, f"{machine.name} has no {found}", limit=", ".join(machine.precisions))


def fetch(group: RegisterGroup, machine: Machine, port: MemoryPort, kept: Buffered | None) -> Buffered:
    """The buffer contents of an operation; kept: what the previous one left in the buffer.

    Raises ArtefactError (E503) for data that is outside memory, not aligned or too large for the buffer, and for
    reuse of data that no operation has left.
    """
    expect_precision(BLOCK, machine, precision(group, "PROC_PRECISION"))
    _expect_banks(group, machine)
    for what, there in (("DATA", kept and kept.keeps_data), ("WEIGHT", kept and kept.keeps_weights)):
        if group[f"{what}_REUSE"] and not there:
            reason = f"{what}_REUSE of what no operation has left in the buffer"
            raise trap(BLOCK, reason, limit=f"SKIP_{what}_RLS before, and the same banks")
    banks = group["DATA_BANK"], group["WEIGHT_BANK"]
    if kept is not None and (group["DATA_REUSE"] or group["WEIGHT_REUSE"]) and kept.banks != banks:
        raise trap(
            BLOCK, "reuses what other banks hold", limit=f"{kept.banks[0] + 1} and {kept.banks[1] + 1} banks"
        )
    features, counted = (kept.features, {}) if kept and group["DATA_REUSE"] else _features(group, machine, port)
    weights = kept.weights if kept and group["WEIGHT_REUSE"] else _weights(group, machine, port)
    return Buffered(
        features, weights, counted, banks, bool(group["SKIP_DATA_RLS"]), bool(group["SKIP_WEIGHT_RLS"])
    )


def _expect_banks(group: RegisterGroup, machine: Machine) -> None:
    """Raises ArtefactError (E503) if there are fewer banks than asked for, or they cannot contain the data."""
    data, weight = group["DATA_BANK"] + 1, group["WEIGHT_BANK"] + 1
    mask = int(group.value_name("WEIGHT_FORMAT") == "COMPRESSED")
    if data + weight + mask > machine.cbuf_banks:
        reason = f"{data} data banks, {weight} weight banks and {mask} for the mask"
        raise trap(BLOCK, reason, limit=f"{machine.cbuf_banks} banks")
    slices = (group["DATAIN_HEIGHT_EXT"] if group["CONV_MODE"] else group["DATAIN_HEIGHT"]) + 1
    batches = group["BATCHES"] + 1
    entries = (group["ENTRIES"] + 1) * slices * batches
    if entries > data * machine.cbuf_entries:
        raise trap(
            BLOCK,
            f"CBUF overflow: {slices} slices of {group['ENTRIES'] + 1} entries"
            + (f", {batches} batches" if batches > 1 else ""),
            limit=f"{data * machine.cbuf_entries} entries in {data} banks",
            remedy="give data more banks, or split the layer by rows",
        )


def _features(group: RegisterGroup, machine: Machine, port: MemoryPort) -> tuple[Array, dict[str, int]]:
    """The input (batch, H, W, C), converted; an image padded left and right, for Winograd padded and extended."""
    image = group.value_name("DATAIN_FORMAT") == "PIXEL"
    raw = _fetch_image(group, machine, port) if image else _cube(group, machine, port)
    _expect_entries(group, machine, raw.shape[-1])
    result = precision(group, "PROC_PRECISION")
    counted: dict[str, int] = {}
    if np.issubdtype(raw.dtype, np.floating):
        counted = {"D_NAN_INPUT_DATA_NUM": fp16.nans(raw), "D_INF_INPUT_DATA_NUM": fp16.infinities(raw)}
        converted = fp16.load(raw, _infinity(group), flush=bool(group["NAN_TO_ZERO"]))
    else:
        converted = _convert_pixels(group, raw, result) if group["CVT_EN"] else _as_it_is(raw, result)
    if image:
        return _pad_columns(group, converted), counted
    return _extend_for_winograd(group, converted) if group["CONV_MODE"] else converted, counted


def _infinity(group: RegisterGroup) -> float:
    """The value of an infinity: Winograd adds in fp17 before it multiplies."""
    return fp16.FP17_MOST if group["CONV_MODE"] else fp16.INFINITY


def _cube(group: RegisterGroup, machine: Machine, port: MemoryPort) -> Array:
    """The feature cube in memory (batch, H, W, C)."""
    kind = precision(group, "IN_PRECISION")
    if kind != precision(group, "PROC_PRECISION"):
        raise trap(BLOCK, "feature data is not converted in the convolution pipeline", limit="table 29")
    width, height, channels = (group[f"DATAIN_{each}"] + 1 for each in ("WIDTH", "HEIGHT", "CHANNEL"))
    atom = machine.atom_bytes
    line = width * atom if group["LINE_PACKED"] else group.bytes("LINE_STRIDE")
    surface = height * line if group["SURF_PACKED"] else group.bytes("SURF_STRIDE")
    start = group.address("DATAIN_ADDR_LOW_0", "DATAIN_ADDR_HIGH_0", "DATAIN_RAM_TYPE")
    surfaces = -(-channels // machine.atom_elements(kind))
    batches = group["BATCHES"] + 1
    stride = group.bytes("BATCH_STRIDE") if batches > 1 else 0
    images = [
        port.cube(Pattern(start + each * stride, width * atom, height, line, surfaces, surface), atom)
        for each in range(batches)
    ]
    atoms = np.ascontiguousarray(np.stack(images)).view(DTYPES[kind])
    return np.moveaxis(atoms, 1, 3).reshape(batches, height, width, -1)[..., :channels]


def entries_per_slice(machine: Machine, width: int, channels: int, kind: str) -> int:
    """CBUF entries of a line of a feature cube."""
    atoms = -(-channels // machine.atom_elements(kind))
    whole, part = divmod(atoms, machine.cbuf_entry_bytes // machine.atom_bytes)
    per_entry = machine.cbuf_entry_bytes // machine.atom_bytes
    return whole * width + (width if part == 3 else -(-part * width // per_entry))


def _expect_entries(group: RegisterGroup, machine: Machine, channels: int) -> None:
    """Raises ArtefactError (E503) if a line takes more than ENTRIES, so that lines would overlap."""
    kind = precision(group, "PROC_PRECISION")
    if group["CONV_MODE"]:
        atoms = (group["DATAIN_WIDTH_EXT"] + 1) // 4 * -(-_extend_channels(group, channels) * BYTES[kind] // 32)
        wanted = atoms
    elif group.value_name("DATAIN_FORMAT") == "PIXEL":
        line = (group["DATAIN_WIDTH"] + 1 + group["PAD_LEFT"] + group["PAD_RIGHT"]) * channels * BYTES[kind]
        wanted = -(-line // machine.cbuf_entry_bytes)
    else:
        wanted = entries_per_slice(machine, group["DATAIN_WIDTH"] + 1, channels, kind)
    if group["ENTRIES"] + 1 < wanted:
        raise trap(BLOCK, f"{group['ENTRIES'] + 1} entries per slice", limit=f"{wanted} for this line")


def _extend_channels(group: RegisterGroup, channels: int) -> int:
    return channels * (group["CONV_X_STRIDE"] + 1) * (group["CONV_Y_STRIDE"] + 1)


def _convert_pixels(group: RegisterGroup, raw: Array, result: str) -> Array:
    """Equation 1: (d - offset) * SF, with an offset per channel if means are enabled."""
    if group["MEAN_FORMAT"]:
        if raw.shape[-1] > PIXEL_CHANNELS:
            raise trap(BLOCK, f"means of {raw.shape[-1]} channels", limit=f"{PIXEL_CHANNELS}")
        means = [group.signed_value(each) for each in ("MEAN_RY", "MEAN_GU", "MEAN_BV", "MEAN_AX")]
        offset = np.array(means[: raw.shape[-1]], np.int64)
    else:
        offset = np.int64(group.signed_value("CVT_OFFSET"))
    scaled = shift_right((raw.astype(np.int64) - offset) * group.signed_value("CVT_SCALE"), group["CVT_TRUNCATE"])
    if result == "fp16":
        return fp16.store(scaled.astype(np.float32)).astype(np.float32)
    return saturate(scaled, 8 * BYTES[result]).astype(DTYPES[result])


def _as_it_is(raw: Array, result: str) -> Array:
    """Unconverted integers: the lowest bits, whatever the sign."""
    if result == "fp16":
        raise trap(BLOCK, "an integer image is processed as fp16 without a conversion", limit="CVT_EN = ENABLE")
    return raw.astype(DTYPES[result])


def _pad_columns(group: RegisterGroup, data: Array) -> Array:
    """An image with its padding left and right, which CDMA stores in the buffer; CSC adds that above and below."""
    columns = ((0, 0), (0, 0), (group["PAD_LEFT"], group["PAD_RIGHT"]), (0, 0))
    return np.pad(data, columns, constant_values=pad_value(group, data))


def _extend_for_winograd(group: RegisterGroup, data: Array) -> Array:
    """The data padded on all sides; with a stride, the phases of rows and columns become channels.

    Channel (row phase * stride_x + column phase) * C + c, as in the weights (channel extension for Winograd).
    """
    top, bottom, left, right = (group[f"PAD_{each}"] for each in ("TOP", "BOTTOM", "LEFT", "RIGHT"))
    padding = ((0, 0), (top, bottom), (left, right), (0, 0))
    padded = np.pad(data, padding, constant_values=pad_value(group, data))
    sx, sy = group["CONV_X_STRIDE"] + 1, group["CONV_Y_STRIDE"] + 1
    width, height = group["DATAIN_WIDTH_EXT"] + 1, group["DATAIN_HEIGHT_EXT"] + 1
    if padded.shape[1] < height * sy or padded.shape[2] < width * sx:
        reason = f"{padded.shape[2]} padded columns, {padded.shape[1]} rows"
        raise trap(BLOCK, reason, limit=f"{width * sx}, {height * sy} for the extended size")
    cut = padded[:, : height * sy, : width * sx]
    split = cut.reshape(len(cut), height, sy, width, sx, -1).transpose(0, 1, 3, 2, 4, 5)
    return split.reshape(len(cut), height, width, -1)


def pad_value(group: RegisterGroup, data: Array) -> int | float:
    """The value outside the map, in the type of the data."""
    if np.issubdtype(data.dtype, np.floating):
        return float(np.uint16(group["PAD_VALUE"]).view(np.float16))
    return group.signed_value("PAD_VALUE", 8 * data.dtype.itemsize)


def _weights_at(group: RegisterGroup, surface: str) -> int:
    """The address of weights, their mask (WMB) or their group sizes (WGS), all in one memory."""
    return group.address(f"{surface}_ADDR_LOW", f"{surface}_ADDR_HIGH", "WEIGHT_RAM_TYPE")


def _weights(group: RegisterGroup, machine: Machine, port: MemoryPort) -> FetchedWeights:
    """The weights; if compressed with their mask (WMB) and group sizes (WGS)."""
    start = _weights_at(group, "WEIGHT")
    size = group.bytes("WEIGHT_BYTES")
    kind = precision(group, "PROC_PRECISION")
    kernels, kernel_bytes = group["WEIGHT_KERNEL"] + 1, group["BYTE_PER_KERNEL"] + 1
    per_group = machine.kernel_group(kind)
    largest = align(min(per_group, kernels) * kernel_bytes, machine.cbuf_entry_bytes)
    banks = (group["WEIGHT_BANK"] + 1) * machine.bank_bytes
    if group.value_name("WEIGHT_FORMAT") == "COMPRESSED":
        return _fetch_compressed(group, machine, port, (start, size))
    if largest > banks:
        raise trap(
            BLOCK, f"CBUF overflow: a kernel group of {largest} bytes", limit=f"{banks} in the weight banks"
        )
    if size < align(kernels * kernel_bytes, machine.cbuf_entry_bytes):
        raise trap(BLOCK, f"{size} weight bytes", limit=f"{kernels} kernels of {kernel_bytes} bytes")
    return FetchedWeights(port.fetch(start, size).tobytes())


def _fetch_compressed(
    group: RegisterGroup, machine: Machine, port: MemoryPort, data: tuple[int, int]
) -> FetchedWeights:
    if not machine.compression:
        raise trap(BLOCK, f"{machine.name} has no compressed weights", limit="UNCOMPRESSED")
    groups = -(-(group["WEIGHT_KERNEL"] + 1) // machine.kernel_group(precision(group, "PROC_PRECISION")))
    sizes = port.fetch(_weights_at(group, "WGS"), 4 * groups).view("<u4").astype(np.int64)
    mask = port.fetch(_weights_at(group, "WMB"), group.bytes("WMB_BYTES"))
    if (found := align(int(sizes.sum()), machine.cbuf_entry_bytes)) < data[1]:
        reason = f"{found} bytes of compressed weights by their group sizes"
        raise trap(BLOCK, reason, limit=f"WEIGHT_BYTES = {data[1]}: the next weights would be wrong")
    bank_bytes = (group["WEIGHT_BANK"] + 1) * machine.bank_bytes
    if sizes.max() + machine.cbuf_entry_bytes > bank_bytes:
        limit = f"{bank_bytes} in the weight banks, with an entry of {machine.cbuf_entry_bytes} more"
        raise trap(BLOCK, f"CBUF overflow: a compressed group of {sizes.max()} bytes", limit=limit)
    return FetchedWeights(port.fetch(*data).tobytes(), mask.tobytes(), sizes)


PLANES = (("0", "LINE_STRIDE"), ("1", "UV_LINE_STRIDE"))
"""The suffix of the address registers and the field of the line stride, by plane."""


def _fetch_image(group: RegisterGroup, machine: Machine, port: MemoryPort) -> Array:
    """The image (1, H, W, C): integers as int32, or float16.

    Raises ArtefactError (E503) for a setting that table 33 does not have.
    """
    form = formats.FORMATS[group.value_name("PIXEL_FORMAT")]
    if form.name not in formats.of(machine.registers):
        raise trap(BLOCK, f"PIXEL_FORMAT = {form.name}", limit=f"{', '.join(formats.of(machine.registers))}")
    width, height, channels = (group[f"DATAIN_{each}"] + 1 for each in ("WIDTH", "HEIGHT", "CHANNEL"))
    if channels != form.channels:
        raise trap(BLOCK, f"{channels} channels of {form.name}", limit=f"{form.channels} (table 33)")
    if group.value_name("PIXEL_MAPPING") != "PITCH_LINEAR":
        raise trap(BLOCK, f"PIXEL_MAPPING = {group.value_name('PIXEL_MAPPING')}", limit="PITCH_LINEAR")
    _expect_in_line(form, group, machine, width)
    planes = [
        _plane(group, machine, port, (each, form.planes[each].pixel_bytes), (height, width))
        for each in range(len(form.planes))
    ]
    return formats.unpack(form, planes, signed=group.value_name("PIXEL_SIGN_OVERRIDE") == "SIGNED_INT")[None]


def _expect_in_line(form: formats.PixelFormat, group: RegisterGroup, machine: Machine, width: int) -> None:
    """Raises ArtefactError (E503) for an x offset beyond an atom, or padding beyond CDMA's counters."""
    offset, most = group["PIXEL_X_OFFSET"], form.largest_offset(machine.atom_bytes)
    if offset > most:
        limit = f"0..{most}, within an atom of {machine.name}"
        raise trap(BLOCK, f"an x offset of {offset} pixels of {form.name}", limit=limit)
    left, right = group["PAD_LEFT"], group["PAD_RIGHT"]
    if not form.pads(machine.atom_bytes, width, left, right, offset):
        reason = f"lines of {width} pixels of {form.name} with {left} columns of padding left and {right} right"
        remedy = "store the padding as pixels, or use another format"
        raise trap(
            BLOCK, reason, limit="what its counters of padding hold: later lines would be wrong", remedy=remedy
        )


def _plane(
    group: RegisterGroup, machine: Machine, port: MemoryPort, plane: tuple[int, int], size: tuple[int, int]
) -> Array:
    """The bytes (H, W, bytes of a pixel) of a plane, starting at the x offset.

    The offset is the distance from an aligned address to the first pixel. In a second plane, whose pixels are
    wider, the plane's own address includes the whole atoms of that distance.
    """
    index, pixel_bytes = plane
    height, width = size
    number, stride = PLANES[index]
    start = group.address(f"DATAIN_ADDR_LOW_{number}", f"DATAIN_ADDR_HIGH_{number}", "DATAIN_RAM_TYPE")
    skipped = group["PIXEL_X_OFFSET"] * pixel_bytes % machine.atom_bytes
    line_bytes = skipped + width * pixel_bytes
    place = Pattern(start, line_bytes, height, group.bytes(stride))
    line = port.cube(place, line_bytes, unit=machine.atom_bytes)[0, :, 0]
    return np.ascontiguousarray(line[:, skipped:]).reshape(height, width, pixel_bytes)
