"""Simulation: a small world in which every order of events is tried, and whole runs of machines under one seeded scheduler."""
