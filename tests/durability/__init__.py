"""Tests of executions whose processes are killed."""
