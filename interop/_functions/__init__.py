"""What users' kernels and C functions declare, and the arrays that their calls take and make."""
