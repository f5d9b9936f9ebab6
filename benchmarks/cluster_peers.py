# ruff: noqa: I002, PLC0415
# The peers are loaded by the process that measures them, and LangGraph evaluates annotations.
"""The work of `cluster.py` and `journal_runs.py` on DBOS steps, LangGraph with its savers and pydantic-ai, in a Python environment of their own.

Reads one JSON list per line, `[executions, turns]`, and answers each with the seconds that they took, one execution after the other,
and with those of CPU, as a list.
`cluster_peers.py SUBJECT URL`; the subjects are `dbos`, `langgraph`, `pydantic-ai` and `dbos-worker`, which takes runs out of the queue instead.
"""

import asyncio
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

FOUND = "a text of some length, as results of tools have it, " * 6
QUEUE = "runs"
SQLITE = "sqlite:///"
Run = Callable[[int], Awaitable[None]]


def infer(number: int, turns: int) -> dict[str, Any]:
    """Return what the model answers, which is what the model of `journal_runs.py` answers."""
    if number >= turns:
        return {"text": "done"}
    return {
        "text": "Let me look that up.",
        "call": {"id": f"call_{number}", "name": "look_up", "args": {"number": number}},
        "usage": [1_000, 20],
    }


def look_up(number: int) -> dict[str, Any]:
    """Return what the tool finds."""
    return {"number": number, "found": FOUND}


def define_dbos(url: str) -> Callable[[int], Any]:
    """Launch DBOS and return the workflow: each inference and each call is a step, as its documentation recommends."""
    from dbos import DBOS

    async def step(function: Callable[..., Any], *values: object) -> dict[str, Any]:
        async def body() -> dict[str, Any]:
            return function(*values)  # type: ignore[no-any-return]

        return await DBOS.run_step_async({"name": function.__name__}, body)

    @DBOS.workflow(name="run")
    async def run(turns: int) -> str:
        for number in range(turns + 1):
            answer = await step(infer, number, turns)
            if "call" in answer:
                await step(look_up, answer["call"]["args"]["number"])
        return "done"

    configure_dbos(url)
    DBOS.launch()
    return run


def configure_dbos(url: str) -> None:
    """Configure DBOS in this process."""
    from dbos import DBOS

    DBOS(
        config={
            "name": "peers",
            "system_database_url": url,
            "executor_id": uuid.uuid4().hex,
            "application_version": "1",
            "log_level": "ERROR",
        }
    )


@asynccontextmanager
async def pydantic_ai(url: str) -> AsyncIterator[Run]:
    """Run executions on pydantic-ai: with an address as DBOS workflows, whose requests are steps, and whose tool is one."""
    from dbos import DBOS
    from pydantic_ai import Agent
    from pydantic_ai.durable_exec.dbos import DBOSDurability
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai.usage import RequestUsage, UsageLimits

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turns = int(str(info.instructions))
        answer = infer(sum(message.kind == "response" for message in messages), turns)
        parts: list[Any] = [TextPart(answer["text"])]
        if "call" in answer:
            parts.append(ToolCallPart("look_up", answer["call"]["args"], tool_call_id=answer["call"]["id"]))
        return ModelResponse(parts=parts, usage=RequestUsage(input_tokens=1_000, output_tokens=20))

    durable = [DBOSDurability()] if url else []
    agent = Agent(FunctionModel(model), name="peer", deps_type=int, capabilities=durable)

    agent.instructions(lambda context: str(context.deps))

    async def find(number: int) -> dict[str, Any]:
        """Look something up."""
        return look_up(number)

    find.__name__ = "look_up"
    agent.tool_plain(DBOS.step(name="look_up")(find) if url else find)

    async def answer(turns: int) -> int:
        result = await agent.run("go", deps=turns, usage_limits=UsageLimits(request_limit=None))
        return len(result.all_messages())

    ask = DBOS.workflow(name="run")(answer) if url else answer
    if url:
        configure_dbos(url)
        DBOS.launch()

    async def run(turns: int) -> None:
        assert await ask(turns) == 2 * turns + 2

    yield run


@asynccontextmanager
async def dbos_alone(url: str) -> AsyncIterator[Run]:
    """Run executions on DBOS in this process."""
    workflow = define_dbos(url)

    async def run(turns: int) -> None:
        assert await workflow(turns) == "done"

    yield run


@asynccontextmanager
async def saver_at(url: str) -> AsyncIterator[Any]:
    """Open LangGraph's saver for SQLite or Postgres; None without an address."""
    if not url:
        yield None
        return
    if url.startswith(SQLITE):
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        opened: Any = AsyncSqliteSaver.from_conn_string(url.removeprefix(SQLITE))
    else:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        opened = AsyncPostgresSaver.from_conn_string(url)
    async with opened as saver:
        await saver.setup()
        yield saver


@asynccontextmanager
async def langgraph(url: str) -> AsyncIterator[Run]:
    """Run executions on LangGraph, which saves after each node, before the next begins."""
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.runnables import RunnableConfig
    from langgraph.graph import END, START, MessagesState, StateGraph

    async def model(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        number = sum(message.type == "ai" for message in state["messages"])
        answer = infer(number, config["configurable"]["turns"])
        calls = [answer["call"]] if "call" in answer else []
        return {"messages": [AIMessage(answer["text"], tool_calls=calls)]}

    async def tools(state: MessagesState) -> dict[str, Any]:
        call = state["messages"][-1].tool_calls[0]
        found = json.dumps(look_up(call["args"]["number"]))
        return {"messages": [ToolMessage(found, tool_call_id=call["id"], name=call["name"])]}

    def route(state: MessagesState) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    graph = StateGraph(MessagesState).add_node("model", model).add_node("tools", tools)
    graph = (
        graph.add_edge(START, "model").add_conditional_edges("model", route, ["tools", END]).add_edge("tools", "model")
    )
    async with saver_at(url) as saver:
        compiled = graph.compile(checkpointer=saver)

        async def run(turns: int) -> None:
            config = {
                "configurable": {"thread_id": uuid.uuid4().hex, "turns": turns},
                "recursion_limit": 10 * turns + 100,
            }
            durability = {"durability": "sync"} if saver is not None else {}
            state = await compiled.ainvoke({"messages": [HumanMessage("go")]}, config, **durability)
            assert len(state["messages"]) == 2 * turns + 2

        yield run


async def answer_lines(subject: str, url: str) -> None:
    """Run what the lines ask for."""
    async with {"dbos": dbos_alone, "langgraph": langgraph, "pydantic-ai": pydantic_ai}[subject](url) as run:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            executions, turns = json.loads(line)
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(executions):
                await run(turns)
            print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)


def work(url: str) -> None:
    """Take runs out of the queue until the standard input ends."""
    from dbos import DBOS

    define_dbos(url)
    DBOS.register_queue(QUEUE, worker_concurrency=8, polling_interval_sec=0.05, on_conflict="always_update")
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "dbos-worker":
        work(sys.argv[2])
    else:
        asyncio.run(answer_lines(*sys.argv[1:]))
