"""Levels of optimisation: proposals for a layer, and the judge that accepts them."""
