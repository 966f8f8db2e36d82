"""What the words of EasyNPU have room for, as the float passes take it."""

from npuc.passes.expansion.images import ImageLimits
from npuc.targets.easynpu.machine.memory import LANES

MOST_EXTENT = 256
"""Rows and columns of a map, as the word has them."""
WIDEST = 4096
"""Rows and columns beyond which one row of a map fills a memory."""
MOST_STRIDE, MOST_CHANNELS = 15, 256
"""Of a layer, as the word has them."""
IMAGES = ImageLimits(LANES, MOST_CHANNELS, MOST_EXTENT, pixels=64)
"""The kernel of a fully connected layer covers 64 pixels at most."""
