"""A memory snapshot in a tab: the cause first, then what filled the memory, who allocated it, and when."""
