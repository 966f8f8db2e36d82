"""The network before planning: NVDLA's passes, operator support, and quantisation."""
