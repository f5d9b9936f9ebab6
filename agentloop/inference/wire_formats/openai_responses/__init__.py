"""OpenAI's Responses API, used without state on the provider's side."""
