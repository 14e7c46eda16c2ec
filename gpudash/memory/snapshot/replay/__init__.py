"""A recorded trace run again on another card or with other settings."""
