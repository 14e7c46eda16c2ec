"""The simulated GPUs in the place of CUDA's: for programs that say "cuda" where no CUDA is.

Numbers are the CPU's, memory is the card's, and every device that the program sees is called ``cuda``. Open first:
`gpudash.simulator.as_cuda.answering`.
"""
