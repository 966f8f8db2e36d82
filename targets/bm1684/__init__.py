"""BM1684: 64 NPUs that compute in fp32, programmed in C through the OKKernel interface."""
