"""Tool calls that models write as text: parsing, the built-in text formats, and the contract for further ones.

A format implements `TextFormat`. `OfferedTools`, `TextBuffer`, `CallDraft`, `AttemptResult` and `ParseAttempt` are what its
parser receives and returns; `LiteralReader` reads values in JSON and Python syntax.
"""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
