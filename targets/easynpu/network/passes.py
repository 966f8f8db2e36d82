"""The float passes of EasyNPU, in order: they replace what the array has no word for.

1. Forms. Volumes become images, a batch of images several networks of one image; reductions, interpolation,
maxima, padding and matrix products become pooling and convolutions over images. Matrix products come last, as
interpolation creates some.

2. Weights. Differences, batch normalisation, groups, channel shuffles and transposed convolutions become dense and
depthwise convolutions (permutations of channels before other Gathers become many slices); windows that the array
cannot average or compare are split. Then activations are fused again, as there are new convolutions.

3. Shapes. Elementwise operators on tensors that are no images compute on images. This follows everything that
moves functions across a Reshape. Copies and rows follow, as any earlier pass may leave some. Last come limits and
rescaling of what remains.
"""

from npuc.passes.expansion.as_images import AsImages
from npuc.passes.expansion.batch_norm_to_conv import batch_norm_to_conv
from npuc.passes.expansion.batch_to_channels import batch_to_channels
from npuc.passes.expansion.conv_transpose_to_convs import ConvTransposeToConvs
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
from npuc.passes.expansion.resizes import resize_to_copies
from npuc.passes.expansion.split_average_borders import split_average_borders
from npuc.passes.expansion.split_average_pool import Limits, SplitAveragePool
from npuc.passes.expansion.split_batch import SplitBatch
from npuc.passes.expansion.split_max_pool import split_max_pool
from npuc.passes.expansion.strided_slices_to_convs import StridedSlicesToConvs
from npuc.passes.expansion.volumes_to_images import volumes_to_images
from npuc.passes.fusion.fuse_again import fuse_again
from npuc.passes.fusion.separate_clips import separate_clips
from npuc.passes.scales.rescale_mixed_concats import RescaleMixedConcats
from npuc.pipeline import Pass
from npuc.targets.easynpu.machine.memory import LANES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.network.expand_groups import expand_groups
from npuc.targets.easynpu.network.limit_at_zero import limit_at_zero
from npuc.targets.easynpu.network.limits import IMAGES, MOST_CHANNELS, MOST_EXTENT, MOST_STRIDE, WIDEST
from npuc.targets.easynpu.network.maxima_to_pools import maxima_to_pools
from npuc.targets.easynpu.network.rescale_operands import rescale_operands
from npuc.targets.easynpu.network.resize_to_products import resize_to_products
from npuc.targets.easynpu.network.sink_shuffles import sink_shuffles
from npuc.targets.easynpu.network.split_padding import MOST_PADDING, split_padding
from npuc.targets.easynpu.network.subtract_by_adding import subtract_by_adding


def passes(machine: Machine) -> tuple[Pass, ...]:
    """The passes of every program for a machine."""
    return (*_FORMS, *_averages(machine), *_SHAPES)


def _averages(machine: Machine) -> tuple[Pass, ...]:
    """The passes for averages: kept psums allow any window that a DTCM holds; others are averages of averages."""
    limits = Limits(positions=max(machine.fmap_words, machine.skip_words) - 1, extent=MOST_EXTENT)
    return PadLongAverages(limits), SplitAveragePool(limits=limits)


_FORMS: tuple[Pass, ...] = (
    expand_powers,
    volumes_to_images,
    SplitBatch(IMAGES),
    resize_to_copies,
    reductions_to_pools,
    resize_to_products,
    maxima_to_pools,
    FoldStrides(MOST_STRIDE, MOST_CHANNELS),
    PadsToConvs(MOST_PADDING),
    products_to_convs,
    subtract_by_adding,
    batch_norm_to_conv,
    ConvTransposeToConvs(LANES),
    expand_groups,
    sink_shuffles,
    PermuteChannelsByConv(LANES),
    gathers_to_slices,
    StridedSlicesToConvs(MOST_STRIDE),
    split_average_borders,
)
_SHAPES: tuple[Pass, ...] = (
    split_max_pool,
    split_padding,
    fuse_again,
    separate_clips,
    batch_to_channels,
    AsImages(IMAGES),
    FoldExtents(WIDEST),
    copies_to_concats,
    GemmToConv(IMAGES),
    limit_at_zero,
    rescale_operands,
    RescaleMixedConcats(IMAGES),
)
