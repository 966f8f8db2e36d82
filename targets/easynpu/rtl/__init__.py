"""EasyNPU in hardware: a synthesizable core that runs compiled programs (Amaranth; extra `npuc[rtl]`)."""
