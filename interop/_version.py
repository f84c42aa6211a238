"""The version of the Python half, checked against that of the compiled half at import."""

__version__ = "0.1.0"
