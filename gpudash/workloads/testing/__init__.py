"""Budgets for GPU memory in tests: the pytest plug-in, and the devices that tests run on."""
