"""The law suite of tool-calling modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from agentloop.contracts.can_use_mode import CanUseMode, ModeLike
from agentloop.drivers.structural_mode import as_mode
from agentloop.loop.agent_loop import AgentLoop
from agentloop.models.text_calls.reader import DEFAULT_FORMATS
from agentloop.testing.clocks import CountingIds, ManualClock, run_in_virtual_time
from agentloop.testing.driver_kit import find_unpaired
from agentloop.testing.inference_kit import SAMPLE_OPTIONS, has_options
from agentloop.testing.kit import Kit, checked_factory, require
from agentloop.testing.samples import FIDELITY, NESTED, RICH_REQUESTS, VARIANTS, missing_marks, rich_requests
from agentloop.testing.scenario import Notation, Scenario, ScriptedTurn, valid_scenarios, write_tags
from agentloop.testing.toys import Ledger, toy_tools
from agentloop.tools.decorator import collect_tools
from agentloop.values.inference import InferenceRequest, InferenceResponse, iter_deltas
from agentloop.values.messages import Message
from agentloop.values.parts import Text
from agentloop.values.serialization import to_json, to_plain
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolExecution, ToolSpec, ToolStatus

_SCENARIOS = valid_scenarios()
_BOUND_TOOLS = (collect_tools(toy_tools(Ledger())), collect_tools(toy_tools(Ledger())[:1]))
"""The tools of two executions."""
_FRAGMENTS = (
    "{",
    "}",
    "[",
    '"',
    "<tool_call>",
    "</tool_call>",
    '{"tool": "echo"',
    "```json\n",
    "Action: echo\n",
    "\\",
    "é",
)
_TEXTS = st.text(max_size=40) | st.lists(st.sampled_from(_FRAGMENTS), max_size=12).map("".join)


class ModeKit(Kit):
    """Checks a tool-calling mode against the laws of `CanUseMode`, by itself; `EquivalenceKit` checks a driver with it.

    Args:
        factory: creates the mode, or an object with the methods of one.
        notation: how a model writes its turns in the mode, one of `NOTATIONS` or a function of your own.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (2, 3, 8, 9, 12, 13, 17, 31, 33, 39, FIDELITY)

    def __init__(self, factory: Callable[[], ModeLike], notation: Notation, *, examples: int = 100) -> None:
        super().__init__(examples=examples)
        make = checked_factory(factory)
        self.factory: Callable[[], CanUseMode] = lambda: as_mode(make())
        self.notation = notation

    def _for_requests(self, check: Callable[[Sequence[InferenceRequest]], None]) -> None:
        """Run a check on the requests of one execution."""
        self.for_all(_SCENARIOS, lambda scenario: check(run_in_virtual_time(_requests_of(scenario))))

    def law_2(self) -> None:
        """No translated request holds a call without its execution."""

        def holds(sizes: list[int]) -> None:
            numbers = iter(range(sum(sizes)))
            groups = [[next(numbers) for _ in range(size)] for size in sizes]
            messages = [Message.user("Go."), *[Message.assistant(*map(_exchange, group)) for group in groups]]
            rendered = self.factory().render_request(InferenceRequest(tuple(messages)))
            text = to_json(rendered).decode()
            marks = [number for group in groups for number in group]
            bare = [mark for mark in marks if f"call of {mark}." in text and f"result of {mark}." not in text]
            require(2, not bare, f"the translated request has calls without their results: {text:.2000}")
            unpaired = find_unpaired(rendered.messages)
            require(2, not unpaired, f"an encoded request holds the unpaired calls {unpaired}")

        self.for_all(st.lists(st.integers(1, 3), max_size=4), holds)

    def law_3(self) -> None:
        """Translating changes neither the request nor the response."""

        def holds(scenario: Scenario) -> None:
            mode, request = self.factory(), run_in_virtual_time(_requests_of(scenario))[-1]
            response = self.notation(scenario.turns[0], 0)
            before = to_json(request), to_json(response)
            mode.render_request(request)
            mode.parse_response(response, request)
            require(3, (to_json(request), to_json(response)) == before, "a request or a response was changed")

        self.for_all(_SCENARIOS, holds)

    def law_8(self) -> None:
        """The same request and the same response are translated in the same way each time."""

        def holds(scenario: Scenario) -> None:
            used, request = self.factory(), run_in_virtual_time(_requests_of(scenario))[-1]
            response = self.notation(scenario.turns[0], 0)
            modes = (used, used, self.factory())
            rendered = [to_json(mode.render_request(request)) for mode in modes]
            require(8, len(set(rendered)) == 1, "the same request is translated in two ways")
            parsed = [to_json(mode.parse_response(response, request)) for mode in modes]
            require(8, len(set(parsed)) == 1, "the same response is parsed in two ways")

        self.for_all(_SCENARIOS, holds)

    def law_9(self) -> None:
        """A mode that serves two executions translates for each as it would alone, whatever tools a copy of it is bound to."""

        def holds(scenario: Scenario) -> None:
            request = run_in_virtual_time(_requests_of(scenario))[-1]
            requests = (request, InferenceRequest((Message.user("Go on."),), "Work.", request.tools[:1]))
            response, shared = self.notation(scenario.turns[0], 0), self.factory()
            together = [shared.with_tools(tools) for tools in _BOUND_TOOLS]
            alone = [self.factory().with_tools(tools) for tools in _BOUND_TOOLS]
            rendered = [_render_twice(modes, requests) for modes in (together, alone)]
            require(9, rendered[0] == rendered[1], "a request is translated in another way beside those of others")
            parsed = [_parse(modes, requests, response) for modes in (together, alone)]
            require(9, parsed[0] == parsed[1], "a response is parsed in another way beside those to others")

        self.for_all(_SCENARIOS, holds)
        self.for_each(VARIANTS, self._require_independence)
        turns = [ScriptedTurn(answer) for answer in ("Ask Ada.", "Ask Bob.")]
        turns += [ScriptedTurn(calls=(ToolCall("a", "look").with_arguments({"place": place}),)) for place in ("a", "b")]
        shared, request = self.factory(), _look_request()
        for turn in (*turns, *turns[::-1]):
            response = self.notation(turn, 0)
            alone = to_json(self.factory().parse_response(response, request))
            same = to_json(shared.parse_response(response, request)) == alone
            require(9, same, f"after other responses, {turn!r:.300} is parsed in another way")

    def _require_independence(self, name: str) -> None:
        """Check that a request is translated as it would be alone, after one that differs from it in one entry."""
        requests = [change(_look_request()) for change in VARIANTS[name]]
        for order in (requests, requests[::-1]):
            shared = self.factory()
            for request in order:
                same = to_json(shared.render_request(request)) == to_json(self.factory().render_request(request))
                require(
                    9, same, f"after a request that differs from it only in {name}, one is translated in another way"
                )

    def law_12(self) -> None:
        """The calls, the answers and the tokens of a model are those that it wrote, and valid calls are found valid."""

        def holds(scenario: Scenario) -> None:
            mode, request = self.factory(), run_in_virtual_time(_requests_of(scenario))[0]
            for index, turn in enumerate(scenario.turns):
                response = self.notation(turn, index)
                parsed = mode.parse_response(response, request)
                facts = [(each.usage, each.model, each.id) for each in (response, parsed)]
                require(12, facts[0] == facts[1], f"usage, model and id of the response are {facts[0]}, not {facts[1]}")
                expected = [(call.name, call.arguments) for call in turn.calls]
                actual = [(call.name, call.arguments) for call in parsed.tool_calls]
                require(12, actual == expected, f"the model made the calls {expected}, and {actual} are found")
                if not turn.calls:
                    require(12, parsed.text == turn.text, f"the model answered {turn.text!r}, not {parsed.text!r}")
                invalid = [call for call in turn.calls if not mode.validate(call, request.tools).is_valid]
                require(12, not invalid, f"these calls are valid, and refused: {invalid}")

        self.for_all(_SCENARIOS, holds)
        self.for_each(_RICH_TURNS, self._require_turn)

    def _require_turn(self, turn: ScriptedTurn) -> None:
        """Check that calls with arguments of every kind, and long answers, are those that the model wrote."""
        parsed = self.factory().parse_response(self.notation(turn, 0), _look_request())
        expected = [(call.name, call.arguments) for call in turn.calls]
        actual = [(call.name, call.arguments) for call in parsed.tool_calls]
        require(12, actual == expected, f"the model made the calls {expected!r:.1000}, and {actual!r:.1000} are found")
        same = bool(turn.calls) or parsed.text == turn.text
        require(12, same, f"the model answered {turn.text!r:.500}, not {parsed.text!r:.500}")

    def law_13(self) -> None:
        """Within an epoch, the translation of a request extends that of the request before it."""

        def holds(requests: Sequence[InferenceRequest]) -> None:
            mode = self.factory()
            for earlier, later in pairwise([mode.render_request(request) for request in requests]):
                same = (earlier.tools, earlier.system_prompt) == (later.tools, later.system_prompt)
                require(13, same, "the tools or the system prompt of the translated request changed")
                kept = later.messages[: len(earlier.messages)] == earlier.messages
                require(13, kept, "messages of the translated request changed")

        self._for_requests(holds)

    def law_17(self) -> None:
        """A call of a tool that was not offered, or with arguments that do not fit, is found invalid."""
        request = _look_request()
        calls = [
            ToolCall("a", "another").with_arguments({"place": "here"}),
            ToolCall("a", "look").with_arguments({}),
            ToolCall("a", "look").with_arguments({"place": ["here"]}),
            ToolCall("a", "look", '{"place": '),
        ]
        for call in calls:
            found = self.factory().validate(call, request.tools)
            require(17, not found.is_valid, f"the call {call!r} does not fit the tools, and is found valid")

    def law_31(self) -> None:
        """No text of a model makes the mode raise, in one piece or as a stream."""

        def holds(text: str) -> None:
            mode = self.factory()
            request = run_in_virtual_time(_requests_of(Scenario()))[0]
            response = InferenceResponse((Text(text),))
            parsed = mode.parse_response(response, request)
            for call in (*parsed.tool_calls, ToolCall("", text, text)):
                mode.validate(call, request.tools)
            stream = mode.stream(request)
            for delta in iter_deltas(response):
                stream.feed(delta)
            stream.close(parsed)

        # A mode looks closest at its own notation, so that a call of it which lacks a piece is where it fails first.
        written = _SCENARIOS.map(lambda scenario: self.notation(scenario.turns[0], 0).text)
        damaged = st.builds(_without_piece, written, st.integers(0, 300), st.integers(1, 300))
        self.for_all(_TEXTS | damaged, holds)

    def law_33(self) -> None:
        """The translation of a request has its options."""
        mode, request = self.factory(), run_in_virtual_time(_requests_of(Scenario()))[0]
        for options in SAMPLE_OPTIONS:
            rendered = mode.render_request(request.with_options(options)).options
            kept = has_options(rendered, options)
            require(33, kept, f"a request has {to_plain(options)}, and its translation {to_plain(rendered)}")

    def law_39(self) -> None:
        """A call that a model has begun to write is a call, a rejection with its reason, or a quotation that is told; none is left out."""
        request = run_in_virtual_time(_requests_of(Scenario()))[0]

        def parse(text: str) -> InferenceResponse:
            return self.factory().parse_response(InferenceResponse((Text(text),)), request)

        def holds(example: tuple[Scenario, int]) -> None:
            scenario, cut = example
            for turn in scenario.turns:
                if turn.calls:
                    self._require_all_calls(turn, request, parse, cut)
                    self._require_no_run(turn, request)

        for opening in dict.fromkeys(opening for each in DEFAULT_FORMATS for opening, _ in each.tags):
            for text in (f"{opening}echo", f"One writes `{opening}` before a call."):
                require(39, _is_told(parse(text)), f"{text!r} is a plain answer")
        self.for_all(st.tuples(_SCENARIOS, st.integers(0, 300)), holds)

    def law_44(self) -> None:
        """The translation of a request has everything that is in the request."""

        def holds(name: str) -> None:
            request = rich_requests(_look_request())[name]
            missing = missing_marks(request, to_json(self.factory().render_request(request)))
            said = f"of a request with {name}, the translation lacks {' '.join(missing)}"
            require(FIDELITY, not missing, said)

        self.for_each(RICH_REQUESTS, holds)

    def _require_all_calls(
        self, turn: ScriptedTurn, request: InferenceRequest, parse: Callable[[str], InferenceResponse], cut: int
    ) -> None:
        """Require that every call of a turn is accounted for, also when the last one is cut off behind the name of its tool."""
        whole = self.notation(turn, 0)
        parsed = self.factory().parse_response(whole, request)
        require(39, _accounts_for(parsed, len(turn.calls)), f"of {len(turn.calls)} calls, some are left out: {parsed}")
        written = whole.text
        begun = written.rfind(turn.calls[-1].name) + len(turn.calls[-1].name)
        # In a notation without text, such as that of a provider, no call can be cut off.
        if whole.tool_calls or begun >= len(written):
            return
        damaged = written[: begun + cut % (len(written) - begun)]
        parsed = parse(damaged)
        is_known = _accounts_for(parsed, len(turn.calls)) or (len(turn.calls) == 1 and _is_told(parsed))
        require(39, is_known, f"the last call of {damaged!r} is left out: {parsed}")

    def _require_no_run(self, turn: ScriptedTurn, request: InferenceRequest) -> None:
        """Require that calls which an answer shows as an example do not run, and that somebody is told about them."""
        shown = ScriptedTurn(calls=turn.calls[:1])
        example = self.notation(shown, 0).text or write_tags(shown, 0).text
        answer = f"To use the tool, one writes for example:\n\n```\n{example}\n```\n\nThat is all there is to it."
        response = self.notation(ScriptedTurn(answer), 0)
        parsed = self.factory().parse_response(response, request)
        running = [call for call in parsed.tool_calls if not call.rejection]
        require(39, not running, f"a call that is an example runs: {running}")
        # In a notation of answers, the answer is known to be one, whatever stands in it.
        is_plain = response.text == answer and _has_token(example)
        require(39, not is_plain or _is_told(parsed), f"nobody is told of the call in {answer!r}")


