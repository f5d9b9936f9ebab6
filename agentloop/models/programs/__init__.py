"""Programs that a model writes, and what runs them."""
