"""Replays of recorded executions."""
