"""`promote` and its registries where they cannot be used, see `client_only`."""

from __future__ import annotations

from typing import NoReturn

from kinetic_orchestration.program.client_only import ClientOnly, refuse


class Candidate(metaclass=ClientOnly):
    """A model that may be promoted."""


class Promoted(metaclass=ClientOnly):
    """A version of a model."""


class MLflow(metaclass=ClientOnly):
    """A registry of MLflow."""


class Vertex(metaclass=ClientOnly):
    """The registry of Vertex AI."""


def promote(*args: object, **kwargs: object) -> NoReturn:
    """Raise Unsupported."""
    refuse("promote")


def move_alias(*args: object, **kwargs: object) -> NoReturn:
    """Raise Unsupported."""
    refuse("move_alias")
