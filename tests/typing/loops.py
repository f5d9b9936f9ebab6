"""The types of loops, of their outputs and of their states."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, assert_type

from agentloop import AgentLoop, AgentState, CanInfer, Interceptor, Message, SqliteJournal, ToolCallingDriver, from_json
from agentloop.errors import ExecutionError, ExecutionSuspended, JournalError
from agentloop.loop.event_stream import EventStream, TextStream
from agentloop.loop.sync import SyncEventStream, SyncTextStream
from agentloop.values import Decision, InferenceOptions
from agentloop.values.event import Event


@dataclass
class Weather:
    """A final answer."""

    celsius: float


class Place(TypedDict):
    """A final answer as a dict."""

    name: str


def the_output_type_is_the_parameter(driver: ToolCallingDriver, model: CanInfer) -> None:
    """A loop has the type of its answers, and without an output type it is text."""
    assert_type(AgentLoop(driver), AgentLoop[str])
    assert_type(AgentLoop(driver, output_type=None), AgentLoop[str])
    assert_type(AgentLoop(driver, output_type=Weather), AgentLoop[Weather])
    assert_type(AgentLoop(driver, output_type=list[Weather]), AgentLoop[list[Weather]])
    assert_type(AgentLoop(driver, output_type=Place), AgentLoop[Place])
    assert_type(AgentLoop(driver, [], max_steps=3, system_prompt="Be brief."), AgentLoop[str])
    assert_type(AgentLoop.for_model(model), AgentLoop[str])
    assert_type(AgentLoop.for_model("openai:gpt-5", output_type=Weather), AgentLoop[Weather])
    assert_type(AgentLoop.for_model(model, output_type=list[int], max_steps=None), AgentLoop[list[int]])
    assert_type(AgentLoop.for_model(model, options={"temperature": 0, "stop": "END"}), AgentLoop[str])
    assert_type(AgentLoop.for_model(model, options=InferenceOptions(seed=3)), AgentLoop[str])
    assert_type(ToolCallingDriver.for_model("ollama:m", options={"seed": 3}).options, InferenceOptions)
    assert_type(AgentLoop.from_file("agent.toml", options={"seed": 3}), AgentLoop[Any])
    assert_type(AgentLoop.from_file("agent.toml"), AgentLoop[Any])
    assert_type(AgentLoop.from_file(Path("agent.toml"), output_type=Weather), AgentLoop[Weather])


def unions_and_schemas_are_annotated(driver: ToolCallingDriver, schema: Mapping[str, object]) -> None:
    """What is no class says its type by an annotation."""
    either: AgentLoop[int | str] = AgentLoop(driver, output_type=int | str)
    assert_type(either.run_sync("go"), int | str)
    listed: AgentLoop[dict[str, object]] = AgentLoop(driver, output_type=schema)
    assert_type(listed.run_sync("go"), dict[str, object])
    model: AgentLoop[int | None] = AgentLoop.for_model("ollama:qwen3", output_type=int | None)
    assert_type(model.run_sync("go"), int | None)
    assert_type(AgentLoop(driver, output_type=schema), AgentLoop[Any])


def changed_copies_keep_the_type(loop: AgentLoop[Weather], journal: SqliteJournal, interceptor: Interceptor) -> None:
    """A copy has the type, or that of its own `output_type`."""
    assert_type(loop.replace(tools=[]), AgentLoop[Weather])
    assert_type(loop.with_interceptors(interceptor), AgentLoop[Weather])
    assert_type(loop.replace(journal=journal, max_steps=3, system_prompt="Go."), AgentLoop[Weather])
    assert_type(loop.replace(output_type=Place), AgentLoop[Place])
    assert_type(loop.replace(output_type=None), AgentLoop[str])
    assert_type(AgentLoop.from_file("agent.toml").replace(output_type=Weather), AgentLoop[Weather])


async def outputs_and_states_have_the_type(loop: AgentLoop[Weather], decisions: Mapping[str, Decision]) -> None:
    """`run` returns the output, everything else states and streams of the loop's type."""
    assert_type(await loop.run("go"), Weather)
    assert_type(await loop.run(Message.user("go"), dependencies=object(), execution_id="run"), Weather)
    state = await loop.execute("go")
    assert_type(state, AgentState[Weather])
    assert_type(state.output, Weather)
    assert_type(state.raise_for_status(), AgentState[Weather])
    assert_type(state.final_text, str | None)
    assert_type(await loop.resume(state, decisions), AgentState[Weather])
    assert_type(await loop.recover("run"), AgentState[Weather])
    assert_type(await loop.execute(state.with_message("And tomorrow?")), AgentState[Weather])
    assert_type(loop.iterate("go"), AsyncGenerator[AgentState[Weather], None])
    async with loop as entered:
        assert_type(entered, AgentLoop[Weather])


async def streams_have_the_type(loop: AgentLoop[Weather]) -> None:
    """Events are events, texts are texts, and both know the output."""
    events = loop.stream("go")
    assert_type(events, EventStream[Weather])
    async for event in events:
        assert_type(event, Event)
    assert_type(events.state, AgentState[Weather] | None)
    texts = loop.stream_text("go")
    assert_type(texts, TextStream[Weather])
    async for text in texts:
        assert_type(text, str)
    assert_type(texts.output, Weather)


def the_twins_have_the_same_types(loop: AgentLoop[Weather], decisions: Mapping[str, Decision]) -> None:
    """Without an event loop the types are the same."""
    assert_type(loop.run_sync("go"), Weather)
    assert_type(loop.execute_sync("go"), AgentState[Weather])
    assert_type(loop.iterate_sync("go"), Iterator[AgentState[Weather]])
    assert_type(loop.resume_sync("run", decisions), AgentState[Weather])
    assert_type(loop.recover_sync("run"), AgentState[Weather])
    events, texts = loop.stream_sync("go"), loop.stream_text_sync("go")
    assert_type(events, SyncEventStream[Weather])
    assert_type(next(events), Event)
    assert_type(texts, SyncTextStream[Weather])
    assert_type((next(texts), texts.output), tuple[str, Weather])


def plain_names_are_of_any_type(loop: AgentLoop, state: AgentState) -> None:
    """Annotations without a parameter take every loop and every state."""
    assert_type(loop, AgentLoop[Any])
    assert_type(loop.run_sync("go"), Any)
    assert_type(state.output, Any)
    typed: AgentState[Weather] = state
    assert_type(typed.output, Weather)


def takes_wider(loop: AgentLoop[int], state: AgentState[int], plain: AgentLoop) -> None:
    """Take a loop and a state of whole numbers, and a loop of anything."""


def a_loop_of_a_subclass_is_a_loop_of_the_class(loop: AgentLoop[bool], state: AgentState[bool]) -> None:
    """Loops and states are covariant: they only give outputs."""
    takes_wider(loop, state, loop)


def errors_have_their_state(loop: AgentLoop[Weather]) -> None:
    """The errors of executions carry a state, not just an object."""
    try:
        loop.run_sync("go")
    except ExecutionSuspended as suspended:
        assert_type(suspended.state, AgentState[Any])
        assert_type(loop.resume_sync(suspended.state, {}), AgentState[Weather])
    except ExecutionError as error:
        assert_type(error.state.step_count, int)
    except JournalError as error:
        assert_type(error.state, AgentState[Any] | None)


def stored_states_are_read_back(data: bytes) -> None:
    """A stored state is one of any type; the loop that continues it knows the type."""
    assert_type(from_json(data, AgentState).execution_id, str)
