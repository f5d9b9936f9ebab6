"""Decisions of the ReAct pattern, and how they are read: from JSON objects, and from labeled lines (`Thought:`, `Action:`, `Final Answer:`)."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, Final, Literal, TypeVar

from attrs import evolve, field, fields_dict, frozen

from agentloop.contracts.can_use_mode import ANSWER_DROPPED, OBSERVATION_CUT
from agentloop.errors import AgentLoopError, InvalidArguments, MalformedArguments, NotJson
from agentloop.models.modes.calls import (
    SCRATCHPAD,
    answer_text,
    finish_with_calls,
    is_bare_answer,
    is_requested_form,
    text_of,
)
from agentloop.models.modes.strict import without_nulls
from agentloop.models.modes.written_calls import (
    RUN_EMBEDDED,
    RunEmbedded,
    describe_excess,
    select_calls,
    split_reasoning,
    strip_fence,
)
from agentloop.models.text_calls import CallDraft, CallGrade, OfferedTools, read_calls
from agentloop.models.text_calls.arguments import ResolveOptions, convert_untyped, resolve_call
from agentloop.models.text_calls.grades import Segment, grade_calls
from agentloop.models.text_calls.literal_reader import LiteralReader
from agentloop.models.text_calls.literals import REPEATED_KEY, ParsedObject
from agentloop.models.text_calls.offered_tools import types_of
from agentloop.models.text_calls.results import ParsedCall, ParseResult
from agentloop.tools.conversion import problems, structure
from agentloop.tools.fields import fields_of
from agentloop.tools.schema import SchemaBuilder, object_schema
from agentloop.tools.validation import SchemaValidator
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.inference import InferenceRequest, InferenceResponse, ResponseFormat
from agentloop.values.json import (
    EMPTY_OBJECT,
    JsonObject,
    duplicate_key,
    format_json,
    freeze,
    freeze_object,
    parse_json,
    thaw,
)
from agentloop.values.messages import Message, Part, ResponsePart
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolSpec
from agentloop.values.value import one_of

NOTATION = "react"
"""The wire format of the provider part that stores the extra fields of a decision."""

WRAPPED = "decision"
"""The key of the object around a decision, where a provider enforces its schema."""

D = TypeVar("D", bound="ReActDecision")


class InvalidDecision(AgentLoopError):
    """A decision lacks fields of its class or has them in another form; the message states which and where."""


@frozen
class ReActCall:
    """One call of a decision.

    Attributes:
        tool: the name of the tool.
        args: the arguments.
    """

    tool: str
    args: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)


@frozen
class ReActDecision:
    """A thought, followed by tool calls or the answer.

    A subclass may add fields of types with a JSON form. The prompt describes them to the model, their values are stored with
    the message, and `decision_of` restores them. Decorate a subclass with `attrs.frozen(kw_only=True)`.

    Attributes:
        thought: the model's reasoning.
        type: `tool` for calls, `final` for the answer.
        tool: the name of the first tool to call; empty for an answer.
        args: the arguments of that call.
        answer: the answer; empty for calls.
        calls: all calls if there are several; else empty.
    """

    thought: str = ""
    type: Literal["tool", "final"] = "final"
    tool: str = ""
    args: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    answer: str = ""
    calls: tuple[ReActCall, ...] = field(default=(), converter=tuple[ReActCall, ...])

    @property
    def all_calls(self) -> tuple[ReActCall, ...]:
        """The calls, whether there is one or several."""
        if self.calls:
            return self.calls
        return (ReActCall(self.tool, self.args),) if self.tool else ()


def decision_of(message: Message | Sequence[Part | ResponsePart], decision_type: type[D]) -> D:
    """Return the decision that an assistant's message or a response represents, whichever driver created it.

    Args:
        message: the message, or the parts of a message or response.
        decision_type: the class of the decision.

    Raises:
        InvalidDecision: extra fields of the class are missing or have another form.
    """
    parts = message.parts if isinstance(message, Message) else message
    calls = [_react_call(part) for part in parts if isinstance(part, ToolCall | ToolExchange)]
    first = calls[0] if calls else ReActCall("")
    return decision_type(
        thought="\n\n".join([part.text for part in parts if isinstance(part, Reasoning) and part.text]),
        type="tool" if calls else "final",
        tool=first.tool,
        args=first.args,
        answer="".join([part.text for part in parts if isinstance(part, Text)]) if not calls else "",
        calls=calls if len(calls) > 1 else (),
        **_structure_extra_fields(extra_values(parts), decision_type),
    )


def _react_call(part: ToolCall | ToolExchange) -> ReActCall:
    call = part if isinstance(part, ToolCall) else part.call
    try:
        return ReActCall(call.name, call.arguments)
    except MalformedArguments:  # the validation of the call reports them
        return ReActCall(call.name)


def extra_values(parts: Sequence[Part | ResponsePart]) -> dict[str, Any]:
    """Return the values of a decision's extra fields that parts contain, as plain JSON data."""
    values: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, ProviderPart) and part.wire_format == NOTATION and isinstance(part.payload, Mapping):
            values.update(thaw(part.payload))
    return values


