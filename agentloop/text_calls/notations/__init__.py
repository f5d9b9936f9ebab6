"""The notations, one small reader each."""

from __future__ import annotations
