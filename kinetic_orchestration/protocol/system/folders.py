"""Files and folders of this machine: which users may change one, and the removal of a folder with all in it."""

from __future__ import annotations

import errno
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
    """Remove a folder with all that is in it, folders without the right to write included. Raises nothing.

    No link is followed: of a link that stands in the place of the folder, the link goes. What is mounted in the folder
    is not this folder's, and stays.
    """
    try:
        remove_entry(None, folder)
    except (OSError, RecursionError):
        pass


def remove_entry(parent: int | None, name: str, device: int | None = None) -> None:
    """Remove what an open folder has under a name: a file, a link, or a folder with all that is in it.

    Each folder is opened without following a link, and what it has is removed by way of that: whoever replaces a folder
    by a link meanwhile leads it nowhere. Whatever can be removed is.

    Args:
        parent: The open folder; None for a name that is a path.
        name: A name in it, and no path.
        device: The file system that a folder must be on; None for any.

    Raises:
        OSError: Something is left: it is refused, or another file system is mounted there.
    """
    if parent is not None and (name in ("", ".", "..") or "/" in name):
        raise OSError(errno.EINVAL, "no name in a folder", name)
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=parent)
        return
    if device not in (None, status.st_dev):
        raise OSError(errno.EXDEV, "another file system is mounted there", name)
    _empty(parent, name, status)
    os.rmdir(name, dir_fd=parent)


def open_folder(name: str, parent: int | None = None) -> int:
    """Open a folder, but not through a link. Raises OSError."""
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def _empty(parent: int | None, name: str, status: os.stat_result) -> None:
    """Remove what is in a folder, as far as that is on the same file system. Raises the last OSError."""
    if status.st_mode & stat.S_IRWXU != stat.S_IRWXU and status.st_uid == os.geteuid():
        os.chmod(name, stat.S_IRWXU, dir_fd=parent)
    folder = open_folder(name, parent)
    try:
        found = os.fstat(folder)
        if (found.st_dev, found.st_ino) != (status.st_dev, status.st_ino):
            raise OSError(errno.EBUSY, "another folder has taken its place", name)
        failed = [error for inner in os.listdir(folder) if (error := _failure(folder, inner, status.st_dev))]
    finally:
        os.close(folder)
    if failed:
        raise failed[-1]


def _failure(folder: int, name: str, device: int) -> OSError | None:
    """Remove one entry. Returns what kept it from that."""
    try:
        remove_entry(folder, name, device)
    except FileNotFoundError:  # another process was faster
        pass
    except OSError as error:
        return error
    return None
