"""What NVDLA's units compute, as integer operators and as standard ONNX operators."""
