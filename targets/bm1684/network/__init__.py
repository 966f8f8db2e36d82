"""The network before lowering: passes, and what BM1684 runs."""
