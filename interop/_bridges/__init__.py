"""Functions of one library in the other: torch and JAX, for `interop.bridge`."""
