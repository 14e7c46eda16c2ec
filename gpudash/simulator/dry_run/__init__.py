"""Running code without numbers, and recording what it asks of the allocator."""
