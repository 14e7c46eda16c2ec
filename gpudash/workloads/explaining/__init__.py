"""Who allocated what, on a CUDA device and on a simulated one."""
