"""Kernels on npuc's model of the OKKernel interface, and on the vendor's."""
