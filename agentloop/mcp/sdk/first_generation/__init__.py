"""What generation 1 of the SDK (`mcp` 1.30) lacks of the names in `agentloop.mcp.sdk.names`, over its own classes.

It knows the protocol up to 2025-11-25, so there are no tasks and no subscriptions.
"""
