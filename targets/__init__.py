"""The machines npuc compiles for, one package each; TARGETS names them without importing any."""
