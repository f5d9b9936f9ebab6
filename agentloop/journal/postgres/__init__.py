"""A journal in PostgreSQL."""
