"""What npuc reads from disk and writes to it: samples, machine files, typed records, waveforms."""
