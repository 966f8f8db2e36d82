"""The float passes of BM1684: they rewrite forms that no call, or no 8-bit layer, can compute."""

from npuc.passes.cleanup.fold_constants import fold_constants
from npuc.passes.cleanup.move_as_floats import move_as_floats
from npuc.passes.cleanup.split_pads import SplitPads
from npuc.passes.expansion.batch_norm_to_conv import batch_norm_to_conv
from npuc.passes.expansion.conv_transpose_to_convs import ConvTransposeToConvs
from npuc.passes.expansion.fold_extents import FoldExtents
from npuc.passes.expansion.fold_strides import FoldStrides
from npuc.passes.expansion.gathers_to_slices import gathers_to_slices
from npuc.passes.expansion.gemm_to_conv import GemmToConv
from npuc.passes.expansion.reductions_to_pools import reductions_to_pools
from npuc.passes.expansion.resizes import (
    interpolation_to_blocks,
    interpolation_to_convs,
    repeats_to_interleaves,
    resize_to_copies,
)
from npuc.passes.expansion.split_average_borders import split_average_borders
from npuc.passes.expansion.volumes_to_images import volumes_to_images
from npuc.passes.expansion.wide_dilations import SpreadKernels, WideDilations
from npuc.passes.fusion.fuse_again import fuse_again
from npuc.passes.fusion.separate_clips import separate_clips
from npuc.pipeline import Pass
from npuc.targets.bm1684.network.fixed import MOST_WINDOW
from npuc.targets.bm1684.network.limits import CHANNELS, IMAGES, MOST_BLOCKS
from npuc.targets.bm1684.network.one_image import rows_to_pixels, tensors_to_images
from npuc.targets.bm1684.network.support import MOST_DILATION, MOST_EXTENT, MOST_PADDING, MOST_STRIDE

PASSES: tuple[Pass, ...] = (
    fold_constants,
    volumes_to_images,
    FoldStrides(MOST_STRIDE, MOST_BLOCKS),
    WideDilations(MOST_DILATION),
    SplitPads(MOST_PADDING),
    FoldExtents(MOST_EXTENT - 2 * MOST_PADDING),
)
"""Constants are folded first, since a rounding that moved before a Concat may apply to a constant."""
FIXED: tuple[Pass, ...] = (
    move_as_floats,
    volumes_to_images,
    FoldStrides(MOST_STRIDE, MOST_BLOCKS),
    resize_to_copies,
    interpolation_to_blocks,
    repeats_to_interleaves,
    interpolation_to_convs,
    reductions_to_pools,
    WideDilations(MOST_DILATION, apart=True),
    SpreadKernels(MOST_WINDOW),
    SplitPads(MOST_PADDING),
    rows_to_pixels,
    gathers_to_slices,
    batch_norm_to_conv,
    ConvTransposeToConvs(CHANNELS),
    split_average_borders,
    fuse_again,
    separate_clips,
    tensors_to_images,
    GemmToConv(IMAGES, batches=True),
)
"""The passes of --precision int8."""
