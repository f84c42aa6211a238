"""What operations are, whoever computes them: dtypes, scalars, gelu."""
