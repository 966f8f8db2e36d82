"""Passes over float graphs: each is a pure function from Graph to Graph that preserves the meaning.

`FLOAT_PASSES` lists them in order. Each pass reaches its own fixpoint: applied twice it changes nothing more.

1. Constants and clutter. `fold_constants`, `remove_dead_code` and `merge_duplicates` come first, so that later
   patterns are free of Identity and of computed constants.
2. Layout. `recognise_softmax` comes before it, as it looks for reductions along the model's own axes.
   `recognise_gemm` gives matrix products a weight whose columns can be permuted; `sink_reshapes` removes Squeeze
   and Unsqueeze from between elementwise operators, so that `eliminate_transposes` sees connected regions. From
   here on all images are (N, C, H, W), and no Transpose interrupts a pattern.
3. Recognition. `recognise_activations` needs sums and products as the model writes them, so it precedes
   `recognise_batch_norm`, which transforms those with constants. `unify_pooling` and `lift_to_2d` follow the
   layout; the latter also lifts the new batch normalisations.
4. Fusion. `fold_batch_norm` precedes `merge_pads`, so that a batch normalisation between a Pad and a Conv without
   padding can still be folded exactly; `fold_mixtures` follows, for those with padding. `fuse_activation` follows
   both: the activation must be the next reader of the folded result. `split_before_moves` then separates the parts
   of the last tensors, whatever moved or joined them. `mark_residual_add` comes last: it annotates the operators
   that remain.
"""

from npuc.passes.cleanup.boundary_moves import split_before_moves
from npuc.passes.cleanup.clutter import fold_constants, merge_duplicates, remove_dead_code
from npuc.passes.cleanup.eliminate_transposes import eliminate_transposes
from npuc.passes.cleanup.pads import merge_pads
from npuc.passes.cleanup.sink_reshapes import sink_reshapes
from npuc.passes.fusion import fold_batch_norm, fold_mixtures, fuse_activation, mark_residual_add
from npuc.passes.recognition.canonical_forms import lift_to_2d, unify_pooling
from npuc.passes.recognition.recognise_activations import recognise_activations, recognise_softmax
from npuc.passes.recognition.recognise_batch_norm import recognise_batch_norm
from npuc.passes.recognition.recognise_gemm import recognise_gemm
from npuc.passes.recognition.recognise_quantisation import recognise_quantisation
from npuc.pipeline import Pass

FLOAT_PASSES: tuple[Pass, ...] = (
    fold_constants,
    remove_dead_code,
    recognise_quantisation,
    merge_duplicates,
    recognise_softmax,
    recognise_gemm,
    sink_reshapes,
    eliminate_transposes,
    recognise_activations,
    unify_pooling,
    recognise_batch_norm,
    lift_to_2d,
    fold_batch_norm,
    merge_pads,
    fold_mixtures,
    fuse_activation,
    split_before_moves,
    mark_residual_add,
)

__all__ = ["FLOAT_PASSES"]
