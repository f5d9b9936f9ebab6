"""OpenAI's Chat Completions, and the many services that speak it."""
