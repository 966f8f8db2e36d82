"""Host regions: what the target does not run becomes ONNX models inside the artefact, which the host runs.

planning: the division of a model into parts; partition: which node runs where; graphs: the parts as graphs and as
ONNX; assembling: a program from its parts; artefact: their description in the manifest; running: runs the parts
one after the other; composite: the target of such a program; reporting: combined costs; in_c: the regions as C.
compilation: from a model to a program.
"""
