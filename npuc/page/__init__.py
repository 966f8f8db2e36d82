"""The HTML report: one self-contained file, without network, in light and dark and on paper."""
