#!/bin/sh
# The command line of a team: `ask.sh "Deploy the shop."` writes the answer as it comes, and asks before a deployment.
here=$(dirname "$0")
PYTHONPATH="$here" exec agentloop run --agent "$here/ask.md" --allow team_tools --stream "$@"
