#!/bin/sh
# The command line from a question to its record, on the scripted model; run it in an empty folder.
set -eu

# The answer goes to stdout, the progress to stderr.
agentloop run --model demo --approve all --journal runs.db 2> progress.txt > answer.txt
cat answer.txt

# A model of your own choice, once for all commands; `agentloop config show` lists the other settings.
export AGENTLOOP_MODEL=ollama:qwen3
agentloop models "$AGENTLOOP_MODEL" | head -n 2

# What was recorded: each step, each call, and what came of it.
id=$(agentloop runs list --journal runs.db --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["execution_id"])')
agentloop runs show "$id" --journal runs.db | grep restart_service
agentloop runs verify "$id" --journal runs.db
