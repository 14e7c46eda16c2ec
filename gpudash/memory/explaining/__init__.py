"""From the state of a device's memory to its explanation and the ways out."""
