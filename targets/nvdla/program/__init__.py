"""From the integer graph to a program: lowering, artefact, report, and simulation."""
