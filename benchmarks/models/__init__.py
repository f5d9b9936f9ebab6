"""Tasks for real models, solved by agentloop in every mode and by other libraries on the same server: `make test-models`."""
