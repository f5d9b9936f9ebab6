"""Streams of the Responses API.

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.openai_chat.responses import object_of, text_of
from agentloop.inference.wire_formats.openai_responses.responses import failure_in, response_of
from agentloop.inference.wire_formats.openai_responses.streamed_items import STREAMED, StreamedItems
from agentloop.inference.wire_formats.stream_decoder import JsonEventDecoder, PlainDecoder
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_response import InferenceResponse

_ERRORS = frozenset({"error", "response.error"})
_ENDS: Mapping[str, str] = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
"""The events that end an answer, and the status that each means when it names none."""


class ResponsesStreamDecoder(JsonEventDecoder):
    """Reads one streamed response.

    The last event holds the whole response, and that is what counts; its items are those that came before where a service
    leaves them out of it.
    """

    def __init__(self, plain: PlainDecoder, headers: Mapping[str, str]) -> None:
        super().__init__(plain, headers)
        self._items = StreamedItems()
        self._begun: dict[str, Any] = {}
        self._ended: dict[str, Any] | None = None

    def take(self, data: dict[str, Any], name: str) -> list[InferenceDelta]:
        """Take an event; those that are not known mean nothing.

        Raises:
            InferenceError: for an error that the provider tells.
        """
        kind = text_of(data.get("type")) or name
        if kind in _ERRORS or (not kind and data.get("error")):
            raise self.failed(data)
        if kind in _ENDS:
            return self._end({"status": _ENDS[kind], **object_of(data.get("response"))})
        if kind == "response.created":
            self._items, self._ended = StreamedItems(), None
            self._begun = object_of(data.get("response"))
        elif kind == "response.output_item.added":
            return self._items.begin(data.get("output_index"), data["item"])
        elif kind == "response.output_item.done":
            return self._items.finish(data.get("output_index"), data["item"])
        elif kind.endswith(".delta") and kind[: -len(".delta")] in STREAMED:
            return self._items.extend(kind[: -len(".delta")], data)
        elif kind.endswith(".done") and kind[: -len(".done")] in STREAMED:
            return self._items.complete(kind[: -len(".done")], data)
        return []

    def response(self) -> InferenceResponse:
        """Return the whole answer.

        Raises:
            InferenceError: when the stream ended before the response did, unless all that had begun was complete.
        """
        if self._ended is not None:
            return response_of(self._ended)
        if not self._items.are_an_answer:
            raise self.cut_short("the response did not end")
        return response_of({**self._begun, "status": None, "usage": None, "output": self._items.whole()})

    def _end(self, response: dict[str, Any]) -> list[InferenceDelta]:
        failed = failure_in(response)
        if failed:
            raise self.failed(failed)
        items = response.get("output") or []
        are_all = bool(items) and len(items) >= self._items.finished
        found = self._items.catch_up(items)
        self._ended = {**response, "output": items if are_all else self._items.whole()}
        return found