def _structure_extra_fields(values: dict[str, Any], decision_type: type[ReActDecision]) -> dict[str, Any]:
    """Convert the values of extra fields to the fields' types."""
    if decision_type is ReActDecision:
        return {}
    hashable_type: Any = decision_type  # mypy does not know that classes can be hashed
    try:
        _validator(hashable_type).validate(values)
    except InvalidArguments as error:
        raise InvalidDecision(str(error)) from error
    structured: dict[str, Any] = {}
    for item in fields_of(decision_type) or ():
        if item.name in values:
            try:
                structured[item.name] = structure(values[item.name], item.hint)
            except Exception as error:  # a class of the user may raise anything
                details = "; ".join(f"at {path}: {text}" for path, text in problems(error, f"$.{item.name}"))
                raise InvalidDecision(details) from error
    return structured


@lru_cache(maxsize=64)
def _validator(decision_type: Any) -> SchemaValidator:
    return SchemaValidator(freeze_object(extra_fields_schema(decision_type)), f"the schema of {decision_type.__name__}")


def extra_fields_schema(decision_type: type[ReActDecision]) -> Mapping[str, Any]:
    """Return the JSON Schema of the fields that a subclass adds: an object, with no properties if it adds none.

    Raises:
        ToolDefinitionError: the type of a field has no JSON form.
    """
    hashable_type: Any = decision_type  # mypy does not know that classes can be hashed
    return _extra_fields_schema(hashable_type)


@lru_cache(maxsize=64)
def _extra_fields_schema(decision_type: Any) -> Mapping[str, Any]:
    extra = [item for item in fields_of(decision_type) or () if item.name not in fields_dict(ReActDecision)]
    builder = SchemaBuilder()
    properties = {item.name: builder.schema(item.hint, f"{decision_type.__name__}.{item.name}") for item in extra}
    return builder.finish(object_schema(properties, [item.name for item in extra if item.required]))


def extra_field_names(decision_type: type[ReActDecision]) -> tuple[str, ...]:
    """Return the names of the fields that a subclass adds."""
    return tuple(extra_fields_schema(decision_type)["properties"]) if decision_type is not ReActDecision else ()


# How decisions are read

_ARGUMENTS_AS_TEXT = "arguments written as text"
_NULL_LEFT_OUT = "null left out"
_REPEATED: Final = "it contains the same decision twice; write each call once"


@frozen
class ParsedDecision:
    """A decision as it was parsed from a text.

    Attributes:
        thoughts: the parts of the reasoning, in order.
        calls: the calls.
        answer: the answer; None if there is none.
        extra: the values of extra fields of the decision's class.
        problem: why there is no decision, in words for the model; empty if there is one.
        chooses_tool: whether it states that it calls a tool, even if it names none.
        quoted: calls that the text only quotes.
        exceeded: the name of the bound that ended the parsing; empty if none did.
        continues: whether it is a scratchpad and nothing else, after which the model goes on thinking.
    """

    thoughts: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    answer: str | None = None
    extra: Mapping[str, Any] = field(factory=dict)
    problem: str = ""
    chooses_tool: bool = False
    quoted: tuple[ToolCall, ...] = ()
    exceeded: str = ""
    continues: bool = False

    def apply_to(self, response: InferenceResponse) -> InferenceResponse:
        """Return a model's response with its text replaced by the decision; without one, with the problem."""
        if self.problem:
            return evolve(response, problem=self.problem, quoted_calls=self.quoted, exceeded=self.exceeded)
        parts: list[ResponsePart] = [part for part in response.parts if not isinstance(part, Text)]
        thought = "\n\n".join([thought for thought in self.thoughts if thought])
        if thought:
            parts.append(Reasoning(thought))
        if self.extra:
            try:
                parts.append(ProviderPart(NOTATION, freeze(self.extra)))
            except NotJson as error:
                return evolve(response, problem=str(error))
        parts.extend(self.calls)
        if self.answer and not self.calls:
            parts.append(Text(self.answer))
        # A decision for a tool may name none. The finish reason distinguishes it from an empty answer.
        reason = response.finish_reason
        return evolve(
            response,
            parts=parts,
            finish_reason=finish_with_calls(reason) if self.chooses_tool else reason,
            quoted_calls=self.quoted,
            wants_to_continue=self.continues,
        )


