"""ONNX models as files: taken apart, rewritten, and written."""
