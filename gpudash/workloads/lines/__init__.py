"""A few lines of PyTorch, run one by one on a simulated card: which blocks of memory each makes, keeps and drops."""
