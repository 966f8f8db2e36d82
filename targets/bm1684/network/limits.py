"""Limits of the nodes that BM1684's float passes create."""

from npuc.passes.expansion.images import ImageLimits

MOST_BLOCKS = 256
"""The most channels of an image after blocks of its pixels were turned into channels."""
IMAGES = ImageLimits(lanes=16, channels=256, extent=256, pixels=64, batches=True)
"""Limits of images made from long vectors and from tensors that are not images."""
