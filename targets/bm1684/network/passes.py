"""The float passes of BM1684: what the calls have no field for becomes what they have."""

from npuc.passes.expansion.fold_extents import FoldExtents
from npuc.passes.expansion.fold_strides import FoldStrides
from npuc.pipeline import Pass
from npuc.targets.bm1684.network.support import MOST_EXTENT, MOST_PADDING, MOST_STRIDE

PASSES: tuple[Pass, ...] = (FoldStrides(MOST_STRIDE), FoldExtents(MOST_EXTENT - 2 * MOST_PADDING))
