"""EasyNPU in hardware: a synthesizable core that runs the compiled programs (Amaranth; extra `npuc[rtl]`)."""
