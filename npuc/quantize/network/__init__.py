"""The integer graph and its layers."""
