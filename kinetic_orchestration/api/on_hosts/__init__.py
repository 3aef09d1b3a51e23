"""Modules that a host has in place of the client's `api.handle` and `api.batch`: the agent's zip holds them there."""
