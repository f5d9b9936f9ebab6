"""The built-in text formats, one module per family of notations."""

from __future__ import annotations
