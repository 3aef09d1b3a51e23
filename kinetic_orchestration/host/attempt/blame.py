"""Rules that attribute a program's failure to its machine or to another host. Pure."""

from __future__ import annotations

import signal

from kinetic_orchestration.protocol import rules, wire


def of_driver(exit_: rules.Exit, report: rules.Report | None, tail: bytes) -> rules.Exit:
    """Return the failure as the machine's, if its accelerator's driver failed: new hosts may not meet it.

    tail: the last of what the program printed.
    """
    traceback = report.traceback if report is not None else ""
    if not rules.is_driver(f"{exit_.reason}\n{traceback}\n{tail.decode('utf-8', 'replace')}"):
        return exit_
    return exit_._replace(cause=wire.INFRASTRUCTURE, reason=f"the accelerator's driver failed: {exit_.reason}")


def is_echo(exit_: rules.Exit, report: rules.Report | None, tail: bytes, hosts: int) -> bool:
    """Return True if a failure looks like the consequence of another one that has not been reported yet."""
    if exit_.cause != wire.USER:
        return False
    if exit_.code == -signal.SIGTERM:
        return True
    if hosts == 1:
        return False
    text = (report.type if report is not None else "") + " " + exit_.reason
    return rules.is_echo(text if exit_.code > 0 else text + tail.decode("utf-8", "replace"))
