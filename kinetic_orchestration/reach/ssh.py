"""The system's ssh, on the way to a host: a key of our own, hosts known by what their cloud tells, its command line.

Nothing of the user's own configuration of ssh is used or changed. No name that came from elsewhere is ever an option:
it stands behind `--`, or in a file.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import kinetic_orchestration
from kinetic_orchestration.errors import HostNotReached, UsageError
from kinetic_orchestration.plan.configuration.home import private
from kinetic_orchestration.protocol.system import copies

FAILED: Final = 255  # ssh's own exit code for a connection that it has not got
KEYGEN_SECONDS: Final = 30.0
TRIES, PAUSE = 10, 5.0  # until a VM has heard of a new key, as gcloud waits for it
_USER: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_KEY: Final = re.compile(r"(ssh-ed25519|ecdsa-sha2-nistp256|ssh-rsa) ([A-Za-z0-9+/]+={0,2})")
_ACCOUNT: Final = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,255}")
_PROXY: Final = "kinetic_orchestration.reach.iap.proxy"


@dataclass(frozen=True)
class Host:
    """A VM with an sshd, as its cloud describes it.

    Attributes:
        project: Its project.
        zone: Its zone.
        instance: Its name for Identity-Aware Proxy.
        user: Who enters.
        keys: Its own public keys, as its cloud tells them; none: they are not told.
        is_new: The user's key was handed to it just now.
    """

    project: str
    zone: str
    instance: str
    user: str
    keys: tuple[str, ...] = ()
    is_new: bool = False


def usual_user() -> str:
    """Return the name by which this user enters: the one here, if a VM can have it. A VM's root takes no keys."""
    try:
        name = re.sub(r"[^a-z0-9_-]", "_", getpass.getuser().partition("@")[0].lower())[:32]
    except (KeyError, OSError):
        name = ""
    return name if _USER.fullmatch(name) and name != "root" else "kinetic"


def public_key_in(text: str) -> str:
    """Return a public key as ssh's list of known hosts has it, of a text that somebody else wrote; "" if it is none."""
    found = _KEY.match(text.strip())
    return f"{found[1]} {found[2]}" if found else ""


class Keys:
    """The files by which this user enters hosts: a key, made when it is first needed, and what hosts are known.

    Args:
        home: The user's private folder.
    """

    def __init__(self, home: Path) -> None:
        self._folder = home / "ssh"

    @property
    def path(self) -> Path:
        """The private key's file."""
        return self._folder / "id_ed25519"

    def public(self) -> str:
        """Return the public key. Raises HostNotReached if there is no ssh here."""
        program("ssh")
        if not self.path.exists():
            private(self._folder)
            made = self._folder / f"new-{os.getpid()}"
            words = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "kinetic", "-f", str(made)]
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=KEYGEN_SECONDS
            )
            if done.returncode:
                raise HostNotReached(f"no key could be made: ssh-keygen says {done.stderr.strip()[:300]}")
            made.with_suffix(".pub").rename(self.path.with_suffix(".pub"))
            made.rename(self.path)  # last: whoever sees it finds the other
        return public_key_in(self.path.with_suffix(".pub").read_text(encoding="ascii"))

    def known(self, host: Host) -> Path:
        """Return the file that lists a host's own keys, written anew if they are told."""
        folder = private(self._folder / "hosts")
        path = folder / alias_of(host)
        if host.keys:
            made = folder / f".new-{os.getpid()}"
            made.write_text("".join(f"{alias_of(host)} {key}\n" for key in host.keys), encoding="ascii")
            made.replace(path)
        return path


def program(name: str) -> str:
    """Return the path of a program of OpenSSH. Raises HostNotReached if there is none."""
    found = shutil.which(name)
    if found is None:
        raise HostNotReached(f"a VM is entered by OpenSSH, and there is no {name} here: apt-get install openssh-client")
    return found


def alias_of(host: Host) -> str:
    """Return the name by which ssh knows a host, which is that of no other host."""
    return re.sub(r"[^A-Za-z0-9.:-]", "_", f"{host.instance}.{host.zone}.{host.project}")


def line(host: Host, keys: Keys, options: Sequence[str] = (), command: Sequence[str] = ()) -> list[str]:
    """Return the command line of ssh.

    Args:
        host: Where it leads.
        keys: The files of this user.
        options: More of them.
        command: What runs there; "": the user's shell.
    """
    by = shlex.join([sys.executable, "-P", "-m", _PROXY, host.project, host.zone, host.instance]).replace("%", "%%")
    strict = "yes" if host.keys else "accept-new"
    settings = {
        "ProxyCommand": by, "IdentityFile": _quoted(keys.path), "IdentitiesOnly": "yes", "IdentityAgent": "none",
        "UserKnownHostsFile": _quoted(keys.known(host)), "GlobalKnownHostsFile": "none", "CheckHostIP": "no",
        "StrictHostKeyChecking": strict, "HostKeyAlias": alias_of(host), "PreferredAuthentications": "publickey",
        "UpdateHostKeys": "no", "ForwardAgent": "no", "ServerAliveInterval": "30", "LogLevel": "ERROR",
        "ExitOnForwardFailure": "yes", "User": host.user, "ConnectTimeout": "60",
    }  # fmt: skip
    given = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    return [
        program("ssh"),
        "-F",
        "none",
        *given,
        *options,
        "--",
        alias_of(host),
        *([shlex.join(command)] if command else []),
    ]


def environment() -> dict[str, str]:
    """Return the environment of ssh: its ProxyCommand finds this package wherever it is started."""
    environ = copies.environ()
    root = str(Path(kinetic_orchestration.__file__).parents[1])
    before = environ.get("PYTHONPATH", "")
    environ["PYTHONPATH"] = f"{root}{os.pathsep}{before}" if before else root
    environ["SHELL"] = "/bin/sh"  # which runs the ProxyCommand
    return environ


def await_key(host: Host, keys: Keys, *, tries: int = TRIES, pause: float = PAUSE) -> None:
    """Wait until a host lets this user in, whose key it was told just now. Raises HostNotReached."""
    for left in range(tries, 0, -1):
        words = line(host, keys, ("-T", "-n", "-o", "BatchMode=yes"), ("true",))
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(), check=False
        )
        if done.returncode != FAILED:
            return
        if "Permission denied" not in done.stderr or left == 1:
            raise HostNotReached(done.stderr.strip().removeprefix("kinetic: ")[:2000] or f"ssh ends with {FAILED}")
        time.sleep(pause)


def _quoted(path: Path) -> str:
    """Return a path as a value of ssh's configuration, which expands % and splits at spaces."""
    return '"' + str(path).replace("%", "%%") + '"'


def check_user(user: str, account: str) -> None:
    """Refuse what can be no name on a VM, or no account. Raises UsageError."""
    if user and not _USER.fullmatch(user):
        raise UsageError(f"--user {user}: a name on a VM has letters, digits, - and _, and begins with a letter")
    if account and not _ACCOUNT.fullmatch(account):
        raise UsageError(f"--account {account}: give the email of a Google account")
