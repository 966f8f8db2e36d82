"""The network before planning: the passes of EasyNPU, and how it is quantised."""
