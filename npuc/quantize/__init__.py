"""Quantisation: from a float graph and calibration data to an integer graph.

calibration  value ranges of every tensor                 data -> Histogram per tensor
scales       one scale per tensor, constraints solved     Histogram -> scale per tensor
arithmetic   integer weights, tables, accumulator bounds  float constants, scales -> integer constants
network      the integer graph (build) and its layers     float graph + scales -> Graph
improvement  better variants, judged on held-out samples  Graph -> Graph
"""
