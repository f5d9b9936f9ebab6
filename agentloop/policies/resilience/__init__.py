"""Interceptors that repeat, limit and cache calls of tools."""
