"""interop's operations on JAX arrays: for concrete ones, and inside `jax.jit`, `jax.grad` and JAX's other transforms.

`interop.matmul` comes here when its arrays are JAX arrays. On CUDA the product is an FFI call: our kernels on XLA's
stream, in XLA's memory. On the CPU it is JAX's own operation. Kernels and C functions of users' own are FFI calls on
both. Functions of other libraries are called by `interop.jax.call`, while XLA enqueues. `import interop` does not load
this module or JAX, and loading it starts no backend.
"""

from interop.jax import _functions as _functions  # an exported program may call one before any is traced here
from interop.jax._call import call
from interop.jax._matmul import matmul
from interop.jax._primitive import disabled_checks
from interop.jax._raised import exception_of

__all__ = ["call", "disabled_checks", "exception_of", "matmul"]
