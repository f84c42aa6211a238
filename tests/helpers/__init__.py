"""What the tests share. `tests/conftest.py` makes this folder importable as `helpers`, whatever the import mode."""
