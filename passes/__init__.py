"""Passes over float graphs: each a pure function from Graph to Graph that keeps the meaning.

`FLOAT_PASSES` is their order. Each pass reaches its own fixpoint: applied twice it changes nothing more.

1. Constants and clutter. `fold_constants`, `remove_dead_code` and `merge_duplicates` come first: every later
   pattern is then free of Identity and of constants that are computed.
2. Recognition. `recognise_activations` sees sums and products as the model spells them, so it comes before any
   pass that gives those another form; `recognise_gemm` likewise.
3. Layout. `sink_reshapes` takes Squeeze and Unsqueeze out from between elementwise operators, so that
   `eliminate_transposes` sees connected regions; from here on all images are (N, C, H, W).
4. Canonical forms. `merge_pads`, `unify_pooling` and `lift_to_2d` look at windows, which need their layout
   settled; `recognise_batch_norm` looks at channels, which stand on axis 1 only now.
5. Fusion. `fold_batch_norm` before `fuse_activation`: the activation must be the next reader of the folded
   result. `mark_residual_add` last: it describes the operators that are left.
"""

from npuc.passes.eliminate_transposes import eliminate_transposes
from npuc.passes.fold_batch_norm import fold_batch_norm
from npuc.passes.fold_constants import fold_constants
from npuc.passes.fuse_activation import fuse_activation
from npuc.passes.lift_to_2d import lift_to_2d
from npuc.passes.mark_residual_add import mark_residual_add
from npuc.passes.merge_duplicates import merge_duplicates
from npuc.passes.merge_pads import merge_pads
from npuc.passes.recognise_activations import recognise_activations
from npuc.passes.recognise_batch_norm import recognise_batch_norm
from npuc.passes.recognise_gemm import recognise_gemm
from npuc.passes.remove_dead_code import remove_dead_code
from npuc.passes.sink_reshapes import sink_reshapes
from npuc.passes.unify_pooling import unify_pooling
from npuc.pipeline import Pass

FLOAT_PASSES: tuple[Pass, ...] = (
    fold_constants,
    remove_dead_code,
    merge_duplicates,
    recognise_activations,
    recognise_gemm,
    sink_reshapes,
    eliminate_transposes,
    merge_pads,
    unify_pooling,
    lift_to_2d,
    recognise_batch_norm,
    fold_batch_norm,
    fuse_activation,
    mark_residual_add,
)

__all__ = ["FLOAT_PASSES"]
