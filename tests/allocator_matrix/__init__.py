"""What a dry run predicts against what torch's own allocator does on CUDA, over a matrix of configurations.

``configurations`` says which, ``models`` and ``program`` what each of them runs, ``measuring`` runs them on CUDA,
``predicting`` on sizes alone, ``drift`` says where the two part, and ``expected`` keeps what CUDA
came to, for each version of torch.
"""
