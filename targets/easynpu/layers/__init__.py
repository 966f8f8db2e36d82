"""Single layers: which nodes the PE array runs, and as which words."""
