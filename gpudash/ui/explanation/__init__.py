"""The page that explains a full memory."""
