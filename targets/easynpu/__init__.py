"""EasyNPU: a 16-PE int8 array that executes one 128-bit instruction per layer."""
