"""A job as every process can rebuild it from its store."""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import dataclass, field, replace
from typing import Any

from kinetic_orchestration.capacity.choosing import Resumes
from kinetic_orchestration.capacity.facts import way_of
from kinetic_orchestration.capacity.races import known as with_winner
from kinetic_orchestration.capacity.shares.line import Line
from kinetic_orchestration.capacity.taken import taken
from kinetic_orchestration.errors import Corrupt, JobNotFound
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.trust import ALONE, Trust
from kinetic_orchestration.plan.records import Within, intent_of, plan_of, spec_of, within
from kinetic_orchestration.plan.values import Intent, Outcome, Plan
from kinetic_orchestration.platforms.backend import Backend, Races
from kinetic_orchestration.platforms.shared.read_only import ReadOnlyBackend
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.wire.task import Task

ME = f"{os.getpid()}-{secrets.token_hex(6)}"  # this process, as a writer of records


@dataclass(frozen=True, slots=True)
class Job:
    """A job as every process can rebuild it from the store: its spec, its store and its backend."""

    job_id: str
    store: Store
    backend: Backend
    policy: lifecycle.Policy
    spec_digest: str
    trust: Trust = ALONE
    doubt: str = ""  # why nothing of it is started or unpickled here
    kept: tuple[str, ...] = ()  # what Secret Manager keeps for it until it has ended
    runs_on: str = ""  # the name of the backend that its plan names
    within: Within | None = None  # which places its attempts may be in, by its plan
    written: bytes = field(default=b"", repr=False)  # its spec, while the process that wrote it submits it
    signed: str = ""  # the name of the key that its verdicts are signed with; "" for none
    ended: str = ""  # its end, as seen by the process that handed it over
    limited: bool = False  # by a cost
    shared: bool = False  # its attempts take turns with those of other jobs
    keeps: bool = False  # its attempts take slices that others have left, and leave theirs
    # The place in the line of each attempt; None of one that needs no turn.
    lines: dict[int, Line | None] = field(default_factory=dict, repr=False, compare=False)
    # Of each attempt, which candidates can go on from what those before it have saved.
    resumes: dict[int, Resumes] = field(default_factory=dict, repr=False, compare=False)

    def spec(self) -> dict[str, Any]:
        if self.written:
            return spec_of(self.written, self.job_id)
        record = self.store.read(names.spec(self.job_id))
        if record is None:
            raise JobNotFound(missing(self.job_id, self.store))
        if self.trust.checks and digest.of_bytes(record.data) != self.spec_digest:
            raise Corrupt(f"{names.spec(self.job_id)} in {self.store.url} was changed while the job was followed")
        return spec_of(record.data, self.job_id)

    def task(self) -> Task:
        return Task.from_json(self.spec()["task"])

    def plan(self) -> Plan:
        """Return the plan; of a job with a choice, `at` gives that of an attempt."""
        return plan_of(self.spec(), self.job_id)

    def plan_of(self, attempt: int, known: Intent | None = None) -> Plan:
        """Return the plan of an attempt, by its intent: one that is `known`, or the one in the store."""
        plan = self.plan()
        return plan.at(self.choice_of(attempt, known)) if plan.choices else plan

    def policy_of(self, attempt: int, known: Intent | None = None) -> lifecycle.Policy:
        """Return the limits of an attempt, likewise."""
        if not isinstance(self.policy, lifecycle.Policies):
            return self.policy
        return self.policy.at(self.choice_of(attempt, known))

    def taken(self, attempt: int) -> str:
        """Return which of several choices or places an attempt takes, and which were tried before, or which warm slice,
        for users; "" if there was nothing to choose, or if it is not known."""
        plan = self.plan()
        chooses = plan.choices or plan.race > 1 or plan.keep is not None
        record = self.store.read(names.intent(self.job_id, attempt)) if chooses else None
        try:
            return "" if record is None else taken(plan, self._intent_in(record, attempt).placement)
        except Corrupt:
            return ""

    def choice_of(self, attempt: int, known: Intent | None = None) -> int:
        """Return the number of the candidate that an attempt takes; 0 if that is not known."""
        if known is not None and known.attempt == attempt:
            return known.choice
        record = self.store.read(names.intent(self.job_id, attempt))
        try:
            return 0 if record is None else self._intent_in(record, attempt).choice
        except Corrupt:
            return 0

    def _intent_in(self, record: Record, attempt: int) -> Intent:
        """Return an attempt's intent, with the place that has won its race. Raises Corrupt."""
        intent = intent_of(record, self.job_id, attempt, self.within)
        return with_winner(self.store, self.job_id, intent, self.believes)

    @property
    def is_sealed(self) -> bool:
        """True if what the job's hosts and clients decide counts here only with the seal of its key's holder, and the
        key is ours."""
        return bool(self.signed) and not self.doubt and self.signed == self.trust.key_id

    def believes(self, attempt: int, won: bytes) -> bool:
        """Return True if a record of who has won the race of an attempt counts: with its hosts' seal, if the job is
        signed and this process can check it."""
        return not self.is_sealed or self.trust.has_sealed_win(self.store, self.job_id, attempt, won)

    def on(self, backend: Backend) -> Job:
        """Return the job with the backend that it runs on; an onlooker of that backend for a job in doubt."""
        if self.within is not None and self.within.race > 1 and not isinstance(backend, Races):
            from kinetic_orchestration.capacity.races.backend import Racing

            backend = Racing(backend, self.store, self.believes)
        return replace(self, backend=ReadOnlyBackend(backend) if self.doubt else backend)


