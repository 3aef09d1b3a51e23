"""Runs a server, and ends it with all that it started once the process that asked for it is gone.

Its source is given to an interpreter of the host (`python -c`), so it imports nothing of this package.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading


def main() -> None:
    """Arguments: a pipe, a folder, and the command. "t" in the pipe asks the server to end; the pipe's end, which comes
    also when the asking process dies, ends it at once. Then the folder is removed, unless "k" was in the pipe.
    """
    pipe, folder, argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    group = os.getpgrp()
    if group != os.getpid():
        sys.exit("the leash of a server leads a group of its own, since it ends all of it")
    try:
        server = subprocess.Popen(argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        sys.exit(127)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it goes to the whole group, and the server decides

    cleaning = threading.Event()

    def watch() -> None:
        kept = False
        while word := os.read(pipe, 1):
            if word == b"t":
                os.killpg(group, signal.SIGTERM)
            kept = kept or word == b"k"
        if not kept:  # nobody else will
            cleaning.set()
            server.kill()
            shutil.rmtree(folder, ignore_errors=True)
        os.killpg(group, signal.SIGKILL)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    code = server.wait()
    if cleaning.is_set():  # it ends all of the group, this process too, once the folder is removed
        watching.join()
    ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    sys.stderr.write(f"kinetic: the server {ended}\n")
    sys.stderr.flush()
    os.killpg(group, signal.SIGKILL)  # what it left behind, and this process


if __name__ == "__main__":
    main()
