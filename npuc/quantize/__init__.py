"""Quantisation: from a float graph and calibration data to an integer graph.

calibration  what values every tensor takes        data -> Histogram per tensor
scales       one scale per tensor, constraints solved   Histogram -> scale per tensor
integer      the operators of the integer graph, and what each means exactly
tables       functions as piecewise-linear tables  function, two scales -> values a table must give
build        the integer graph itself               float graph + scales -> Graph
"""