def open_job(
    job_id: str, store: Store, backend: Backend, trust: Trust = ALONE, spec_digest: str = "",
    written: Record | None = None, ended: str = "",
) -> Job:  # fmt: skip
    """`spec_digest`: that of the job's spec, if it is known by another way than the store, as what it has `ended` in;
    `written`: the spec, if it was written here just now.
    """
    record, trust = written, trust.at(store)
    if record is None and isinstance(job_id, str) and job_id.replace("-", "").isalnum():
        record = store.read(names.spec(job_id))
    if record is None:
        raise JobNotFound(missing(job_id, store))
    found = digest.of_bytes(record.data)
    doubt = "" if written is not None else trust.doubt_of_spec(store, job_id, found, spec_digest)
    spec = spec_of(record.data, job_id)
    plan = plan_of(spec, job_id)
    policy, each = policy_of(plan, record.updated), plan.each()
    sends = any(one.traits.secret_service for one in each)
    kept = tuple(names.secret(job_id, variable) for variable in plan.secrets) if sends else ()
    runs_on = sys.intern(plan.runs_on)
    data = b"" if written is None else written.data
    signed = sys.intern(spec.get("signed", "")) if trust.checks else ""
    job = Job(
        sys.intern(job_id), store, backend, policy, found, trust, doubt, kept, runs_on, within(plan), data, signed,
        ended, any(one.affordable > 0 for one in each), any(one.turn for one in each),
        plan.keep is not None and any(one.traits.may_be_kept for one in each),
    )  # fmt: skip
    return job.on(backend)


def without_spec(job: Job) -> Job:
    """Return the job without the data of its submission: each of a thousand handles would hold its own."""
    return replace(job, written=b"") if job.written else job


def authenticated(job: Job, spec_digest: str, ended: str = "") -> Job:
    """Return the job, trusted if its handle or cursor has its spec's digest. Raises Corrupt if the spec differs."""
    job = replace(job, ended=ended) if ended else job
    if not spec_digest or not job.doubt:
        return job
    backend = job.backend.backend if isinstance(job.backend, ReadOnlyBackend) else job.backend
    known = replace(job, doubt=job.trust.doubt_of_spec(job.store, job.job_id, job.spec_digest, spec_digest))
    return known.on(backend)


def missing(job_id: str, store: Store) -> str:
    return (
        f"there is no job {job_id!r} in {store.url}: look at `kinetic-orchestration jobs`, and check that "
        "KINETIC_STORE and KINETIC_DEPLOYMENT are those of the submitter; records go when they are older than "
        "KINETIC_RETENTION"
    )


def policy_of(plan: Plan, created: float) -> lifecycle.Policy:
    """Return the limits of a job's attempts."""
    if plan.choices:
        each = plan.each()
        asked = tuple(f"{one.named} {way_of(one)}" for one in each)
        return lifecycle.Policies.joined([_policy_of(one, 0.0) for one in each], asked, created)
    return _policy_of(plan, created)


def _policy_of(plan: Plan, created: float) -> lifecycle.Policy:
    limits = plan.limits
    return lifecycle.Policy(
        hosts=plan.hosts,
        crew=plan.crew,
        words=plan.traits.words,
        user=plan.retry.user,
        preemption=plan.retry.preemption,
        infra=plan.retry.infra,
        provision=float(limits.provision or 0.0),
        total=float(limits.total or 0.0),
        created=created,
        silence=0.0 if plan.traits.agents_observed else lifecycle.SILENT_BEATS,
        affordable=plan.affordable,
        usd=float(limits.cost or 0.0),
        keeps=plan.keep is not None and plan.traits.may_be_kept,
    )


def how_it_ended(job: Job, outcome: Outcome | None) -> str:
    """Return how a cancelled job ended: it may have finished first."""
    if outcome is None:
        return f"not ended yet; to look again: kinetic-orchestration status {job.job_id}"
    return outcome.status.value.lower()


def set_aside(store: Store, name: str, data: bytes) -> str:
    """Copy the bytes of a damaged record to a name beside it. Returns the sentence that reports it."""
    store.create(kept := f"{name}.damaged", data)
    return f"Its bytes are kept in {kept}"


def keep_damaged(job: Job, name: str) -> str:
    record = job.store.read(name)
    return "" if record is None else set_aside(job.store, name, record.data)
