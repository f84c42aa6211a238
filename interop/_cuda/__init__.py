"""CUDA's own libraries: where they are, and the compiler NVRTC."""
