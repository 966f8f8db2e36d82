"""Reports of commands: summaries, tables, explanations, comparisons, sweeps; as text and as HTML."""
