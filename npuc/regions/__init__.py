"""Host regions: what the target does not run, the host does, as models of its own inside the artefact.

partition: which node runs where; graphs: the parts as graphs and as ONNX; compiling: from a model to a program of
several parts; artefact: what its manifest says of them; running: its parts one after the other; composite: the
target of such a program; reporting: what the parts cost together; checking: what of a model a target does not run.
"""