@frozen
class ReadingPolicy:
    """How decisions are read from text.

    Attributes:
        run_embedded: when calls in prose run.
        bounds: limits the length of texts that are read and the steps that it takes.
        begins_in_reasoning: whether a closing tag of reasoning without an opening one ends reasoning.
    """

    run_embedded: RunEmbedded = field(default="pure", validator=one_of(RUN_EMBEDDED))
    bounds: Bounds = DEFAULT_BOUNDS
    begins_in_reasoning: bool = True


DEFAULT_POLICY: Final = ReadingPolicy()


def _with_repair(calls: Sequence[ToolCall], repair: str) -> tuple[ToolCall, ...]:
    return tuple([evolve(call, repairs=(*call.repairs, repair)) for call in calls])


# Decisions as JSON objects

_MAX_OBJECTS: Final = 50  # bounds the time for a text with many braces
_NULL: Final = "null"
_SYNONYMS: Final = {
    "thought": ("thought", "thoughts", "reasoning", SCRATCHPAD),
    "type": ("type",),
    "tool": ("tool", "tool_name", "action", "name"),
    "args": ("args", "arguments", "action_input", "tool_input", "parameters"),
    "answer": ("answer", "final_answer"),
    "calls": ("calls", "tool_calls"),
}
"""The keys that models use for each field of a decision; the first is the one in the prompt."""

_ALL_KEYS: Final = frozenset(key for keys in _SYNONYMS.values() for key in keys)
# An object with none of these keys is data, or the description of a tool.
_DECISION_KEYS: Final = _ALL_KEYS - {"name", "type", "parameters"}


def read_json_decision(
    text: str,
    request: InferenceRequest,
    decision_type: type[ReActDecision],
    policy: ReadingPolicy = DEFAULT_POLICY,
) -> ParsedDecision:
    """Parse the JSON decisions in a text, bare, fenced, in a list or within other words; no text raises.

    Several decisions that call tools are one decision with all their calls. Everything from an `Observation:` behind a decision
    on is cut off, since the model invented it.
    """
    if len(text) > policy.bounds.text_characters:
        return _exceeding("text_characters", policy)
    thoughts, rest = split_reasoning(text)
    if is_bare_answer(strip_fence(rest), request.response_format, _ALL_KEYS):
        return ParsedDecision(thoughts, answer=strip_fence(rest))
    found = _find_objects(rest)
    if not found.objects:
        return ParsedDecision(problem=found.failure)
    try:
        parsed = [_parse_object(item.data, request, decision_type, item.repairs) for item in found.objects]
    except (ValueError, TypeError, RecursionError) as error:
        return ParsedDecision(problem=f"the JSON object cannot be used: {error}")
    graded = list(zip(parsed, found.grades, strict=True))
    quoted = tuple([call for decision, grade in graded if grade is CallGrade.QUOTED for call in decision.calls])
    # A quoted answer is still an answer: it has no effect.
    meant = [pair for pair in graded if pair[1] is not CallGrade.QUOTED or not pair[0].calls]
    if not meant:
        return ParsedDecision(problem="it only quotes a decision among other text", quoted=quoted)
    decision = _join_decisions([decision for decision, _ in meant])
    if decision.calls:
        grades = [grade for item, grade in meant for _ in item.calls]
        selected = select_calls(
            decision.calls, grades, request.tools, run_embedded=policy.run_embedded, unread=found.failure
        )
        kept = _with_repair(selected.calls, OBSERVATION_CUT) if found.is_cut else selected.calls
        decision = evolve(decision, calls=kept)
    return evolve(decision, thoughts=(*thoughts, *decision.thoughts), quoted=quoted)


