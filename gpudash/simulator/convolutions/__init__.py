"""The workspaces of cuDNN's convolutions: queried from the user's own library, otherwise bounded."""
