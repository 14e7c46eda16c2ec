"""What the program's torch tells of its devices' memory; loaded when it has imported torch."""
