"""The law "Display at decision": in process, in a terminal, and in a browser."""