def is_json_decision(text: str) -> bool:
    """Whether a text is a JSON object with keys of a decision and nothing else, also if it cannot be used."""
    return CallGrade.PLAIN in _find_objects(split_reasoning(text)[1]).grades


def _exceeding(bound: str, policy: ReadingPolicy) -> ParsedDecision:
    return ParsedDecision(problem=describe_excess(bound, policy.bounds), exceeded=bound)


def _join_decisions(decisions: Sequence[ParsedDecision]) -> ParsedDecision:
    """Return one decision for all decisions of an answer: their calls if there are any, else the first."""
    problem = next((decision for decision in decisions if decision.problem), None)
    thinking = tuple([thought for decision in decisions if decision.continues for thought in decision.thoughts])
    if rest := [decision for decision in decisions if not decision.continues]:
        decisions = [evolve(rest[0], thoughts=(*thinking, *rest[0].thoughts)), *rest[1:]]
    first = next((decision for decision in decisions if decision.chooses_tool), decisions[0])
    if problem is not None or len(decisions) == 1 or not first.chooses_tool:
        return problem or first
    choosing = [decision for decision in decisions if decision.chooses_tool]
    if any(one.calls == other.calls for one, other in pairwise(choosing)):
        return ParsedDecision(problem=_REPEATED)
    calls = tuple([call for decision in choosing for call in decision.calls])
    if len(choosing) < len(decisions):
        calls = _with_repair(calls, ANSWER_DROPPED)
    return evolve(
        first,
        thoughts=tuple([thought for decision in choosing for thought in decision.thoughts]),
        calls=calls,
        extra={name: value for decision in choosing for name, value in decision.extra.items()},
    )


@frozen
class _Object:
    """A decision as it stands in a text.

    Attributes:
        data: the JSON object.
        repairs: the repairs that were necessary.
        start: offset of its first character.
        end: offset behind its last character.
    """

    data: dict[str, Any]
    repairs: tuple[str, ...] = ()
    start: int = 0
    end: int = 0


@frozen
class _Objects:
    """The decisions of a text.

    Attributes:
        objects: the decisions, in order.
        grades: for each of them, how it stands in the text.
        failure: why there is none, or why another object cannot be read; empty if there are decisions and nothing else.
        is_cut: whether the rest of the text was cut off, since the model invented an observation.
    """

    objects: tuple[_Object, ...] = ()
    grades: tuple[CallGrade, ...] = ()
    failure: str = ""
    is_cut: bool = False


def _find_objects(text: str) -> _Objects:
    """Return the objects of a text that are decisions."""
    bare = strip_fence(text)
    try:
        data = parse_json(bare)
        repairs = () if duplicate_key(bare) is None else (REPEATED_KEY,)
    except ValueError:
        return _find_objects_within(text)
    if isinstance(data, dict) and data.keys() == {WRAPPED} and isinstance(data[WRAPPED], dict):
        data = data[WRAPPED]
    items = data if isinstance(data, list) else [data]
    # Messages of a conversation are no decisions.
    if not all(isinstance(item, dict) and "role" not in item for item in items):
        return _find_objects_within(text)
    decisions = [_Object(item, repairs) for item in items if not _DECISION_KEYS.isdisjoint(item)]
    if len(decisions) == len(items) > 0:
        return _Objects(tuple(decisions), (CallGrade.PLAIN,) * len(decisions))
    keys = next((", ".join(item) for item in items if _DECISION_KEYS.isdisjoint(item)), "")
    return _Objects(failure=f"a JSON object has neither the key tool nor the key answer; it has {keys or 'no key'}")


