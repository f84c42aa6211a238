"""CUDA's compiler for run time, NVRTC."""
