"""Agents that are described in files."""
