"""What a server of a language model takes, and how many it serves: arithmetic on its config, as vLLM does it."""
