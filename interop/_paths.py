"""Where the C++ headers and the CMake package are installed."""

from __future__ import annotations

from pathlib import Path

from interop import _core
from interop._arguments import named

__all__ = ["get_cmake_dir", "get_include"]

_INSTALLED = Path(_core.__file__).parent  # in an editable install the Python files are elsewhere


@named("interop.get_include")
def get_include() -> str:
    """Return the folder of the C++ headers: ``<interop/call.h>`` and ``<dlpack/dlpack.h>``.

    Returns
    -------
    str
        An absolute path, for ``-I``. CMake needs `get_cmake_dir` instead.

    Examples
    --------
    >>> import interop
    >>> interop.get_include()  # doctest: +ELLIPSIS
    '...include'
    """
    return str(_INSTALLED / "include")


@named("interop.get_cmake_dir")
def get_cmake_dir() -> str:
    """Return the folder of the CMake package, for ``find_package(interop)``.

    Returns
    -------
    str
        An absolute path, for ``-Dinterop_DIR=``. scikit-build-core finds the package without it.

    Examples
    --------
    >>> import interop
    >>> interop.get_cmake_dir()  # doctest: +ELLIPSIS
    '...cmake'
    """
    return str(_INSTALLED / "cmake")
