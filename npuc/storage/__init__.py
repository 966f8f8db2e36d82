"""Files: written whole or not at all, mapped into memory; checked records, machine files, waveforms."""
