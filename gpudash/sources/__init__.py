"""Reads the machine through NVML and psutil, each on its own threads ("lanes")."""
