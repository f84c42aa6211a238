"""What `interop.Array` does in Python: its printing, and its ways to other memory. C++ calls it."""
