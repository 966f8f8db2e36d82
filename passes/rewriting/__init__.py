"""Tools for rewriting graphs: rules, patterns, and computations in other layouts."""
