"""Executions on several workers that are killed, stopped and cut off from their database; an account of every effect."""
