"""The float passes of NVDLA, in order: they replace what no unit computes.

1. Forms. Volumes become images, a batch of images becomes several networks of one image; reductions, padding and
   matrix products become pooling and convolutions over images.
2. Weights. Batch normalisation, shuffled channels and transposed convolutions become convolutions; enlargement
   without arithmetic becomes interleaving; windows too large for PDP's maximum are split. Then activations are
   fused again into the new convolutions.
3. Shapes. Remaining elementwise operators on other tensors are moved to images.
"""

from dataclasses import replace

from npuc.passes.cleanup.split_pads import SplitPads
from npuc.passes.expansion.as_images import AsImages
from npuc.passes.expansion.batch_norm_to_conv import batch_norm_to_conv
from npuc.passes.expansion.batch_to_channels import batch_to_channels
from npuc.passes.expansion.conv_transpose_to_convs import conv_transpose_to_phases
from npuc.passes.expansion.copies_to_concats import copies_to_concats
from npuc.passes.expansion.expand_powers import expand_powers
from npuc.passes.expansion.fold_extents import FoldExtents
from npuc.passes.expansion.fold_strides import FoldStrides
from npuc.passes.expansion.gathers_to_slices import gathers_to_slices
from npuc.passes.expansion.gemm_to_conv import GemmToConv
from npuc.passes.expansion.pad_long_averages import PadLongAverages
from npuc.passes.expansion.pads_to_convs import PadsToConvs
from npuc.passes.expansion.permute_channels_by_conv import PermuteChannelsByConv
from npuc.passes.expansion.products_to_convs import products_to_convs
from npuc.passes.expansion.reductions_to_pools import reductions_to_pools
from npuc.passes.expansion.resizes import interpolation_to_convs
from npuc.passes.expansion.split_average_borders import split_average_borders
from npuc.passes.expansion.split_average_pool import SplitAveragePool
from npuc.passes.expansion.split_batch import SplitBatch
from npuc.passes.expansion.split_max_pool import Limits as Maxima
from npuc.passes.expansion.split_max_pool import SplitMaxPool
from npuc.passes.expansion.strided_slices_to_convs import StridedSlicesToConvs
from npuc.passes.expansion.volumes_to_images import volumes_to_images
from npuc.passes.expansion.wide_dilations import WideDilations
from npuc.passes.fusion.fuse_again import fuse_again
from npuc.passes.fusion.separate_clips import separate_clips
from npuc.passes.scales.rescale_mixed_concats import RescaleMixedConcats
from npuc.pipeline import Pass
from npuc.targets.nvdla.machine.parameters import (
    MOST_EXTENT,
    MOST_KERNEL,
    MOST_STRIDE,
    MOST_WINDOW_PADDING,
    Machine,
)
from npuc.targets.nvdla.network.averages_into_convs import AveragesIntoConvs
from npuc.targets.nvdla.network.enlargements_to_interleaves import enlargements_to_interleaves
from npuc.targets.nvdla.network.hard_swish_to_product import hard_swish_to_product
from npuc.targets.nvdla.network.limits import (
    AVERAGES,
    IMAGES,
    LANES,
    MOST_CHANNELS,
    MOST_DILATION,
    MOST_PADDING,
    MOST_STEP,
)
from npuc.targets.nvdla.network.rows_to_maps import rows_to_maps
from npuc.targets.nvdla.network.space_to_depth_to_convs import space_to_depth_to_convs
from npuc.targets.nvdla.network.upper_limits_to_minima import upper_limits_to_minima

WITHOUT_TABLES: tuple[Pass, ...] = (hard_swish_to_product,)
"""Run after the others, for configurations without look-up tables in SDP."""
PASSES: tuple[Pass, ...] = (
    expand_powers,
    reductions_to_pools,
    WideDilations(MOST_DILATION, apart=True),
    SplitPads(MOST_WINDOW_PADDING),
    PadsToConvs(MOST_PADDING, MOST_WINDOW_PADDING),
    products_to_convs,
    batch_norm_to_conv,
    interpolation_to_convs,
    conv_transpose_to_phases,
    enlargements_to_interleaves,
    space_to_depth_to_convs,
    PermuteChannelsByConv(LANES),
    gathers_to_slices,
    StridedSlicesToConvs(MOST_STEP),
    split_average_borders,
    PadLongAverages(AVERAGES),
    SplitAveragePool(3, AVERAGES, replace(AVERAGES, positions=32 * 32)),
    SplitMaxPool(Maxima(positions=8 * 8, extent=8, stride=8, dilation=1)),
    fuse_again,
    separate_clips,
    upper_limits_to_minima,
    batch_to_channels,
    AsImages(IMAGES),
    FoldExtents(MOST_EXTENT),
    copies_to_concats,
    GemmToConv(IMAGES, 32),
    rows_to_maps,
)


def passes(machine: Machine, precision: str, *, tables: bool) -> tuple[Pass, ...]:
    """The passes for a configuration and a precision; tables: whether SDP's tables compute HardSwish.

    Fully connected layers take a whole batch if the window can move by an image, as a stride or as a batch.
    """
    split = SplitBatch(IMAGES, most_lines=MOST_STRIDE if machine.max_batches == 1 else MOST_KERNEL)
    averages = (AveragesIntoConvs(),) if precision == "int8" else ()
    return (
        volumes_to_images,
        FoldStrides(MOST_STRIDE, MOST_CHANNELS),
        split,
        *PASSES,
        *averages,
        *((RescaleMixedConcats(IMAGES),) if precision == "int8" else ()),
        *(() if tables else WITHOUT_TABLES),
    )
