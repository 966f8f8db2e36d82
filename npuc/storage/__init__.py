"""What npuc reads from and writes to disk: samples, machine files, typed records, waveforms."""