def _find_objects_within(text: str) -> _Objects:
    position, failure, failed_at, unclosed_quotes = text.find("{"), "", 0, dict[str, int]()
    objects: list[_Object] = []
    failures = examined = 0
    # What was examined without a result is examined once more at most, so that the time is linear.
    while position >= 0 and failures < _MAX_OBJECTS and examined <= 2 * len(text):
        reader = LiteralReader(position, unclosed_quotes=unclosed_quotes)
        reader.advance(text, is_complete=True)
        examined += max(reader.reached, reader.position) - position
        if not isinstance(reader.value, ParsedObject):
            if not failure:
                failure, failed_at = f"the JSON object cannot be read: {reader.failure}", position
            failures += 1
            position = text.find("{", position + 1)
            continue
        if not _DECISION_KEYS.isdisjoint(reader.value):
            repairs = reader.repairs(position, reader.position)
            objects.append(_Object(reader.value, repairs, position, reader.position))
        position = text.find("{", reader.position)
    if not objects:
        return _Objects(failure=failure or "it contains no JSON object that is a decision")
    cut = _find_observation(text, objects)
    kept = tuple([item for item in objects if item.start < cut])
    segments: list[Segment] = []
    shown = 0
    for item in kept:
        segments += [Segment(shown, item.start), Segment(item.start, item.end, "call", 1)]
        shown = item.end
    segments.append(Segment(shown, cut))
    grades = tuple(grade_calls(text[:cut], segments))
    return _Objects(kept, grades, failure if failed_at < cut else "", is_cut=cut < len(text))


def _find_observation(text: str, objects: Sequence[_Object]) -> int:
    """Return where the first observation behind a decision begins; the length of the text if there is none."""
    spans = _Spans(objects)
    labels = (label for label in find_labels(text, start=objects[0].end) if label.name == OBSERVATION)
    return next((label.start for label in labels if not spans.contain(label.start)), len(text))


def _parse_object(
    data: dict[str, Any], request: InferenceRequest, decision_type: type[ReActDecision], repairs: Sequence[str]
) -> ParsedDecision:
    extra_names = extra_field_names(decision_type)
    # A field of the class takes precedence over a synonym of the same name.
    values = {
        key: _first_value(data, [name for name in names if name not in extra_names]) for key, names in _SYNONYMS.items()
    }
    thought = text_of(values["thought"]) if values["thought"] is not None else ""
    calls = _parse_calls(values, request.tools, repairs)
    if calls and REPEATED_KEY in repairs:
        return ParsedDecision(problem="a key occurs twice in a JSON object; write each key once")
    answer = _parse_answer(values["answer"], request.response_format)
    extra = _read_extra(data, decision_type)
    outcome = _tool_or_final(values["type"], calls, answer)
    if not outcome and isinstance(data.get(SCRATCHPAD), str) and not extra and values["type"] is None:
        return ParsedDecision((thought,), continues=True)
    if not outcome:
        return ParsedDecision(problem=f"its type is {text_of(values['type'])[:80]}; it is either 'tool' or 'final'")
    if outcome == "final":
        if answer is None and _is_null_answer(data, request.response_format):
            answer = _NULL
        return ParsedDecision((thought,), (), answer, extra)
    if answer:
        calls = _with_repair(calls, ANSWER_DROPPED)
    return ParsedDecision((thought,), calls, None, extra, chooses_tool=True)


def _read_extra(data: Mapping[str, Any], decision_type: type[ReActDecision]) -> dict[str, Any]:
    """Return the values of extra fields; one that is written as a text, where its schema takes none, is what the text says."""
    values = dict[str, Any]()
    for name, schema in extra_fields_schema(decision_type)["properties"].items():
        value = data.get(name)
        if value is not None:
            is_text = isinstance(value, str) and "string" not in types_of(schema)
            values[name] = convert_untyped(value, schema) if is_text else value
    return values


def _first_value(data: dict[str, Any], keys: Sequence[str]) -> Any:
    return next((data[key] for key in keys if data.get(key) is not None), None)


def _tool_or_final(value: Any, calls: Sequence[ToolCall], answer: str | None) -> str:
    """Return `tool` or `final`, derived from the content if the type is missing; empty if it cannot be derived."""
    if value in ("tool", "final"):
        return str(value)
    if calls:
        return "tool"
    return "final" if answer else ""


def _parse_calls(values: dict[str, Any], tools: Sequence[ToolSpec], repairs: Sequence[str]) -> tuple[ToolCall, ...]:
    items = values["calls"] if isinstance(values["calls"], list) else []
    for item in items:
        # The other calls must not run without it.
        if not isinstance(item, dict | None):
            raise TypeError(f"a call is an object with the keys tool and args, not {text_of(item)[:80]}")
    calls = [_parse_call(item, tools, repairs) for item in items if item is not None]
    if isinstance(values["tool"], str) and values["tool"]:
        single = _build_call(values["tool"], values["args"], tools, repairs)
        # Some models repeat the first call of the list outside of it.
        if not calls or (calls[0].name, calls[0].arguments_json) != (single.name, single.arguments_json):
            calls.insert(0, single)
    return tuple(calls)


