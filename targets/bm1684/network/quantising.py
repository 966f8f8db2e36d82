"""Quantisation for BM1684: the nodes that become integer, and the search by accuracy level."""

from __future__ import annotations

from npuc.ir import Graph, Node
from npuc.passes.scales import RescaleCoarseOperands
from npuc.pipeline import run_passes
from npuc.quantize.calibration.histograms import source
from npuc.quantize.improvement.borders import best_bordered
from npuc.quantize.improvement.levels import LEVELS
from npuc.quantize.improvement.search import Recipe, Trial, TrialNetwork, best_weights
from npuc.quantize.scales.constraints import integer_nodes
from npuc.quantize.scales.model_scales import only_of_inputs
from npuc.quantize.scales.results import calibrated
from npuc.quantize.scales.zero_points import ZeroPoints
from npuc.quantize.table import expect_machine
from npuc.samples.loading import Samples
from npuc.target import Options
from npuc.targets.bm1684.network import fixed
from npuc.targets.bm1684.network.limits import IMAGES
from npuc.targets.bm1684.quantisation.builder import quantise
from npuc.targets.bm1684.quantisation.layers import ONE_SHIFT
from npuc.targets.bm1684.quantisation.operators import UNSIGNED as UNSIGNED_ZERO
from npuc.targets.bm1684.quantisation.rescale_at_limits import RescaleAtLimits
from npuc.targets.bm1684.quantisation.steps import constraints

FEWEST = 32
"""The least steps of a tensor in a Concat, otherwise it is rescaled for this: a rescaling takes few cycles."""
UNSIGNED = ZeroPoints(lambda _node, _anyway: True, ())
"""Every layer can read unsigned maps, such as results of ReLUs."""


def integer(graph: Graph) -> tuple[Node, ...]:
    """The nodes that run in 8 bits."""
    return integer_nodes(graph, lambda node: node.op in fixed.OPERATORS and fixed.refusal(graph, node) is None)


def network(graph: Graph, samples: Samples, options: Options) -> tuple[TrialNetwork, tuple[Trial, ...]]:
    """The integer network, and the trials that were made to improve it.

    A model with its own scales keeps them where the zero point is 0 or -128.
    """
    level = LEVELS[options.level]
    method = options.method or level.method
    find = source(options.histograms, synthetic=samples.synthetic)
    nodes = integer(graph)
    table = expect_machine(options.scales_in, zeros=(0, UNSIGNED_ZERO))
    given, found = calibrated(find, graph, samples, nodes, table)
    one = options.one_scale
    recipe = Recipe(
        integer, quantise, ONE_SHIFT, UNSIGNED, equalises=not one, one_step=True, histograms=find, given=given
    )
    if not given or only_of_inputs(graph):
        copies = RescaleCoarseOperands(
            found, integer, lambda each, some, free: constraints(each, some, free, given), IMAGES, FEWEST
        )
        graph = run_passes(graph, (copies, RescaleAtLimits(found, integer, IMAGES)))
        return best_bordered(graph, recipe, samples, level, options.method, found)
    made = TrialNetwork(graph, nodes, found, {}, quantise(graph, nodes, found, method, given), ONE_SHIFT)
    return (made, ()) if samples.synthetic else best_weights(made, recipe, samples, level)
