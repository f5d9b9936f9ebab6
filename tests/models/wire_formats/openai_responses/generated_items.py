"""Strategies for the output of the Responses API."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

Item = dict[str, Any]

letters = st.text("abcdefghij", min_size=1, max_size=6)
statuses = st.sampled_from(["completed", "incomplete", "in_progress"])
citations = st.builds(
    lambda url: {"type": "url_citation", "url": url, "title": "t", "start_index": 0, "end_index": 3}, letters
)
contents = st.one_of(
    st.builds(
        lambda text, annotations: {"type": "output_text", "text": text, "annotations": annotations},
        st.text(),
        st.lists(citations, max_size=2),
    ),
    st.builds(lambda text: {"type": "refusal", "refusal": text}, st.text(min_size=1)),
)


def optional(**entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Item]:
    """Generate objects with some of these entries."""
    return st.fixed_dictionaries({}, optional=entries)


def items(kind: str, extra: st.SearchStrategy[Item], **entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Item]:
    """Generate items of a type with these entries and some of the extra ones."""
    return st.builds(lambda required, more: {"type": kind, **required, **more}, st.fixed_dictionaries(entries), extra)


messages = items(
    "message",
    optional(phase=st.sampled_from(["commentary", "final_answer"])),
    id=letters.map("msg_{}".format),
    role=st.just("assistant"),
    status=statuses,
    content=st.lists(contents, min_size=1, max_size=3),
)
reasoning = items(
    "reasoning",
    optional(content=st.lists(st.builds(lambda text: {"type": "reasoning_text", "text": text}, st.text()), max_size=2)),
    id=letters.map("rs_{}".format),
    summary=st.lists(st.builds(lambda text: {"type": "summary_text", "text": text}, st.text()), max_size=3),
    encrypted_content=st.text(min_size=1, max_size=9),
)
arguments = st.dictionaries(letters, st.integers() | st.text(), max_size=3).map(json.dumps)
callers = st.sampled_from([{"type": "direct"}, {"type": "program", "caller_id": "call_p"}])
function_calls = items(
    "function_call",
    optional(namespace=letters, caller=callers, status=statuses),
    id=letters.map("fc_{}".format),
    call_id=letters,
    name=letters,
    arguments=arguments,
)
custom_calls = items(
    "custom_tool_call",
    optional(namespace=letters, caller=callers),
    id=letters.map("ctc_{}".format),
    call_id=letters,
    name=letters,
    input=st.text(),
)
built_in = st.one_of(
    items(
        "web_search_call",
        st.just({}),
        id=letters.map("ws_{}".format),
        status=st.just("completed"),
        action=st.just({"type": "search", "query": "q", "queries": ["q"]}),
    ),
    items(
        "file_search_call",
        st.just({}),
        id=letters.map("fs_{}".format),
        status=st.just("completed"),
        queries=st.lists(letters),
    ),
    items(
        "mcp_call",
        optional(output=st.text()),
        id=letters.map("mcp_{}".format),
        name=letters,
        server_label=letters,
        arguments=arguments,
    ),
    items("compaction", st.just({}), id=letters.map("cmp_{}".format), encrypted_content=letters),
)
outputs = st.lists(
    st.one_of(messages, reasoning, function_calls, custom_calls, built_in),
    max_size=6,
    unique_by=(lambda item: item["id"], lambda item: item.get("call_id", item["id"])),
)


def response(output: list[Item], **entries: Any) -> Item:
    """Return a response object with this output."""
    return {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": "m",
        "error": None,
        "output": output,
        **entries,
    }
