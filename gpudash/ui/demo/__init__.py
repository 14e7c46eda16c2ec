"""The demo in the window: the presenter's bar, what it points at, and what puts both into a window."""
