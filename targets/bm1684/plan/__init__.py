"""Planning: addresses of buffers, and transfers in parallel with computations."""
