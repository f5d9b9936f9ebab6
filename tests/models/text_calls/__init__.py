"""Tests of parsing calls from text."""

from __future__ import annotations
