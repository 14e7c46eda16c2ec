"""Training on several devices: torchrun starts one rank on each, and their records are joined into one run."""
