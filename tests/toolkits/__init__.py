"""Tests of ensembles."""

from __future__ import annotations
