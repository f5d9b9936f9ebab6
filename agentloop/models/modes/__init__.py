"""The modes in which models call tools."""
