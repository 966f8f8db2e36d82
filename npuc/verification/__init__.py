"""A program against onnxruntime: outputs, layers, the first difference, accuracy."""
