"""What runs agents as a service: the command line, the server, clusters, traces and telemetry."""
