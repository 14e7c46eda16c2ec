"""From the state of a device's memory to an explanation and remedies."""
