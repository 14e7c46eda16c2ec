"""How much memory a language model server needs and how many requests it serves, by its config, as in vLLM."""
