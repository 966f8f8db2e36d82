"""One scale per tensor, chosen jointly under the constraints of the operators."""
