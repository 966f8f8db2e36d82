"""Optimisation levels: proposals for a layer, and the judge that accepts them."""
