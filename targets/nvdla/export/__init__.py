"""A program in other forms: NVDLA's test programs, and C."""
