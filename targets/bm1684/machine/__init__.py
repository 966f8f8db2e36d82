"""The parameters of a BM1684, tensor layouts in local and system memory, and cycles of calls."""
