"""Operators: what a signature says of the arrays of a call, what an operator is made of, and which are defined."""
