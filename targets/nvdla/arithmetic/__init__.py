"""The arithmetic of NVDLA's units, as integer operators and as standard ONNX operators."""
