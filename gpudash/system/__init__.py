"""What every room needs of the operating system: files that are written whole, processes that end together."""
