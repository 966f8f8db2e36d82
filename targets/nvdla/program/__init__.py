"""From the integer graph to the program: lowering, artefact, report, and its simulation."""
