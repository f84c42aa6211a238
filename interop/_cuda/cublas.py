"""Where cuBLASLt may be found: asked of cuda-pathfinder, only when the compiled half first needs it."""

from __future__ import annotations

__all__ = ["find_paths"]


def find_paths() -> list[str]:
    """Return the paths of libcublasLt to try, best first; empty if only the loader's own search is left."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        # cublasLt by itself: loading cublas first would bind it to whatever cublasLt the loader finds.
        path = load_nvidia_dynamic_lib("cublasLt").abs_path
    except (DynamicLibNotFoundError, RuntimeError, OSError):
        return []
    return [path] if path else []
