"""Writes a recording in formats other programs read."""

from gpudash.telemetry.export.csv_table import CSV_COLUMNS, harmless
from gpudash.telemetry.export.writing import SUFFIXES, DataFormat, Heed, atomically, export

__all__ = ["CSV_COLUMNS", "SUFFIXES", "DataFormat", "Heed", "atomically", "export", "harmless"]
