"""A process that sends messages to sessions of a journal at once: `python -m tests.durable.session_process PATH NAME SESSIONS MESSAGES`.

It prints a line for each message that its model is asked about, and for each answer.
"""

from __future__ import annotations

import asyncio
import sys

from agentloop import AgentLoop, ScriptedInference
from agentloop.durable import open_journal
from agentloop.values import InferenceRequest


def tell(*words: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{' '.join(words)}\n")
    sys.stdout.flush()


def answer(request: InferenceRequest) -> str:
    """Answer the last message of a conversation."""
    text = request.messages[-1].text
    tell("asked", text)
    return f"re: {text}"


async def main(path: str, name: str, sessions: int, messages: int) -> None:
    """Send each message in a task of its own, all at once."""
    loop = AgentLoop.for_model(ScriptedInference(answer), journal=open_journal(path))

    async def send(number: int) -> None:
        tell("answered", await loop.run(f"{name}-{number}", session=f"s{number % sessions}"))

    tell("ready")
    await asyncio.gather(*[send(number) for number in range(messages)])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
