"""`deploy` and what belongs to it where they cannot be used, see `client_only`."""

from __future__ import annotations

from typing import NoReturn

from kinetic_orchestration.program.client_only import ClientOnly, refuse


class Deployed(metaclass=ClientOnly):
    """A model server that answers."""


class Serving:
    """The declaration of a model server: a module may have one, and nothing here reads it."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Take what a declaration takes."""


class SmokeTest:
    """The declaration of a smoke test, in the same way."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Take what a declaration takes."""


def deploy(*args: object, **kwargs: object) -> NoReturn:
    """Raise Unsupported."""
    refuse("deploy")


def deployed(*args: object, **kwargs: object) -> NoReturn:
    """Raise Unsupported."""
    refuse("deployed")
