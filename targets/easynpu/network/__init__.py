"""The network before planning: EasyNPU's passes and its quantisation."""
