"""Removes what no job needs, and finds stored content that has changed."""
