"""The network before planning: the passes of NVDLA, what it supports, and how it is quantised."""
