"""Tests with processes that are killed."""
