"""interop's operations as torch operators: for tensors that need gradients, and for torch's transforms and compilers.

`interop.matmul`, the elementwise functions and expressions come here by themselves when a tensor needs a gradient, or
is more than its memory: fake, wrapped by `torch.func`, distributed, seen by a dispatch mode. Importing this module
registers the operators, which a program needs that loads an exported one. `import interop` loads neither it nor torch.
"""

from interop.torch import _calls, _matmul_operator, _operators  # noqa: F401 - for their effect

__all__: list[str] = []
