"""What a follower has read of an attempt and need not read again."""

from __future__ import annotations

from kinetic_orchestration.jobs.watching.decode import read_intent
from kinetic_orchestration.plan.records import Within
from kinetic_orchestration.plan.values import Intent
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.base import Record

BLINK = 45.0  # the longest that is believed to have been watched between two looks


class Memory:
    """What a follower has read of an attempt and need not ask for again, where asking is a request."""

    __slots__ = (
        "asked", "attempt", "cancel", "charged", "hint", "intent", "looked", "newest", "not_before", "overlooked",
        "present", "promised", "reads", "shown", "silence", "told", "urgent", "verdict", "within", "without", "woken",
    )  # fmt: skip

    def __init__(self, within: Within | None = None) -> None:
        self.within = within
        self.reads = True  # what devices do, which is more than all else that a host says
        self.woken = False  # by a watcher, also once a zone was looked at that might not be looked at before
        self.urgent = False  # all the same: an attempt was intended, whose hosts are asked for after the next look
        self.attempt = 0
        self.cancel: Record | None = None
        self.forget()

    def forget(self) -> None:
        """Another attempt follows; a cancel is the job's."""
        self.intent: Intent | None = None
        self.promised = 0  # the generation of the record that it was read from
        self.verdict: Record | None = None
        self.hint: object = None
        self.asked = 0.0
        self.not_before = 0.0
        self.overlooked = False  # the newest look left its zone out: whatever the next one sees of it is news
        self.present = 0.0  # since when its hosts were seen to be there
        self.shown = 0.0  # when they were last
        self.without = 0.0  # when none of them was, before that
        self.charged = 0.0  # before which none can have been charged for; 0: none was seen
        self.told = False  # and the store knows of it, as host 0 does not say so
        self.newest = self.looked = self.silence = 0.0

    def recall(self, store: Store, backend: Backend, job_id: str, attempt: int) -> Intent | None:
        """The intent of the attempt that is followed now."""
        self._turn_to(attempt)
        if self.intent is None and (promised := store.read(names.intent(job_id, attempt))) is not None:
            return self.intent_in(promised, backend, job_id, attempt)
        return self.intent

    def intent_in(self, promised: Record, backend: Backend, job_id: str, attempt: int) -> Intent:
        """The intent that a record tells of. One that was understood before is not taken apart again."""
        self._turn_to(attempt)
        if self.intent is None or self.promised != promised.generation:
            intent = read_intent(promised, backend, job_id, attempt, self.within)
            unknown = intent.damage and not intent.placement  # nothing is there yet, or nobody can say: asked again
            if unknown:
                return intent
            self.intent, self.promised = intent, promised.generation
        return self.intent

    def _turn_to(self, attempt: int) -> None:
        if self.attempt != attempt:
            self.forget()
            self.attempt = attempt

    def silence_at(self, newest: float, now: float) -> float:
        """For how long nothing newer was said, under our eyes: while a store is away, hosts cannot be heard either, and
        those that are well speak soon after it is back.
        """
        if newest != self.newest:
            self.newest, self.silence = newest, 0.0
        elif now > self.looked:
            self.silence += min(now - self.looked, BLINK)
        self.looked = max(now, self.looked)
        return self.silence

    def acted(self, now: float) -> None:
        """What was seen before is not what is there now."""
        self.hint = None
        self.not_before = now
