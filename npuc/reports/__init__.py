"""Reports of commands: summaries, tables, explanations, comparisons, sweeps."""
