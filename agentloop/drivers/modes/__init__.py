"""Tool-calling modes: how tools are offered to a model and how its calls are read back."""

from __future__ import annotations
