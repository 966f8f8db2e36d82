"""What the float passes of NVDLA make: limits of images, averages, and convolutions that only move data."""

from npuc.passes.expansion.images import ImageLimits
from npuc.passes.expansion.split_average_pool import Limits as Averages

LANES = 16
"""Channels of an atom, or of two on nv_small: a slice from a multiple of them on is read where it lies."""
MOST_CHANNELS, MOST_PADDING, MOST_STEP = 256, 15, 15
"""Of convolutions that only move data: channels of blocks, padding, and the step of a slice."""
IMAGES = ImageLimits(LANES, channels=256, extent=256, pixels=64)
"""Of tensors that are none, and of long vectors."""
AVERAGES = Averages(positions=64, extent=32, stride=8, last_positions=32 * 32)
"""What PDP averages at once, or one convolution; an average of blocks may be such a convolution."""
