"""Limits for NVDLA's float passes: of images, averages, and convolutions that only move data."""

from npuc.passes.expansion.averages import AverageLimits as Averages
from npuc.passes.expansion.images import ImageLimits

LANES = 16
"""Channels of one atom, or of two on nv_small: a slice that starts at a multiple of these needs no copy."""
MOST_CHANNELS, MOST_PADDING, MOST_STEP = 256, 15, 15
"""Limits of convolutions that only move data: channels of blocks, padding, and the step of a slice."""
IMAGES = ImageLimits(LANES, channels=256, extent=256, pixels=64)
"""Limits of tensors turned into images, and of long vectors."""
AVERAGES = Averages(positions=64, extent=32, stride=8, last_positions=32 * 32)
"""Averages that PDP or one convolution can compute; the last step over blocks may be such a convolution."""
MOST_DILATION = 32
"""The largest dilation of a convolution."""
