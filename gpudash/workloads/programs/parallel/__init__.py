"""Training on several devices: torchrun starts one rank on each, and their records come into one run."""
