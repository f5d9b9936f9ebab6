"""Answers from documents in SQLite FTS5, with the sources in the type of the answer."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from attrs import frozen

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolContext, tool

PAGES = {
    "lamps": "A lamp of type B22 has a bayonet. Turn it to the left to take it out.",
    "returns": "A lamp can be returned within 30 days, a rug within 14.",
}


@frozen
class Answer:
    """An answer, and the titles of the pages that it is based on."""

    text: str
    sources: list[str]


def open_index() -> sqlite3.Connection:
    # Tools that are plain functions run in threads.
    index = sqlite3.connect(":memory:", check_same_thread=False)
    index.execute("CREATE VIRTUAL TABLE pages USING fts5(title, body, tokenize = 'porter')")
    index.executemany("INSERT INTO pages VALUES (?, ?)", PAGES.items())
    return index


@tool(effect="pure")
def search(words: str, context: ToolContext[sqlite3.Connection]) -> list[dict[str, str]]:
    """Search the pages of the shop.

    Args:
        words: a few words that the page has.
    """
    # In quotes: the words are not to be read as operators.
    query = " OR ".join(f'"{word}"' for word in words.replace('"', "").split())
    statement = "SELECT title, snippet(pages, 1, '', '', '…', 12) FROM pages WHERE pages MATCH ? ORDER BY rank LIMIT 3"
    return [{"title": title, "text": text} for title, text in context.dependencies.execute(statement, [query])]


MODEL = ScriptedInference(
    ToolCall("1", "search", '{"words": "return lamps"}'),
    '{"text": "A lamp can be returned within 30 days.", "sources": ["returns"]}',
)
loop = AgentLoop.for_model(MODEL, tools=[search], output_type=Answer, options={"temperature": 0})

if __name__ == "__main__":
    with closing(open_index()) as index:
        answer = loop.run_sync("How long can I return a lamp?", dependencies=index)
    print(f"{answer.text} ({', '.join(answer.sources)})")
