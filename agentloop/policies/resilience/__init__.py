"""What repeats, limits and caches calls of tools."""
