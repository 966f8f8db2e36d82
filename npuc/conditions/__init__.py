"""Conditions under which an operator may run on a machine, shared by all targets."""
