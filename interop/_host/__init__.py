"""Operations on host arrays, by NumPy."""
