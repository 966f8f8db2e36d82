"""What commands report: summaries, tables, explanations, comparisons, sweeps."""
