"""Which blocks were alive at any moment of a trace, their purpose, and their addresses."""
