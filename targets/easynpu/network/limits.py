"""The limits of EasyNPU's words, for the float passes."""

from npuc.passes.expansion.images import ImageLimits
from npuc.targets.easynpu.layers.kernels import MOST_EXTENT
from npuc.targets.easynpu.machine.memory import LANES

WIDEST = 4096
"""Rows or columns beyond which one row of a map fills a memory."""
MOST_CHANNELS = 256
"""The most channels in a layer word."""
IMAGES = ImageLimits(LANES, MOST_CHANNELS, MOST_EXTENT, pixels=64)
"""The kernel of a fully connected layer covers at most 64 pixels."""
