"""agentloop: the loop of an LLM agent, with strict contracts between its parts.

The names here are those that most programs need; each is loaded when it is first used. The rest is imported from its room:
`agentloop.values`, `.contracts`, `.events`, `.tools`, `.interception`, `.compilers`, `.executors`, `.drivers` and `.loop` are the kernel; `.models`, `.policies`,
`.toolkits`, `.mcp`, `.durable`, `.service.server`, `.service.cluster` and `.testing` build on it. Errors come from `agentloop.errors`.
"""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
__version__ = "0.1.0"
__all__ += ["__version__"]