def _parse_call(item: dict[str, Any], tools: Sequence[ToolSpec], repairs: Sequence[str]) -> ToolCall:
    name = _first_value(item, _SYNONYMS["tool"])
    return _build_call(name if isinstance(name, str) else "", _first_value(item, _SYNONYMS["args"]), tools, repairs)


def _build_call(name: str, arguments: Any, tools: Sequence[ToolSpec], repairs: Sequence[str]) -> ToolCall:
    """Return the call of a JSON decision; arguments that cannot be used are retained for the validation to reject."""
    offered = OfferedTools.of(tools)
    noted = list(repairs)
    # Some models write the arguments as JSON in a string, as in the API of OpenAI.
    if isinstance(arguments, str):
        text = arguments if arguments.strip() else "{}"
        try:
            arguments = parse_json(text)
            is_usable = duplicate_key(text) is None
        except ValueError:
            is_usable = False
        if not is_usable:
            return ToolCall("", offered.normalize_name(name), text, repairs=noted)
        noted.append(_ARGUMENTS_AS_TEXT)
    if not isinstance(arguments, dict | None):
        return ToolCall("", offered.normalize_name(name), format_json(arguments).decode(), repairs=noted)
    written = arguments or {}
    cleaned = without_nulls(written, offered.parameters(offered.normalize_name(name)))
    if cleaned != written:
        noted.append(_NULL_LEFT_OUT)
    draft = CallDraft(name, cleaned, 0, 0, repairs=tuple(noted))
    call = resolve_call(draft, offered, NOTATION, ResolveOptions())
    if isinstance(call, ParsedCall):
        return ToolCall("", call.name, call.arguments_json, repairs=call.repairs)
    return ToolCall("", offered.normalize_name(name), format_json(written).decode(), repairs=noted)


def _parse_answer(answer: Any, response_format: ResponseFormat | None) -> str | None:
    if answer is None:
        return None
    if response_format is not None and response_format.schema is not None:
        return answer_text(answer, response_format)
    return text_of(answer)


def _is_null_answer(data: Mapping[str, Any], response_format: ResponseFormat | None) -> bool:
    """Whether a final decision answers with the null that its answer may be."""
    return not data.keys().isdisjoint(_SYNONYMS["answer"]) and is_requested_form(None, response_format)


# Decisions as labeled lines

THOUGHT, ACTION, INPUT, OBSERVATION, ANSWER = "Thought", "Action", "Action Input", "Observation", "Final Answer"

# Models add list marks, emphasis and numbers: `**Action 1:** f`, and `Observation 1 (f):` as they are shown it. A block quote is not
# the model's own decision. Possessive quantifiers keep the time linear.
_LABEL_PATTERN: Final = (
    r"^[ \t]*+(?:[*_#]++[ \t]*+)?({})[ \t]*+(?>\d++(?>[ \t]*+\([^()\n]{{0,200}}+\))?)?[*_]*+[ \t]*+:[ \t]*+(?:\*\*|__)?"
)


@frozen
class LineLabel:
    """A label at the beginning of a line.

    Attributes:
        name: the label as in the prompt, or the name of an extra field.
        start: offset of the line's beginning.
        end: offset of the labeled content.
    """

    name: str
    start: int
    end: int


def label_of(name: str) -> str:
    """Return the label of an extra field."""
    return name.replace("_", " ").strip().capitalize()


def find_labels(text: str, extra_names: tuple[str, ...] = (), start: int = 0) -> Iterator[LineLabel]:
    """Return the labels of a text, in order.

    Args:
        text: the text.
        extra_names: the names of extra fields, whose labels are also searched for.
        start: where the search starts.
    """
    pattern, names = _label_pattern(extra_names)
    for match in pattern.finditer(text, start):
        yield LineLabel(names[match[1].lower()], match.start(), match.end())


def has_labels(text: str) -> bool:
    """Whether a text contains an action or a final answer as labeled lines."""
    return any(label.name in {ACTION, ANSWER} for label in find_labels(text))


