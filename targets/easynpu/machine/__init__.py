"""The machine of the EasyNPU document: its numbers, instruction words, memories and cycles."""
