"""Files and folders of this machine: which users may change one, and the removal of a folder with all in it."""

from __future__ import annotations

import os
import stat


def others_write(status: os.stat_result) -> bool:
    """Return True if it is writable for users other than its owner, or for a group with more members than its owner."""
    mode = status.st_mode
    return bool(mode & stat.S_IWOTH) or (bool(mode & stat.S_IWGRP) and not is_own_group(status.st_gid))


def is_own_group(gid: int) -> bool:
    """Return True for the group that many systems create for each user, without other members: there a umask of 002 is
    usual.
    """
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:  # a container's user without a name
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def is_private(path: str, home: str) -> bool:
    """Return True if only this user reaches a file by its path: it is in `home`, which is 0700, and every folder from
    there to it is this user's own, is no link, and is not writable by others. Both paths are real ones.
    """
    me = os.geteuid()
    if not path.startswith(home + os.sep):
        return False
    folder = os.path.dirname(path)
    while True:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != me or others_write(found):
            return False
        if folder == home:
            return not found.st_mode & 0o077
        folder = os.path.dirname(folder)


def remove_tree(folder: str) -> None:
    """Remove a folder with all that is in it, folders without the right to write included. Raises nothing."""
    try:
        _remove(folder)
    except OSError:
        _remove_by_force(folder)


def _remove(folder: str) -> None:
    """Remove as shutil does, which takes longer to import than most folders take to go."""
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            _remove(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(folder)


def _remove_by_force(folder: str) -> None:
    import contextlib
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        for path, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                os.chmod(path, stat.S_IRWXU)
        shutil.rmtree(folder, ignore_errors=True)
