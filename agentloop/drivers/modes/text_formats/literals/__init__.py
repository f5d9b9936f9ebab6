"""Reading values out of text: JSON, JSON with small faults, and Python's literals. Nothing is ever evaluated."""

from __future__ import annotations
