"""Hostile shapes of text for everything that reads or shows text of others."""
