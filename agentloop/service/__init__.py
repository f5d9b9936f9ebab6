"""Agents as a service: the command line, the server, clusters, traces and telemetry."""
