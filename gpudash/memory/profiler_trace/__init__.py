"""A trace of PyTorch's profiler: its operators, the memory they take, and when; read from the file that it exports."""
