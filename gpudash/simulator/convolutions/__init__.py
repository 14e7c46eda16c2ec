"""What cuDNN takes for itself while it convolves: asked of the user's own library, else bounded."""
