"""The page that explains an out-of-memory."""
