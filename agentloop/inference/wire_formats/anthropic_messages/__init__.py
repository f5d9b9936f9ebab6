"""Anthropic's Messages, and the services that speak it."""
