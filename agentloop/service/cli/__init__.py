"""The command line; it needs the extra `cli`."""
