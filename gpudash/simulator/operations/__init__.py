"""What operations compute and allocate on the simulated device."""
