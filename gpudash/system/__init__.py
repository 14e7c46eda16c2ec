"""Operating system services for every room: files written as a whole, processes that end together."""
