"""The private folder of this user: created, made private, and refused if another user could put programs into it.

Its contents are executed and trusted (the agent, environments, trusted digests), so it has the rule of SSH for
`~/.ssh`: it belongs to this user, and neither it nor a folder above it can be changed by any user but this one and
root. It knows neither settings nor the contents.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from kinetic_orchestration.protocol.system import kernel
from kinetic_orchestration.protocol.system.folders import others_write

PRIVATE: Final = 0o700
_LINKS: Final = 40  # as many as the kernel follows
_OVERFLOW: Final = 65534  # the number of users without one in this user namespace, such as the root outside of it


class Unfit(Exception):
    """The reason why a folder cannot be a home, as a sentence without its end, and the advice."""

    def __init__(self, reason: str, advice: str, *, ours: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice
        self.ours = ours
        """It is this user's own, so that nobody but this user can mend it."""


def make(home: Path) -> None:
    """Create it, private and out of other users' reach. Raises Unfit, or OSError."""
    known = _seen.get(home)
    if known is not None and known == _state(home):
        return
    for folder in reversed([folder for folder in home.parents if not folder.exists()]):
        _mkdir(folder, 0o755)  # independent of the umask: 0777 would let any user replace our folder
    _mkdir(home, PRIVATE)
    _check_way(home)
    _check_own(home)
    _seen[home] = _state(home)


def private(folder: Path) -> Path:
    """Create a folder within the home that other users cannot read, independent of the umask."""
    folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        folder.chmod(PRIVATE)
    return folder


def described(home: Path) -> str:
    found = home.stat()
    return f"it belongs to {_name(found.st_uid)}, mode {stat.S_IMODE(found.st_mode):04o}"


# A folder found fit is checked again only when it has changed: settings are read for every call.
_seen: dict[Path, tuple[int, ...] | None] = {}


def _state(home: Path) -> tuple[int, ...] | None:
    try:
        found = home.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_uid, found.st_mode, os.geteuid()


def _mkdir(folder: Path, mode: int) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=mode)


def _check_own(home: Path) -> None:
    found = home.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(20, os.strerror(20), str(home))
    if found.st_uid != os.geteuid():
        raise Unfit(
            f"it belongs to {_name(found.st_uid)} and you are {_name(os.geteuid())}: its owner could have programs run "
            "as you",
            f"Set KINETIC_HOME to a folder of your own, such as a new one within it ({home}/{_short(os.geteuid())}). "
            "If it is yours under another name, as with NFS's root_squash or a user that an image made, run as "
            f"{_name(found.st_uid)}, or give it to yourself: chown -R {_short(os.geteuid())} {home}",
        )
    mode = stat.S_IMODE(found.st_mode)
    if others_write(found):
        raise Unfit(
            f"others may write it (mode {mode:04o}) and could have programs run as you",
            f"Look whether everything in it is yours (find {home} ! -user {_short(os.geteuid())}), then: "
            f"chmod 700 {home}",
            ours=True,
        )
    if mode & 0o077:
        with contextlib.suppress(OSError):  # reported below
            home.chmod(PRIVATE)
        if stat.S_IMODE(home.stat().st_mode) & 0o077:
            raise Unfit(
                f"others may read it (mode {mode:04o}), and its file system does not let that be changed",
                "Set KINETIC_HOME to a folder on a file system that keeps permissions",
            )


def _check_way(home: Path) -> None:
    """Check every folder and link on the path to it: a user who can rename one can replace it."""
    trusted = {0, os.geteuid()} | ({_OVERFLOW} if kernel.in_user_namespace() else set())
    here, left, links = Path("/"), list(home.parts[1:]), 0
    _check_folder(here, home, trusted)
    while left:
        part = left.pop(0)
        if part == "..":
            here = here.parent
            continue
        above, here = here, here / part
        found = here.lstat()
        if found.st_uid not in trusted and (here != home or stat.S_ISLNK(found.st_mode)):
            raise _others(here, home, f"belongs to {_name(found.st_uid)}", f"sudo chown root {here}")
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _LINKS:
                raise OSError(40, os.strerror(40), str(home))
            target = Path(os.readlink(here))
            here = Path("/") if target.is_absolute() else above
            left = [*target.parts[1 if target.is_absolute() else 0 :], *left]
        elif left:
            _check_folder(here, home, trusted)


def _check_folder(folder: Path, home: Path, trusted: set[int]) -> None:
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_ISVTX or not others_write(found):
        return
    if found.st_uid in trusted and _is_volume(folder):
        return
    raise _others(folder, home, f"can be written by others (mode {mode:04o})", f"chmod go-w {folder}")


def _others(folder: Path, home: Path, what: str, mend: str) -> Unfit:
    return Unfit(
        f"{folder} above it {what}, so that somebody else could put another folder in the place of {home.name}",
        f"Set KINETIC_HOME to a folder in a place of your own, or, if nobody needs it to be so: {mend}",
    )


def _is_volume(folder: Path) -> bool:
    """Return True for a volume of a container, which its orchestrator makes writable for all: a pod's spec decides who
    sees it."""
    contained = "KUBERNETES_SERVICE_HOST" in os.environ or any(map(os.path.exists, _CONTAINED))
    return contained and folder != Path("/") and os.path.ismount(folder)


_CONTAINED: Final = ("/.dockerenv", "/run/.containerenv")


def _name(uid: int) -> str:
    name = _short(uid)
    return f"uid {uid}" if name == str(uid) else f"{name} (uid {uid})"


def _short(uid: int) -> str:
    return name_of(uid) or str(uid)


def name_of(uid: int) -> str | None:
    """Return the name of an account of this machine; None if it has none."""
    import pwd

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return None
