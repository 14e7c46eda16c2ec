"""How much memory a language model server needs and how many requests it serves, computed from the config as in
vLLM."""
