"""Lowering of a float graph to steps of OKK calls on buffers that have no addresses yet."""