@cache
def _label_pattern(extra_names: tuple[str, ...]) -> tuple[re.Pattern[str], Mapping[str, str]]:
    """Return a pattern for labels, and their names by lower-case label."""
    names = {name.lower(): name for name in (INPUT, ACTION, THOUGHT, OBSERVATION, ANSWER)}
    names |= {label_of(name).lower(): name for name in extra_names}
    pattern = _LABEL_PATTERN.format("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE), names


def read_text_decision(
    text: str,
    tools: Sequence[ToolSpec],
    decision_type: type[ReActDecision],
    policy: ReadingPolicy = DEFAULT_POLICY,
) -> ParsedDecision:
    """Parse the first decision in labeled lines; no text raises.

    Everything from an `Observation:` after an action on is cut off, since the model invented it.
    """
    tagged, rest = split_reasoning(text)
    extra_names = extra_field_names(decision_type)
    answer = _find_answer(rest, extra_names)
    # Behind an answer there are no calls.
    lead, found, result = _read_labeled_calls(
        rest if answer is None else rest[: answer.start], tools, extra_names, policy
    )
    if result.exceeded:
        return _exceeding(result.exceeded, policy)
    if result.reasoning:
        tagged, lead = (*tagged, result.reasoning), _blank(lead, result.reasoning_spans)
    calls = [ToolCall("", call.name, call.arguments_json, repairs=call.repairs) for call in result.calls]
    spans = _Spans(result.calls)
    labels = [label for label in found if not spans.contain(label.start)]
    first = next(
        (span.start for span, grade in zip(result.calls, result.grades, strict=True) if grade is not CallGrade.QUOTED),
        -1,
    )
    if first < 0:
        if answer is not None:
            thoughts, extra = _read_sections(lead, _Spans(()), decision_type)
            return ParsedDecision((*tagged, *thoughts), (), rest[answer.end :].strip(), extra, quoted=tuple(calls))
        return ParsedDecision(problem=_describe_problem(result, labels), quoted=tuple(calls))
    cut = next((label.start for label in labels if label.name == OBSERVATION and label.start > first), len(lead))
    count = sum(call.start < cut for call in result.calls)
    unread = result.unread
    if any(label.name in {ACTION, INPUT} and label.start < cut for label in labels):
        unread = unread or "an Action has no name of a tool, or no Action Input with a JSON object on the next line"
    selected = select_calls(
        calls[:count], result.grades[:count], tools, run_embedded=policy.run_embedded, unread=unread
    )
    if _is_repeated(selected.calls):
        return ParsedDecision(problem=_REPEATED, quoted=selected.quoted)
    kept = _with_repair(selected.calls, OBSERVATION_CUT) if cut < len(lead) else selected.calls
    is_answered = answer is not None and cut == len(lead)
    if is_answered or any(label.name == ANSWER and label.start < cut for label in labels):
        kept = _with_repair(kept, ANSWER_DROPPED)
    thoughts, extra = _read_sections(lead[:cut], spans, decision_type)
    return ParsedDecision((*tagged, *thoughts), kept, None, extra, chooses_tool=True, quoted=selected.quoted)


def _read_labeled_calls(
    text: str, tools: Sequence[ToolSpec], extra_names: tuple[str, ...], policy: ReadingPolicy
) -> tuple[str, list[LineLabel], ParseResult]:
    """Return a text with its labels as in the prompt, these labels, and the calls."""
    kept: frozenset[int] = frozenset()
    while True:
        # The parser of calls knows the labels only as they are in the prompt.
        lead = _normalize_labels(text, extra_names, kept)
        found = list(find_labels(lead, extra_names))
        result = read_calls(
            lead,
            tools,
            bounds=policy.bounds,
            form=_form_of(lead, [label for index, label in enumerate(found) if index not in kept]),
            begins_in_reasoning=policy.begins_in_reasoning,
        )
        # What looks like a label within a value belongs to the value, which must stay as it was written.
        if kept or not (kept := _labels_in_values(found, result.calls)):
            return lead, found, result


def _labels_in_values(labels: Sequence[LineLabel], calls: Sequence[ParsedCall]) -> frozenset[int]:
    """Return the indexes of the labels that are inside of calls and do not belong to their notation."""
    spans, inside = _Spans(calls), list[int]()
    # The index of the call of the last label whose call has had its Action Input.
    opened = -1
    for index, label in enumerate(labels):
        if not spans.contain(label.start):
            continue
        call = bisect_right(spans.starts, label.start) - 1
        if label.start == calls[call].start:
            continue
        if label.name == INPUT and calls[call].format == "react" and opened < call:
            opened = call
            continue
        inside.append(index)
    return frozenset(inside)


def _is_repeated(calls: Sequence[ToolCall]) -> bool:
    """Whether a call that would run is written twice in a row, as models do that do not find an end."""
    written = [(call.name, call.arguments_json) for call in calls if not call.rejection]
    return any(one == other for one, other in pairwise(written))


def _blank(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return a text with spaces in some places, so that all others are where they were."""
    pieces, position = list[str](), 0
    for start, end in spans:
        pieces += [text[position:start], " " * (end - start)]
        position = end
    return "".join([*pieces, text[position:]])


def _form_of(text: str, labels: Sequence[LineLabel]) -> list[tuple[int, int]]:
    """Return the spans of a text that belong to the notation and hold no calls: what is labeled as anything but an action.

    An observation lasts to the end of the text: a result may contain labels of its own.
    """
    spans: list[tuple[int, int]] = []
    ends = [*[label.start for label in labels[1:]], len(text)]
    for label, end in zip(labels, ends, strict=False):
        if label.name == OBSERVATION:
            return [*spans, (label.start, len(text))]
        if label.name not in {ACTION, INPUT}:
            spans.append((label.start, end))
    return spans


def _find_answer(text: str, extra_names: tuple[str, ...]) -> LineLabel | None:
    """Return the label `Final Answer:` unless a label of a call precedes it."""
    deciding = next((label for label in find_labels(text, extra_names) if label.name in {ACTION, INPUT, ANSWER}), None)
    return deciding if deciding is not None and deciding.name == ANSWER else None


def _normalize_labels(text: str, extra_names: tuple[str, ...], kept: frozenset[int]) -> str:
    """Return a text with its labels as in the prompt: without emphasis and numbers, and in the same case.

    Args:
        text: the text.
        extra_names: as for `find_labels`.
        kept: the indexes of the labels that stay as they are.
    """
    pattern, names = _label_pattern(extra_names)
    pieces, position = list[str](), 0
    for index, match in enumerate(pattern.finditer(text)):
        if index not in kept:
            name = names[match[1].lower()]
            pieces += [text[position : match.start()], f"{label_of(name) if name in extra_names else name}: "]
            position = match.end()
    return "".join([*pieces, text[position:]])


class _Spans:
    """The spans of the calls or decisions in a text."""

    def __init__(self, items: Sequence[ParsedCall] | Sequence[_Object]) -> None:
        self.starts = [item.start for item in items]
        self._ends = [item.end for item in items]

    def contain(self, position: int) -> bool:
        index = bisect_right(self.starts, position) - 1
        return index >= 0 and position < self._ends[index]


def _read_sections(
    text: str, spans: _Spans, decision_type: type[ReActDecision]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the thoughts of a text, and the values of extra fields."""
    extra_names = extra_field_names(decision_type)
    labels = [label for label in find_labels(text, extra_names) if not spans.contain(label.start)]
    call_starts = [start for start in spans.starts if start < len(text)]
    boundaries = sorted([*[label.start for label in labels], *call_starts, len(text)])
    thoughts: list[str] = []
    extra: dict[str, Any] = {}
    lead = text[: boundaries[0]].strip()
    if lead:
        thoughts.append(lead)
    for label in labels:
        end = boundaries[bisect_right(boundaries, label.start)]
        content = text[label.end : end].strip()
        if label.name == THOUGHT and content:
            thoughts.append(content)
        elif label.name in extra_names:
            extra[label.name] = convert_untyped(content, extra_fields_schema(decision_type)["properties"][label.name])
        elif label.name == ANSWER:
            break
    return tuple(thoughts), extra


def _describe_problem(result: ParseResult, labels: Sequence[LineLabel]) -> str:
    if result.rejected:
        return f"the action cannot be read: {result.rejected[0].reason}"
    if any(label.name in {ACTION, INPUT} for label in labels):
        return "an Action needs the name of a tool, and an Action Input with a JSON object on the next line"
    return "it contains neither an Action with an Action Input nor a Final Answer"
