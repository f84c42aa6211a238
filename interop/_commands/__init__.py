"""The `interop` command."""
