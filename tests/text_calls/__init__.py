"""Tests of the calls read out of text."""

from __future__ import annotations
