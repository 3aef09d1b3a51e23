"""The sshd of an emulated VM: OpenSSH's own, a process for each connection, which opens no port.

It runs within the VM and ends with it. Its keys and its users are the VM's: whoever its metadata name, with the
rights of its root. Where OpenSSH's server is not installed, or may not be started, the VM has none.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_USER: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_KEYS: Final = "ssh-keys"
_KIND: Final = "ssh-ed25519"
_SECONDS: Final = 30.0
# Seen by this sshd alone: its users, and the empty folder that an sshd of root wants.
_FURNISH: Final = (
    "mount -t tmpfs -o size=1m tmpfs /run && mkdir -m 755 /run/sshd && "
    'mount --bind "$1" /etc/passwd && shift && exec "$@"'
)


@functools.cache
def program() -> str:
    """Return the path of OpenSSH's server; "" if it is not installed."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""


class Sshd:
    """The sshd of one VM.

    Args:
        folder: Where it keeps its files: of this VM alone.
        root: The VM's disk.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._root = root
        self._making = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []

    def host_keys(self) -> dict[str, str]:
        """Return its public keys by their kinds, as a guest agent publishes them; none if there is no sshd."""
        if not program():
            return {}
        key = self._folder / "host_key"
        with self._making:
            self._make(key)
        return {_KIND: key.with_suffix(".pub").read_text(encoding="ascii").split()[1]}

    def _make(self, key: Path) -> None:
        if not key.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)

    def start(
        self, connection: socket.socket, first: int, metadata: Mapping[str, str], environ: Mapping[str, str]
    ) -> bool:
        """Serve one connection; return False if there is no sshd that could.

        Args:
            connection: The connection, which it has from then on.
            first: Process id of the VM's first process, if it has a namespace of its own; else 0.
            metadata: The VM's metadata, which name its users and their keys.
            environ: Variables that they find.
        """
        is_root = os.geteuid() == 0
        if not self.host_keys() or (is_root and not first):
            return False
        users = self._users(metadata)
        words = [program(), "-i", "-e", "-f", str(self._configured(environ))]
        if is_root:
            passwd = self._folder / "passwd"
            home, taken = f"{self._root}/root", Path("/etc/passwd").read_text(encoding="utf-8")
            passwd.write_text(
                taken
                + "".join(f"{user}:x:0:0::{home}:/bin/sh\n" for user in users if f"\n{user}:" not in f"\n{taken}"),
                encoding="utf-8",
            )
            into = ["nsenter", "--target", str(first), "--pid", "--mount", "--", "unshare", "--mount"]
            words = [*into, "sh", "-c", _FURNISH, "sh", str(passwd), *words]
        self._running = [process for process in self._running if process.poll() is None]
        with (self._folder / "log").open("ab") as log:
            self._running.append(
                subprocess.Popen(
                    words,
                    stdin=connection.fileno(),
                    stdout=connection.fileno(),
                    stderr=log,
                    env=dict(environ),
                    cwd=self._root,
                )
            )
        return True

    def log(self) -> str:
        """Return what it has said."""
        with contextlib.suppress(OSError):
            return (self._folder / "log").read_text(encoding="utf-8", errors="replace")
        return ""

    def close(self) -> None:
        """End all of it."""
        for process in self._running:
            process.kill()
            process.wait()
        self._running = []

    def _users(self, metadata: Mapping[str, str]) -> Sequence[str]:
        """Write down whose keys open the VM, as its guest agent does; return their names."""
        keys: dict[str, list[str]] = {}
        for line in metadata.get(_KEYS, "").splitlines():
            user, _, key = line.strip().partition(":")
            if _USER.fullmatch(user) and key:
                keys.setdefault(user, []).append(key)
        folder = self._folder / "keys"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for user, lines in keys.items():
            (folder / user).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return list(keys)

    def _configured(self, environ: Mapping[str, str]) -> Path:
        seen = " ".join(f'"{name}={environ[name]}"' for name in ("PATH", "KINETIC_ROOT", "TMPDIR") if name in environ)
        path = self._folder / "config"
        path.write_text(
            f"HostKey {_quoted(self._folder / 'host_key')}\nAuthorizedKeysFile {_quoted(self._folder / 'keys')}/%u\n"
            "AuthenticationMethods publickey\nPubkeyAuthentication yes\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\n"
            f"PidFile none\nPrintMotd no\nUseDNS no\nAllowTcpForwarding local\nLogLevel ERROR\nSetEnv {seen}\n",
            encoding="utf-8",
        )
        return path


def _quoted(path: Path) -> str:
    return str(path).replace(" ", "\\ ") if " " not in str(path) else f'"{path}"'
