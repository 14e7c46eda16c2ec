"""The main window: its documents, menus, command palette, and dialogs."""
