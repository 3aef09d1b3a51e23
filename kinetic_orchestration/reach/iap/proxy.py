"""The system's ssh runs it to get to a VM: `python -m kinetic_orchestration.reach.iap.proxy PROJECT ZONE INSTANCE`.

Its own input and output are the connection. Where there is none, it says why and ends with 1; ssh then ends with 255.
Address and identity come from the settings of the environment, so no command line has a token.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.plan.configuration import settings as configuration
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.google import credentials
from kinetic_orchestration.reach.iap.tunnel import SERVER, Target, Tunnel


def main(words: list[str]) -> int:
    """Be the connection that the words name; return the exit code."""
    project, zone, instance = words
    settings = configuration.load(store="", deployment="local")  # the store does not matter here
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        Tunnel(Target(project, zone, instance), _Token(settings), server=address(settings)).run(0, 1)
    except KineticError as error:
        sys.stderr.write(f"kinetic: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def address(settings: Settings) -> str:
    """Return the proxy's address: the emulator's, if these settings name one."""
    return settings.emulator.replace("http://", "ws://", 1) if settings.emulator else SERVER


class _Token:
    """Gives an access token of this process's credentials."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, fresh: bool) -> str:
        identity = credentials.credentials(self._settings)
        if self._settings.emulator:
            return ""
        return _token_of(identity, fresh)


def _token_of(identity: Any, fresh: bool) -> str:
    from google.auth import exceptions
    from google.auth.transport.requests import Request

    try:
        if fresh or not identity.valid:
            identity.refresh(Request())
    except exceptions.RefreshError as error:
        raise credentials.refused(error) from error
    return str(identity.token)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
