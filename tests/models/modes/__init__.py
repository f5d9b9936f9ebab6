"""Tests of the tool-calling modes."""

from __future__ import annotations
