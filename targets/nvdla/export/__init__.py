"""Programs in other forms: NVDLA's test programs, memory images, and C."""
