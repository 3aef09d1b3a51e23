"""This process's memory of an account's VMs: it only saves calls, and says more of VMs that were seen before they
were gone. It makes no call and decides nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kinetic_orchestration.platforms.google.compute import request, states
from kinetic_orchestration.platforms.google.compute.states import Event, Member, Seen, Vm
from kinetic_orchestration.platforms.google.rest import retries

LOOK_AGAIN = 15.0  # seconds until the operations of a VM that is gone are listed again, if they said nothing
A_MOMENT = 1.0  # seconds, within which all VMs of a placement are judged
MOST_SEEN = 4096  # VMs that are remembered
_MINUTE = 60.0


class Memory:
    """The VMs of one account as this process has seen them by name, and their operations by path.

    Args:
        account: The emulator and the project, whose rate of calls all backends of this process share.
    """

    def __init__(self, account: tuple[str, str]) -> None:
        self._account = account
        self._seen: dict[str, Seen] = {}  # by name, a string that a follower has: what is known since it was last seen
        self._events: dict[str, tuple[float, list[Event]]] = {}  # its operations, and when they were listed
        self._unshown: dict[str, float] = {}  # since when something is made without being shown
        self._repairing: dict[str, float] = {}  # start of its repair by this process's clock
        self._unmade: set[str] = set()  # placements that this process has chosen and nobody is known to have submitted

    # The rate of calls

    @property
    def is_throttled(self) -> bool:
        return retries.is_throttled(self._account)

    def slow_down(self) -> None:
        """Make no call until the next full minute, when the API's rates begin anew."""
        retries.throttle(self._account, _MINUTE - time.time() % _MINUTE)

    # Placements

    def chosen(self, placement: Mapping[str, Any]) -> None:
        """Note that a placement was chosen, of which there is nothing yet."""
        if len(self._unmade) >= MOST_SEEN:
            self._unmade.clear()  # which costs a call for each
        self._unmade.add(_path_of(placement))

    def asked_for(self, placement: Mapping[str, Any]) -> None:
        """Note that something of a placement may exist by now."""
        self._unmade.discard(_path_of(placement))

    # What is there

    def before(self, name: str) -> Seen | None:
        return self._seen.get(name)

    def keep(self, name: str, path: str, vm: Vm, known_as: str) -> Vm:
        """Keep what was seen of a VM; return it with the time for which it is known to be under repair. `known_as`: The
        path by which its operations are remembered."""
        now = time.monotonic()
        if vm.status == states.REPAIRING:
            vm = vm._replace(repairing=now - self._repairing.setdefault(path, now))
        else:
            self._repairing.pop(path, None)
        if not states.is_lost(vm):
            # Else those of others are kept there as well, or those of its end.
            if not states.is_told(vm) and (known_as == path or name not in self._seen):
                self._events.pop(known_as, None)
            known, seen = self._seen.pop(name, None), Seen(vm.started, vm.ends, sys.intern(vm.account))
            self._seen[name] = known if known is not None and known == seen else seen
            while len(self._seen) > MOST_SEEN:
                del self._seen[next(iter(self._seen))]
        return vm

    def timed(self, path: str, member: Member) -> Member:
        """Return the member with the seconds for which it was not shown, by this process's clock."""
        if member.now is None and member.is_made:
            return member._replace(missed=self.missed(path))
        self.shows(path)
        return member

    def missed(self, path: str) -> float:
        """Return the seconds since this was asked first of what is made and not shown."""
        now = time.monotonic()
        return now - self._unshown.setdefault(path, now)

    def shows(self, path: str) -> None:
        """Note that it is shown, or that it is not known to be made."""
        self._unshown.pop(path, None)

    def forget(self, path: str) -> None:
        """Forget the times of what is gone for good."""
        for known in (self._unshown, self._repairing):
            known.pop(path, None)

    # What became of it

    def told(self, path: str) -> Sequence[Event]:
        """Return the operations that were listed last."""
        return self._events.get(path, (0.0, []))[1]

    def listed_at(self, path: str) -> float:
        """Return when its operations were listed, by this process's clock; 0.0 if they never were."""
        return self._events.get(path, (0.0, []))[0]

    def is_fresh(self, path: str) -> bool:
        """Return True if its operations were listed a moment ago."""
        listed = self.listed_at(path)
        return bool(listed) and time.monotonic() - listed < A_MOMENT

    def listed(self, path: str, events: list[Event]) -> None:
        self._events[path] = (time.monotonic(), events)
        while len(self._events) > MOST_SEEN:
            del self._events[next(iter(self._events))]

    def is_to_be_asked(self, placement: Mapping[str, Any], path: str, vm: Vm | None = None) -> bool:
        """Return True if a VM that is not shown alive is worth a request: not while nobody has made it, nor once its
        operations have said why it is gone, and not again at once."""
        if _path_of(placement) in self._unmade:
            return False
        listed, events = self._events.get(path, (0.0, []))
        if any(map(states.is_an_end, events)):
            return False
        # That a VM is being made is soon over, and a list without its insert is older than one that is there.
        is_old = not listed or not all(event.ended for event in events) or (vm is not None and not events)
        return is_old or time.monotonic() - listed >= LOOK_AGAIN


def _path_of(placement: Mapping[str, Any]) -> str:
    return f"{request.zone_of(placement)}/{placement['name']}"
