"""Integer operators of machines that requantise by shifts: int8 tensors, 32-bit accumulators, tables."""
