"""NVDLA's configurations and registers, and programs as sequences of register writes."""
