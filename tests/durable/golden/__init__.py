"""Files that an earlier agentloop wrote, and what has to be read in them."""
