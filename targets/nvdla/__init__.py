"""NVDLA: nv_small, nv_large and nv_full (v1), from in-memory formats to register programs."""