def _look_request() -> InferenceRequest:
    """Return a request with one tool, which needs a place and takes what else it is given."""
    schema = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
    return InferenceRequest((Message.user("Go."),), "Play.", (ToolSpec("look", "Look.", schema),))


def _looks(*arguments: Mapping[str, Any]) -> ScriptedTurn:
    calls = [ToolCall("", "look").with_arguments({"place": "here", **each}) for each in arguments]
    return ScriptedTurn(calls=tuple(calls))


_RICH_TURNS = (
    _looks(NESTED),
    _looks({}, {}),
    _looks({"text": f"{'x' * 20_000} end"}, {"place": "größe \U0001f600"}, NESTED),
    ScriptedTurn("Größe “10” \U0001f600,\nand that is all."),
    ScriptedTurn(f"{'y' * 20_000} end"),
)


def _accounts_for(parsed: InferenceResponse, count: int) -> bool:
    """Return whether a parsed response has this number of calls, or says that a part of it cannot be read."""
    is_refused = parsed.problem or parsed.exceeded or any(call.rejection for call in parsed.tool_calls)
    return len(parsed.tool_calls) + len(parsed.quoted_calls) >= count or bool(is_refused)


def _is_told(parsed: InferenceResponse) -> bool:
    """Return whether somebody is told that a response has a call: by a call, a rejection or a quotation."""
    return bool(parsed.tool_calls or parsed.problem or parsed.exceeded or parsed.quoted_calls or parsed.quoted_texts)


