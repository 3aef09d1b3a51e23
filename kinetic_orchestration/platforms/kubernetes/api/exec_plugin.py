"""Credentials that a program prints: the `exec` part of a kubeconfig, such as gke-gcloud-auth-plugin.

https://kubernetes.io/docs/reference/config-api/client-authentication.v1: the program gets an ExecCredential in
KUBERNETES_EXEC_INFO, and prints one with a token or a client certificate. What it printed is kept in memory until it
expires. It does not know what the credentials are used for.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.platforms.shared.cluster_access import Pair
from kinetic_orchestration.protocol.system import escaping
from kinetic_orchestration.protocol.system.parallel import apart, is_given_up

if TYPE_CHECKING:
    import subprocess

SECONDS = 60.0  # for one run: a cloud's own command line may have to start, and to ask its servers
LOOK_SECONDS: Final = 0.1  # between two looks whether its user still waits
MARGIN: Final = 10.0  # seconds before it expires in which a credential is no longer used
VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class _Credential(NamedTuple):
    token: str
    pair: Pair | None
    expires: float  # by this machine's clock


class ExecPlugin:
    """One program of a kubeconfig, and its last answer. Threads share it."""

    def __init__(self, spec: Mapping[str, Any], folder: Path, cluster: Mapping[str, Any], environ: Mapping[str, str]):
        """Refuse what cannot work without a terminal.

        `folder`: the kubeconfig's, from which a path is relative. `cluster`: passed on, if the program wants it.
        """
        self._command = str(spec.get("command") or "")
        self._version = str(spec.get("apiVersion") or "")
        if self._version not in VERSIONS:
            raise CredentialsError(
                f"The program {self._command!r} of the kubeconfig speaks {self._version or 'no version'!r}; known are "
                f"{' and '.join(VERSIONS)}. A newer version of the program has these."
            )
        if spec.get("interactiveMode") == "Always":
            raise CredentialsError(
                f"The program {self._command!r} of the kubeconfig asks its user (interactiveMode: Always), and jobs "
                "are followed without one. What helps: a user of the kubeconfig with a token or a certificate."
            )
        self._spec = spec
        self._folder = folder
        self._environ = {**environ, **_variables(spec)}
        info: dict[str, Any] = {"interactive": False}
        if _is_true(spec.get("provideClusterInfo")):
            info["cluster"] = dict(cluster)
        shown = {"apiVersion": self._version, "kind": "ExecCredential", "spec": info}
        self._environ["KUBERNETES_EXEC_INFO"] = json.dumps(shown)
        self._lock = threading.Lock()
        self._last: _Credential | None = None

    def token(self, fresh: bool) -> str:
        """Return its token, "" if it gives a certificate only. Raises CredentialsError if it gives neither."""
        return self._credential(fresh).token

    def pair(self) -> Pair | None:
        """Return its client certificate, if it gives one. Raises CredentialsError as `token` does."""
        return self._credential(False).pair

    def _credential(self, fresh: bool) -> _Credential:
        with self._lock:
            if fresh or self._last is None or self._last.expires - MARGIN < time.time():
                self._last = self._read(apart(self._run, name="kinetic-login"))
            return self._last

    def _run(self) -> str:
        import atexit
        import subprocess

        if is_given_up():
            raise _interrupted(self._command)
        program = self._program()
        arguments = [str(argument) for argument in self._spec.get("args") or ()]
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        try:
            running = subprocess.Popen([program, *arguments], env=self._environ, start_new_session=True, **pipes)
        except OSError as error:
            raise CredentialsError(f"{program} of the kubeconfig cannot be run: {error.strerror}.") from error
        end = partial(_end, running.pid)
        atexit.register(end)  # a thread that does not hold this process back may be here when it ends
        try:
            with running:
                try:
                    output, words = _answer(running, program)
                except BaseException:
                    end()
                    raise
        finally:
            atexit.unregister(end)
        if running.returncode:
            said = escaping.text(words.decode("utf-8", "replace").strip()[-600:]) or "nothing"
            raise CredentialsError(
                f"{program} gave no credentials: it ended with code {running.returncode} and said: {said}"
            )
        return str(output, "utf-8", "replace")

    def _program(self) -> str:
        import shutil

        if "/" in self._command:
            path = self._folder / self._command
            found = str(path) if path.exists() else None
        else:
            found = shutil.which(self._command, path=self._environ.get("PATH"))
        if found is None:
            hint = escaping.text(str(self._spec.get("installHint") or "").strip()[:1000])
            raise CredentialsError(
                f"The kubeconfig gets its credentials from the program {self._command!r}, which is not here. "
                + (hint or "Install it, or use a kubeconfig with a token.")
            )
        return found

    def _read(self, output: str) -> _Credential:
        try:
            answer = json.loads(output)
            status = answer["status"]
            token, expires = str(status.get("token") or "").strip(), status.get("expirationTimestamp")
            halves = [str(status.get(name) or "") for name in ("clientCertificateData", "clientKeyData")]
            until = _seconds(str(expires)) if expires else float("inf")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CredentialsError(  # without what it printed, which may be secret
                f"{self._command} printed no ExecCredential that can be read ({type(error).__name__}). Run it by hand."
            ) from None
        if answer.get("apiVersion") != self._version:
            raise CredentialsError(
                f"{self._command} printed {str(answer.get('apiVersion'))[:80]!r}, and the kubeconfig says "
                f"{self._version!r}: correct apiVersion there."
            )
        if not (token or all(halves)) or any(halves) != all(halves):
            raise CredentialsError(f"{self._command} printed neither a token nor a whole client certificate.")
        return _Credential(token, Pair(*halves) if all(halves) else None, until)


def _answer(running: subprocess.Popen[bytes], program: str) -> tuple[bytes, bytes]:
    """Return what a program printed, and what it said.

    Raises:
        CredentialsError: It takes too long, or nobody waits for it any more.
    """
    import subprocess

    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return running.communicate(timeout=LOOK_SECONDS)
        except subprocess.TimeoutExpired as error:
            if is_given_up():
                raise _interrupted(program) from error
            if time.monotonic() > deadline:
                raise CredentialsError(f"{program} printed no credentials in {SECONDS:g} s. Run it by hand.") from error


def _interrupted(program: str) -> CredentialsError:
    return CredentialsError(f"{program} was not waited for, as its user interrupted this process.")


def _end(session: int) -> None:
    """End a program and what it started, which would keep its pipes open."""
    import signal

    with suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


def _variables(spec: Mapping[str, Any]) -> dict[str, str]:
    return {str(one.get("name")): str(one.get("value") or "") for one in spec.get("env") or () if one.get("name")}


def _is_true(value: object) -> bool:
    return value is True or value == "true"


def _seconds(timestamp: str) -> float:
    """A time of RFC 3339 as seconds since 1970."""
    from datetime import datetime

    return datetime.fromisoformat(timestamp).timestamp()
