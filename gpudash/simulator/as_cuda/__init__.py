"""The simulated GPUs in place of CUDA's, for programs that use "cuda" on a machine without it.

The CPU computes the numbers, the memory is that of the card, and every device the program sees is called ``cuda``.
Start reading in `gpudash.simulator.as_cuda.answering`.
"""
