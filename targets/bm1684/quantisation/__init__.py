"""The integer network of BM1684: layers of 8 bits as the firmware library computes them."""
