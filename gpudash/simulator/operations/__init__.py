"""What operations do and take on the simulated device."""
