"""A memory snapshot in a tab: first the cause, then what filled the memory, who allocated it, and when."""
