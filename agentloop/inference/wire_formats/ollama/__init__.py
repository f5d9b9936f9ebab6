"""Ollama's own chat API, beside the one of Chat Completions that it also speaks."""
