"""The simulated GPU: a torch device named ``sim`` whose arithmetic is done on the CPU and whose memory is a model.

Real code runs on it and real numbers come out, while allocated and reserved memory, out-of-memory errors and memory
snapshots are those of a GPU of a chosen capacity. It needs the standard library and torch only, from Python 3.9 on.
"""