def _has_token(text: str) -> bool:
    return any(opening in text for each in DEFAULT_FORMATS for opening, _ in each.tags)


def _render_twice(modes: Sequence[CanUseMode], requests: Sequence[InferenceRequest]) -> list[bytes]:
    """Return the translation of each request by its mode, and all again."""
    return [to_json(mode.render_request(request)) for mode, request in [*zip(modes, requests, strict=True)] * 2]


def _parse(
    modes: Sequence[CanUseMode], requests: Sequence[InferenceRequest], response: InferenceResponse
) -> list[bytes]:
    """Return what a response to each request is in its mode."""
    return [to_json(mode.parse_response(response, request)) for mode, request in zip(modes, requests, strict=True)]


def _without_piece(text: str, begin: int, length: int) -> str:
    """Return a text without some of its characters, such as those at its end."""
    begin %= len(text) + 1
    return text[:begin] + text[begin + length :]


def _exchange(number: int) -> ToolExchange:
    """Return a call and its result, each with a mark."""
    call = ToolCall(f"id-{number}", "echo").with_arguments({"text": f"call of {number}."})
    value, key = f"result of {number}.", f"execution/1/{number}"
    at = ManualClock().now()
    return ToolExchange(call, ToolExecution.of(call, ToolStatus.SUCCEEDED, key=key, id=key, at=at, value=value))


async def _requests_of(scenario: Scenario) -> Sequence[InferenceRequest]:
    """Return the neutral requests of an execution, before each of its steps."""
    tools = collect_tools(toy_tools(Ledger()))
    loop = AgentLoop(scenario.driver(), tools, clock=ManualClock(), ids=CountingIds())
    requests = [InferenceRequest((), "Play.", tools.specs)]
    if not scenario.turns:
        return requests
    states = [state async for state in loop.iterate(scenario.question)]
    return [*requests, *[InferenceRequest(state.messages, "Play.", tools.specs) for state in states[:-1]]]
