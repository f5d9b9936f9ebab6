"""One agent on every provider: only the model string changes.

`python examples/every_provider.py anthropic:claude-sonnet-4-5 ollama:qwen3` calls these models; without arguments, the
program lists the providers with their wire formats and the environment variables of their keys.
"""

from __future__ import annotations

import sys

from agentloop import AgentLoop, AgentLoopError, tool
from agentloop.models import PRESETS


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def ask(model: str) -> str:
    try:
        loop = AgentLoop.for_model(model, tools=[add], max_steps=5, timeout=60)
        return loop.run_sync("What is 17 + 25?")
    except AgentLoopError as error:
        # A missing key, a refused request, a limit: each is one sentence.
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    for model in sys.argv[1:]:
        print(f"{model}: {ask(model)}")
    if not sys.argv[1:]:
        for name, preset in PRESETS.items():
            print(f"{name:18} {preset.wire_format:20} {preset.key_variable or 'no key'}")
