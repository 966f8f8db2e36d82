"""The configurations of NVDLA, its registers, and programs as sequences of register writes."""
