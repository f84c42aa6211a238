"""The variables of the code that a kernel is in, `__constant__`, `__device__` and `__managed__`: `Kernel.globals`."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from interop import _core
from interop._arguments import shown, type_name
from interop._convert import asarray
from interop._program import Program
from interop._streams import StreamLike

__all__ = ["Globals", "Variable"]


class Globals:
    """The variables of the code that a kernel is in, by their names in C++: ``kernel.globals["filter"]``.

    In brackets stands the name, with its namespaces where these are needed: ``"demo::filter"``. What is there is a
    `Variable`; an array that is assigned is written to it, as by `Variable.set`.

    Kernels share their variables if they are made of one file, given as a path, that has not changed, with the same
    options, and are no instances of templates: they are one program, as nvcc would make it. All kernels of a cubin, PTX
    or fatbin in a file do. Each other kernel has variables of its own: each instance of a template; each that is made
    of a text or of bytes, however often; each that was unpickled, with the initial values. What `returning` makes
    of a kernel shares that kernel's. Each device has variables of its own, but for those that are ``__managed__``.

    Raises
    ------
    TypeError
        The name is no str.
    KeyError
        There is no such variable, or it is not the only one of that name; the message lists those that there are, as
        far as the image says. It may show only when the variable is read or written.
    """

    def __init__(self, program: Program, label: str, kernel: str) -> None:
        self._program, self._label, self._kernel = program, label, kernel

    def __getitem__(self, name: str) -> Variable:
        """Return the variable of that name."""
        if not isinstance(name, str):
            raise TypeError(f"{self._label}.globals: the name is {type_name(name)}; accepted: a str")
        return Variable(self._program, f"{self._label}.globals[{shown(name)}]", self._kernel, name)

    def __setitem__(self, name: str, array: Any) -> None:
        """Write an array to the variable of that name."""
        self[name].set(array)

    __iter__ = None  # their names are known once the code is compiled, for one device
    __contains__ = None

    def __repr__(self) -> str:
        return f"<globals of {self._label}>"


class Variable:
    """A variable of a kernel's code, on every device: `Kernel.globals` has it.

    A write is queued, as a launch is, on the stream of the array's library. It waits for all launches before it of the
    kernels that share the variable, whatever stream they are on, and later launches wait for it; the host does not. So
    the order in Python is that on the GPU.

    In a capture into a CUDA graph the write is part of the graph, with the values that a host array had then. A graph's
    own launches are ordered by the stream that it is launched on alone: write on that stream, by ``stream=``, what it
    reads, or have it wait.
    """

    def __init__(self, program: Program, label: str, kernel: str, name: str) -> None:
        self._label, self._name = label, name
        program.check_variable(label, name)

        def find(architecture: str) -> tuple[_core.LoadedLibrary, str]:
            return program.variable(label, kernel, name, architecture)

        self._variable = _core.NamedVariable(label, find)

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return self._variable.byte_count(0)

    def set(self, array: Any, *, device: int | None = None, stream: StreamLike | None = None) -> None:
        """Write an array to the variable.

        Parameters
        ----------
        array : array
            Of any library, C-contiguous, with exactly as many bytes as the variable has. Its dtype is believed. A
            number has none; ``numpy.float32(2)`` does.
        device : int, optional
            Of a host array, the device whose variable is written: 0 by default. That of an array on a device is its
            own.
        stream : int or stream, optional
            Where the write is queued, in place of the current stream of the array's library; for host arrays, in place
            of a stream of this package. It is needed to be part of a capture.

        Raises
        ------
        TypeError
            `array` is no array, or `device` no int.
        ValueError
            `array` has more or fewer bytes, or is not C-contiguous; there is no such `device`, or it is not the
            array's; the stream is captured, and the array's is not part of the capture.
        KeyError
            There is no such variable.
        CudaError
            There is no GPU, the code does not compile, or CUDA fails.

        Examples
        --------
        >>> import interop
        >>> blur = interop.kernel(
        ...     "__constant__ float weights[3];"
        ...     "__global__ void blur(const float* x, float* y, int n) {"
        ...     "  for (int i = threadIdx.x + 1; i < n - 1; i += blockDim.x)"
        ...     "    y[i] = weights[0] * x[i - 1] + weights[1] * x[i] + weights[2] * x[i + 1];"
        ...     "}",
        ...     "blur",
        ...     grid=1,
        ... )
        >>> weights = blur.globals["weights"]
        >>> weights
        <variable interop.kernel('blur').globals['weights']>

        On a GPU, ``weights.set(numpy.array([0.25, 0.5, 0.25], "float32"))`` is for the launches after it.
        """
        number = None if device is None else self._device(device)
        if isinstance(array, np.generic):
            array = np.asarray(array)
        elif type(array).__name__ == "PyCapsule":  # which is used up by the first look at it
            array = asarray(array)
        self._variable.write(array, number, stream)

    def get(
        self,
        dtype: Any,
        shape: int | tuple[int, ...] | None = None,
        *,
        device: int = 0,
        stream: StreamLike | None = None,
    ) -> np.ndarray[Any, Any]:
        """Return a copy of the variable's value, once all launches before are done. The host waits for it.

        Parameters
        ----------
        dtype : dtype
            That of the elements, as NumPy has it: the compiled code does not say it.
        shape : int or tuple of int, optional
            That of the array; one dimension by default.
        device : int, optional
            The device whose variable is read.
        stream : int or stream, optional
            Where the copy is queued, in place of a stream of this package.

        Returns
        -------
        numpy.ndarray
            An array of its own.

        Raises
        ------
        TypeError
            `dtype` is none, or `device` no int.
        ValueError
            The variable's bytes are no such array; there is no such `device`; `stream` is being captured.
        KeyError
            There is no such variable.
        CudaError
            There is no GPU, the code does not compile, or CUDA fails.
        """
        wanted = np.dtype(dtype)
        number = self._device(device)
        values = self._variable.read(number, stream)
        sizes = (-1,) if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
        bytes_of_shape = len(values) if shape is None else math.prod(sizes) * wanted.itemsize
        if wanted.itemsize == 0 or len(values) % wanted.itemsize or bytes_of_shape != len(values):
            of_shape = "" if shape is None else f" of shape {sizes}"
            raise ValueError(
                f"{self._label}: {wanted}{of_shape} is asked for, and the variable has {len(values)} bytes; accepted: "
                "a dtype and a shape of as many"
            )
        return np.frombuffer(values, wanted).reshape(sizes)

    def _device(self, device: Any) -> int:
        try:
            return operator.index(device)
        except TypeError:
            raise TypeError(f"{self._label}: device is {type_name(device)}; accepted: an int") from None

    def __repr__(self) -> str:
        return f"<variable {self._label}>"
