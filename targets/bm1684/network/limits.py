"""Limits of what the float passes of BM1684 make."""

from npuc.passes.expansion.images import ImageLimits

MOST_BLOCKS = 256
"""Channels of an image whose blocks of pixels are channels."""
IMAGES = ImageLimits(lanes=16, channels=256, extent=256, pixels=64)
"""Of long vectors and of tensors that are no images."""
