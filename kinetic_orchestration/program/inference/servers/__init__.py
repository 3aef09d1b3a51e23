"""Servers of models: the declaration of one (`engines`), its process (`process`, `leash`) and its caches."""
