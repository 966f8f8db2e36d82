"""Alternative weights and biases for a quantised layer, computed from the inputs under its windows.

bias_by_weights   the bias removes the mean error that rounding the weights adds         (analytic)
bias_by_results   the bias removes the mean difference from the float results            (empirical)
rounded_in_turn   weights rounded one after the other, each error compensated by the rest
The caller measures every proposal on samples that were not used to make it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.quantize.arithmetic.steadiness import corrections
from npuc.quantize.improvement.evidence import row_blocks, sums
from npuc.quantize.network.construction import LayerWeights


@frozen
class JudgedLayer:
    """A quantised convolution and the data by which it is judged, in steps of its input and output scales.

    w: (Co, K), the float weights, whose products with `ratio` are in terms of steps, as bias (Co,) is: results =
    inputs @ exact.T + bias.
    found: (windows, groups, K), the integer network's inputs under the windows, minus the zero point, float32.
    results: (windows, Co) of the float network before the activation. mean: (groups, K) of the float network's
    inputs. sample: (windows,), training: (windows,) bool. lowest, largest: the limits of the results; limited:
    whether an activation keeps results from falling below 0.
    """

    w: Array
    ratio: float
    bias: Array
    found: Array
    results: Array
    mean: Array
    sample: Array
    training: Array
    x_zero: int
    y_zero: int
    lowest: float
    largest: float
    limited: bool

    @cached_property
    def learned(self) -> Array:
        """The integer network's inputs under the windows to learn from."""
        return self.found[self.training]

    @cached_property
    def held_out(self) -> Array:
        """The same under the windows that are held out."""
        return self.found[~self.training]

    def exact(self, rows: slice = slice(None)) -> Array:
        """The float weights of these output channels in terms of steps, float64."""
        return self.w[rows].astype(np.float64) * self.ratio

    def error(self, weights: LayerWeights) -> float:
        """The squared error of the int8 results under the windows that are held out."""
        power = weights.power.astype(np.float32)
        bias = (weights.bias + self.x_zero * weights.total).astype(np.float32)
        acc = sums(self.held_out, weights.w.reshape(len(weights.w), -1)) + bias
        found = np.clip(np.floor(acc / power + np.float32(0.5)), self.lowest, self.largest) - self.y_zero
        lowest = max(self.lowest - self.y_zero, 0) if self.limited else self.lowest - self.y_zero
        exact = np.clip(self.results[~self.training], lowest, self.largest - self.y_zero)
        return float(np.square(found - exact).sum())

    def with_bias(self, weights: LayerWeights, bias: Array) -> LayerWeights:
        """The weights with this bias, (Co,) in steps, plus the contribution of the zero points."""
        rounded = np.rint((bias + self.y_zero) * weights.power)
        return replace(weights, bias=weights.round_bias(rounded - self.x_zero * weights.total))


Proposal = Callable[[JudgedLayer, LayerWeights], LayerWeights]
"""Makes alternative weights for a layer from its current ones."""


def bias_by_weights(layer: JudgedLayer, weights: LayerWeights) -> LayerWeights:
    """The bias minus the mean error that rounding the weights adds: (W' - W) E[x]."""
    flat, mean = weights.w.reshape(len(weights.w), -1), layer.mean[None]
    added = [
        sums(mean, flat[rows] / weights.power[rows, None] - layer.exact(rows))[0]
        for rows in row_blocks(flat, mean.shape[1])
    ]
    return layer.with_bias(weights, layer.bias - corrections(np.concatenate(added)))


def bias_by_results(layer: JudgedLayer, weights: LayerWeights) -> LayerWeights:
    """The bias minus the mean difference from the float results, as far as the samples agree on it.

    Windows of one sample are similar, so the per-sample means count as the observations. A mean difference m with
    standard error e is shrunk by max(0, 1 - e^2 / m^2), the positive part of James and Stein's rule.
    """
    found = sums(layer.learned, weights.w.reshape(len(weights.w), -1)) / weights.power
    sample = layer.sample[layer.training]
    missing = (layer.results[layer.training] - layer.bias) - found
    observed = [missing[sample == each].mean(axis=0) for each in sorted({*sample.tolist()})]
    means = np.stack(observed).astype(np.float64)
    mean = means.mean(axis=0)
    variance = means.var(axis=0, ddof=1) / len(means) if len(means) > 1 else np.full(len(mean), np.inf)
    shrunk = np.maximum(1 - variance / np.maximum(mean**2, 1e-30), 0)
    return layer.with_bias(weights, layer.bias + corrections(mean * shrunk))


