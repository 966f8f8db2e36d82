"""How a pass rewrites a graph: rules, patterns, and the same computation in another layout."""
