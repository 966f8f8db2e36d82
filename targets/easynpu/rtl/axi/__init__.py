"""The core behind AXI."""
