"""The network before lowering: passes, and the operators that BM1684 supports."""
