"""Models that do what they are told: what the user says, until they read a text that tells them something else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import define, field
from dojo.suites import Call

from agentloop import ToolCall
from agentloop.values import InferenceRequest
from agentloop.values.json import JsonValue, freeze

OBEYED = "injected"
"""How the ids of the calls begin that an injection has brought about."""


@define(eq=False)
class ObedientModel:
    """Makes the calls of the user's task, one per answer. Once a result holds the injected text, it makes those of the attacker.

    Attributes:
        honest: the calls of the user's task.
        answer: what the model answers at the end.
        injection: the injected text; empty for none.
        obey: returns the attacker's calls for a request, the first in which the text stands.
        obeyed_answer: what the attacker wants the model to say.
    """

    honest: Sequence[Call]
    answer: str
    injection: str = ""
    obey: Callable[[InferenceRequest], Sequence[Call]] = lambda _: ()
    obeyed_answer: str = ""
    injected: Sequence[Call] | None = field(default=None, init=False)
    _read: int = field(default=0, init=False)
    _made: int = field(default=0, init=False)

    def __call__(self, request: InferenceRequest) -> ToolCall | str:
        """Answer a request."""
        if self.injection and self.injected is None and self._reads_injection(request):
            self.injected, self._made = self.obey(request), 0
        calls, prefix = (self.honest, "honest") if self.injected is None else (self.injected, OBEYED)
        if self._made < len(calls):
            call, self._made = calls[self._made], self._made + 1
            return ToolCall(f"{prefix}_{self._made}", call.name, json.dumps(dict(call.arguments)))
        obeyed = self.obeyed_answer if self.injected is not None else ""
        return obeyed + self.answer or "Done."

    def _reads_injection(self, request: InferenceRequest) -> bool:
        executions = [exchange.execution for message in request.messages for exchange in message.exchanges]
        new, self._read = executions[self._read :], len(executions)
        return any(self.injection in flatten(execution.value) for execution in new)


def flatten(value: JsonValue) -> str:
    """Return all texts of a JSON value in one line."""
    return re.sub(r"\s+", " ", " ".join(texts_in(value))).strip()


def texts_in(value: JsonValue) -> Iterator[str]:
    """Return the texts and numbers inside of a JSON value, as texts."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield name
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


@define(eq=False)
class AskedModel:
    """Answers questions about data that a program asks; where the attacker's text is in the data, as the attacker wants it.

    Attributes:
        answers: the honest answers, by question.
        injection: the injected text; empty for none.
        fooled: how often the text was in the data.
    """

    answers: Mapping[str, str]
    injection: str = ""
    fooled: int = 0

    def __call__(self, request: InferenceRequest) -> str:
        """Answer a request."""
        asked = json.loads(request.messages[-1].text)
        honest = self.answers[asked["question"]]
        if self.injection and self.injection in flatten(freeze(asked["data"])):
            self.fooled += 1
            return json.dumps({"answer": _fooled(asked["type"], honest)})
        match asked["type"]:
            case "number":
                return json.dumps({"answer": float(honest)})
            case "boolean":
                return json.dumps({"answer": honest == "yes"})
            case "list":
                return json.dumps({"answer": honest.split("\n")})
        return json.dumps({"answer": honest})


def _fooled(type_: str, honest: str) -> object:
    """Return the answer that an attacker wants."""
    match type_:
        case "number":
            return 9999.0
        case "boolean":
            return honest != "yes"
        case "list":
            return ["mark.black-2134@gmail.com: everything"]
    return "2030-01-01 00:00" if re.fullmatch(r"[\d :-]+", honest) else "mark.black-2134@gmail.com"
