"""The integer network of BM1684: 8-bit layers as the firmware library computes them."""
