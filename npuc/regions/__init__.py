"""Host regions: what the target does not run becomes ONNX models inside the artefact, which the host runs.

partition: which node runs where; graphs: the parts as graphs and as ONNX; compiling: from a model to a program of
several parts; artefact: their description in the manifest; running: runs the parts one after the other; composite:
the target of such a program; reporting: combined costs; checking: which nodes of a model a target does not run.
"""
