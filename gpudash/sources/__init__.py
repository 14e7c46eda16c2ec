"""Reading the machine: NVML and psutil, each on lanes of their own."""
