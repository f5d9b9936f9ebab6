"""A bot of a team: each thread is a session, and each user has memories of their own, whatever the thread."""

from __future__ import annotations

import asyncio
import sys
from tempfile import TemporaryDirectory

from agentloop import AgentLoop, ScriptedInference, SqliteJournal, ToolCall
from agentloop.loop import Identity
from agentloop.toolkits.memory import memory
from agentloop.values import InferenceRequest, InferenceResponse


def answer(request: InferenceRequest) -> InferenceResponse | str:
    last = request.messages[-1]
    if last.role != "user":
        return f"{request.system_prompt} {last.exchanges[0].execution.text}"
    name, arguments = ("remember", '{"text": "tea"}') if "remember" in last.text else ("recall", '{"query": "tea"}')
    return InferenceResponse((ToolCall("1", name, arguments),))


async def main(folder: str) -> None:
    loop = AgentLoop.for_model(
        ScriptedInference(*[answer] * 6),
        system_prompt=lambda _, request: f"You help {request.principal}.",
        tools=[memory(f"{folder}/memories.db", by="principal")],
        journal=SqliteJournal(f"{folder}/bot.db"),
    )
    ada, bob = Identity("ada", tenant="acme"), Identity("bob", tenant="acme")
    # Two messages at once in one thread are answered one after the other.
    said = [("general", ada, "Please remember tea."), ("lunch", ada, "What do I like?"), ("lunch", bob, "And I?")]
    for thread, user, text in said:
        print(await loop.run(text, session=thread, principal=user))


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        asyncio.run(main(sys.argv[1] if sys.argv[1:] else name))
