"""interop's operations as torch operators: for autograd, torch's transforms and its compiler.

`interop.matmul` and its kin come here for tensors that are more than their memory. `import interop` loads neither this
package nor torch.
"""
