"""Programs that call tools."""
