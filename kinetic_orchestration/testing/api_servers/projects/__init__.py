"""The APIs by which a project of Google is set up: what it is, which services it has, who may do what in it."""
