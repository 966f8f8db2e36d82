"""Comparison of a program with onnxruntime: outputs, layers, the first difference, accuracy."""