def rounded_in_turn(layer: JudgedLayer, weights: LayerWeights) -> LayerWeights:
    """`solve_weights` weights with the bias corrected by the results."""
    return bias_by_results(layer, solve_weights(layer, weights))


def solve_weights(layer: JudgedLayer, weights: LayerWeights) -> LayerWeights:
    """Weights rounded one after the other; the remaining ones compensate each error, by the inputs' correlations.

    Minimises |(W' - W) X|^2 for inputs X without their mean, which the bias absorbs: the most active inputs first,
    the inverse of the damped Hessian by Cholesky. Source: Frantar et al., "GPTQ: Accurate Post-Training
    Quantization for Generative Pre-trained Transformers", 2022.
    """
    groups, depth = layer.found.shape[1:]
    x = layer.learned.transpose(1, 0, 2).astype(np.float64, order="C")
    x -= x.mean(axis=1, keepdims=True)
    hessian = x.transpose(0, 2, 1) @ x
    wanted = layer.exact().reshape(groups, -1, depth) * weights.power.reshape(groups, -1, 1)
    order = np.argsort(-np.diagonal(hessian, axis1=1, axis2=2), axis=1, kind="stable")
    hessian = np.take_along_axis(np.take_along_axis(hessian, order[:, :, None], 1), order[:, None, :], 2)
    rounded = _in_order(np.take_along_axis(wanted, order[:, None, :], 2), hessian)
    found = np.empty_like(rounded)
    np.put_along_axis(found, np.broadcast_to(order[:, None, :], rounded.shape), rounded, 2)
    return layer.with_bias(replace(weights, w=found.astype(np.int8).reshape(weights.w.shape)), layer.bias)


BLOCK = 32
DAMPING = 0.01
"""Share of the mean squared input that is added to that of every input, so that the Hessian can be inverted."""


def _in_order(wanted: Array, hessian: Array) -> Array:
    """int8 weights (groups, Co, K) for the Hessians (groups, K, K), column after column.

    Columns after a block are corrected for all its errors at once. The factor R of the inverse Hessian, R^T R, is
    the inverse of the Hessian's upper triangular factor U, U U^T.
    """
    depth = hessian.shape[-1]
    damping = DAMPING * np.trace(hessian, axis1=1, axis2=2) / depth + 1e-6
    damped = hessian + damping[:, None, None] * np.eye(depth)
    spread = _inverse(np.linalg.cholesky(damped[:, ::-1, ::-1])[:, ::-1, ::-1])
    left, rounded, errors = wanted.copy(), np.empty_like(wanted), np.empty_like(wanted)
    for start in range(0, depth, BLOCK):
        end = min(start + BLOCK, depth)
        columns = np.moveaxis(left[..., start:end], -1, 0).copy()  # (columns, groups, Co): each is contiguous
        factors = np.moveaxis(spread[:, start:end, start:end], 0, -1)[..., None].copy()
        for at, column in enumerate(columns):
            rounded[..., start + at] = whole = np.minimum(np.maximum(np.rint(column), -128), 127)
            errors[..., start + at] = error = (column - whole) / factors[at, at]
            columns[at + 1 :] -= error * factors[at, at + 1 :]
        left[..., end:] -= errors[..., start:end] @ spread[:, start:end, end:]
    return rounded


def _inverse(upper: Array) -> Array:
    """The inverses of upper triangular matrices (groups, K, K), by halves, in fewer products than of full ones."""
    half = upper.shape[-1] // 2
    if half < BLOCK:
        return np.linalg.inv(upper)
    found = np.zeros_like(upper)
    found[:, :half, :half] = first = _inverse(upper[:, :half, :half])
    found[:, half:, half:] = last = _inverse(upper[:, half:, half:])
    found[:, :half, half:] = -first @ upper[:, :half, half:] @ last
    return found


PROPOSALS: Mapping[str, Proposal] = {
    "bias by weights": bias_by_weights,
    "bias by results": bias_by_results,
    "rounding in turn": rounded_in_turn,
}
