"""Bugs that the simulation has to find: each is planted in a copy of this tree, and seeds are played there.

`python -m tests.simulation.planted` plants one after another and tells which seed found each; names, or parts of
them, choose some. One that nothing finds is a gap in the scenario or in its judge. Run by hand, or with
`pytest -m offline`: it takes minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PARTS = ("kinetic_orchestration", "tests/simulation", "pyproject.toml")
SEEDS = 20_000


class Planted(NamedTuple):
    name: str
    file: str  # of kinetic_orchestration
    right: str
    wrong: str
    where: str = "--cloud"  # what is played


PLANTED = (
    Planted(
        "a slice of a race runs its program although another one has won",
        "host/attempt/race.py",
        "    if _names(won, at, key):  # also",
        "    if won is not None:  # also",
        "--races",
    ),
    Planted(
        "a host of a race goes on when nobody has won it in time",
        "host/attempt/race.py",
        "        return True\n    return False\n\n\ndef has_won",
        "        return True\n    return won is None\n\n\ndef has_won",
        "--races",
    ),
    Planted(
        "a guard ends the attempt of a slice that has not won",
        "host/guard.py",
        "    if not race.has_won(host.at, host.records, host.outcome.key):\n        return\n",
        "",
        "--races",
    ),
    Planted(
        "a slice that has lost stays until its deadline",
        "host/attempt/self_delete.py",
        "        bootstrap.end_slice(at.resource, *at.unit(), taken=lambda: race.tell_gone(at))\n        return\n",
        "        return\n",
        "--races",
    ),
    Planted(
        "only the first place of a race is released",
        "capacity/races/backend.py",
        "return rules.freed([self.inner.release(place) for place in _all(placement)])",
        "return rules.freed([self.inner.release(place) for place in _all(placement)[:1]])",
        "--races",
    ),
    Planted(
        "an attempt is closed although a place of its race lives",
        "capacity/races/backend.py",
        "        if len(failed) == len(places):\n",
        "        if failed:\n",
        "--races",
    ),
    Planted(
        "a race is over for its follower once one of its places has failed",
        "capacity/races/rules.py",
        "    if not left:\n",
        "    if lost:\n",
        "--races",
    ),
    Planted(
        "the next attempt forgets what the other places have refused for good",
        "jobs/following/placing.py",
        "        dropped += [name for name in names_of_gone if name not in dropped]\n",
        "",
        "--races",
    ),
    Planted(
        "the reaper closes the attempt of a race when one place has died",
        "jobs/cleanup/raced.py",
        "    if seen.state != GONE:\n        return None\n",
        "",
        "--races",
    ),
    Planted(
        "a place of a race is asked again that another follower has given up",
        "capacity/races/backend.py",
        "            failed |= records.failures(self._store, job_id, attempt, (number,))\n",
        "",
        "--races",
    ),
    Planted(
        "what another place of a race has refused is said of the first one, which was lost",
        "jobs/following/placing.py",
        "        elif own in failed:  # by its own",
        "        elif own in failed and failed[own].cause in WITHOUT_HOSTS:  # by its own",
        "--races",
    ),
    Planted(
        "the reaper ends a race by the place that it looks at, whatever the others have answered",
        "jobs/cleanup/raced.py",
        "    return seen.cause or cause, seen.message or reason\n",
        "    return cause, reason\n",
        "--races",
    ),
    Planted(
        "a place of a race is released before it is recorded that it has failed",
        "capacity/races/backend.py",
        "            self._fail(places[number], job_id, intent.attempt, Failed(*why))\n",
        "",
        "--races",
    ),
    Planted(
        "a place of a race counts as gone once its hosts have asked for that",
        "capacity/races/records.py",
        '.get("seen") is True or now - record.updated > patience:',
        '.get("seen") is True or now >= record.updated:',
        "--shares",
    ),
    Planted(
        "a slice yields while a place of its race is there",
        "capacity/shares/rules.py",
        "return bool(grant.kept) and not grant.yields and grant.holds.chips * grant.want.places <= grant.want.chips",
        "return bool(grant.kept) and not grant.yields",
        "--shares",
    ),
    Planted(
        "hosts are gone a while after the verdict, whenever they were done",
        "capacity/shares/rules.py",
        "now - max(seen.over, seen.done) > DONE",
        "now - seen.over > DONE",
        "--shares",
    ),
    Planted(
        "what yields to a turn is forgotten with the book",
        "capacity/shares/records.py",
        "            if of in grants:\n",
        "            if of not in grants and of in grants:\n",
        "--shares",
    ),
    Planted(
        "a slice that is kept has no chips",
        "capacity/shares/rules.py",
        "        return seen.lease == lease.ENDED and now - seen.changed > RELEASED\n",
        "        return True\n",
        "--shares",
    ),
    Planted(
        "one slice yields to two attempts",
        "capacity/shares/rules.py",
        "return bool(grant.kept) and not grant.yields and",
        "return bool(grant.kept) and",
        "--shares",
    ),
    Planted(
        "what yields counts no more, although it is there",
        "capacity/shares/rules.py",
        "max(0, need - needs.get(name, 0))",
        "0",
        "--shares",
    ),
    Planted(
        "a refused release is forgotten with its follower",
        "jobs/following/follower.py",
        "RELEASE_PAUSE / 2, True),) if last else ()",
        "RELEASE_PAUSE / 2, True),) if not last else ()",
    ),
    Planted(
        "a node is left when its queued resource is gone",
        "platforms/google/tpu/backend.py",
        "        for name in request.nodes_of(placement):\n            node = self._tpus.node(name)\n",
        "        for name in ():\n            node = self._tpus.node(name)\n",
    ),
    Planted(
        "what a create call finds there is not adopted",
        "platforms/google/tpu/backend.py",
        "if trouble.action in (api_errors.ADOPT, api_errors.AGAIN, api_errors.HERE):",
        "if trouble.action in (api_errors.AGAIN, api_errors.HERE):",
    ),
    Planted(
        "a suspension by USER counts as one by SERVICE",
        "platforms/google/tpu/states.py",
        'return f"somebody deleted the slice ({where}, by USER)", wire.CANCELLED',
        'return f"the slice was preempted ({where}, by USER)", wire.PREEMPTION',
    ),
    Planted(
        "a node that somebody deleted counts as preempted",
        "platforms/google/tpu/states.py",
        'return f"{text}: somebody deleted it", wire.CANCELLED',
        "return text, wire.PREEMPTION",
    ),
    Planted(
        "a machine's deadline comes by its own clock",
        "host/machine/bootstrap.py",
        "while (left := deadline - store_time()) > 0:",
        "while (left := deadline - time.time()) > 0:",
    ),
    Planted(
        "a machine trusts its own clock when the store is silent",
        "host/machine/bootstrap.py",
        "return told + time.monotonic() - then if told else time.time()",
        "return time.time()",
    ),
    Planted(
        "a follower judges ages by its own clock",
        "jobs/watching/poll.py",
        "        taken = store.now()\n",
        "        taken = time.time()\n",
    ),
    Planted(
        "the reaper judges a deadline by its own clock",
        "jobs/cleanup/reaper.py",
        "    now = store.now()\n    if expires and now > expires + EXPIRED:",
        "    now = time.time()\n    if expires and now > expires + EXPIRED:",
    ),
    Planted(
        "internal errors stay in one zone for ever",
        "platforms/shared/places.py",
        "if past.cause == wire.INTERNAL and before.tries < TWICE:",
        "if past.cause == wire.INTERNAL:",
    ),
    Planted(
        "a notice of preemption is read after the exit",
        "protocol/attempt_rules.py",
        "    if seen.preempted or seen.ended:  # before the exit: what ends a machine ends its programs too\n",
        "    if (seen.preempted or seen.ended) and seen.exit is None:\n",
    ),
    Planted(
        "a host that is ended for another that died counts as taken away",
        "protocol/attempt_rules.py",
        "    if not awaited or (company.read",
        "    if seen.preempted or (company.read",
        "--cluster",
    ),
    Planted(
        "a host that is ended for another that died before programs ran counts as taken away",
        "protocol/attempt_rules.py",
        "    awaited = company.missing or (() if seen.running else company.absent)\n",
        "    awaited = company.missing if seen.running else ()\n",
        "--cluster",
    ),
    Planted(
        "a frozen host 0 of several pods is ended by nobody",
        "host/attempt/self_delete.py",
        "or (at.host and _is_told_by_host_0(at, records, verdict)):",
        "or at.host:",
        "--cluster",
    ),
    Planted(
        "nobody asks for a notice when a program fails",
        "host/host.py",
        "self.preempted = self.preempted or self.machine.notice()",
        "self.preempted = self.preempted",
    ),
    Planted(
        "a poll older than one's own act is believed",
        "jobs/watching/look.py",
        "        or poll.taken <= cache.stale_before\n",
        "",
    ),
    Planted(
        "an intent comes before the verdict on the attempt before it",
        "jobs/lifecycle.py",
        "    elif state in (GONE, WOUNDED) or (state == ABSENT and (began or seen.shown)):\n",
        "    elif state == GONE:\n"
        '        return Step(Cursor(cursor.attempt + 1, "resuming", (), cursor.spent))\n'
        "    elif state in (GONE, WOUNDED) or (state == ABSENT and (began or seen.shown)):\n",
    ),
    Planted(
        "the reaper ends a slice that lives",
        "jobs/cleanup/reaper.py",
        "    if seen.state == GONE:\n        state = placement.get",
        "    if seen.state in (GONE, PRESENT):\n        state = placement.get",
    ),
    Planted(
        "the reaper deletes what lives, and writes no verdict",
        "jobs/cleanup/reaper.py",
        '    if verdict is not None or placement["age"] < UNCLAIMED:\n        return "", ""',
        '    if verdict is not None or placement["age"] < UNCLAIMED:\n        return "it is old", ""',
    ),
    Planted(
        "the reaper knows of one zone",
        "platforms/google/tpu/backend.py",
        "            return list(page.found)\n",
        "            return [one for one in page.found if one.zone == self._settings.zones[0]]\n",
    ),
    Planted(
        "the reaper looks at queued resources and at no nodes",
        "platforms/google/tpu/backend.py",
        "        for node in self._everywhere(self._tpus.nodes, project, unread):",
        "        for node in ():",
    ),
    Planted(
        "the label of the deadline is missing",
        "platforms/shared/ownership.py",
        "        EXPIRES: str(int(intent.deadline)),\n",
        "",
    ),
    Planted(
        "a later attempt's slice has the label of a deadline in the past",
        "platforms/shared/ownership.py",
        "        EXPIRES: str(int(intent.deadline)),\n",
        "        EXPIRES: str(int(intent.deadline) if intent.attempt == 1 else 1),\n",
    ),
    Planted(
        "a machine's deadline is never armed",
        "host/machine/bootstrap.py",
        "while (left := deadline - store_time()) > 0:",
        "while (left := deadline + 1e6 - store_time()) > 0:",
    ),
    Planted(
        "another attempt is released",
        "jobs/lifecycle.py",
        "        ends = seen.cancel is not None or _over_total(seen, policy)\n"
        "        return Step(following, (Release(cursor.attempt),), () if ends else changes)",
        "        ends = seen.cancel is not None or _over_total(seen, policy)\n"
        "        return Step(following, (Release(following.attempt),), () if ends else changes)",
    ),
    Planted(
        "the last attempt is not released",
        "jobs/following/follower.py",
        "        if not any(refused.attempt == attempt for refused in self.refused):\n            self._release(attempt, seen)",
        "        if not seen:\n            self._release(attempt, seen)",
    ),
    Planted(
        "a client's second verdict takes the place of the first",
        "jobs/following/actions.py",
        "    job.store.create(names.verdict(job.job_id, attempt), verdict.encode())\n",
        "    if job.store.create(names.verdict(job.job_id, attempt), verdict.encode()) is None:\n"
        "        record = job.store.read(names.verdict(job.job_id, attempt))\n"
        "        job.store.swap(names.verdict(job.job_id, attempt), verdict.encode(), record.generation)\n",
    ),
    Planted(
        "a zombie does not look for a verdict",
        "host/view/bucket.py",
        "            if self._verdict is None:\n                self._verdict = read_bounded",
        "            if self._verdict is not None:\n                self._verdict = read_bounded",
    ),
    Planted(
        "a stockout spends the budget of infrastructure",
        "jobs/lifecycle.py",
        "    wire.STOCKOUT: (FREE, JobStatus.FAILED),",
        '    wire.STOCKOUT: ("infra", JobStatus.FAILED),',
    ),
    Planted(
        "a cancel is lost while its job waits in a queue",
        "jobs/lifecycle.py",
        "    elif seen.cancel is not None:\n        if state in",
        "    elif seen.cancel is not None and not _is_waiting(seen):\n        if state in",
    ),
    Planted(
        "when host 0 is dead nobody deletes the slice",
        "host/attempt/self_delete.py",
        "    turn = _wait_for_turn(at) if",
        "    if at.host:\n        return\n    turn = _wait_for_turn(at) if",
    ),
    Planted(
        "a watcher looks ten times a second",
        "jobs/watching/watchers/polling.py",
        "        return max(usual, min(LINE_POLL_SECONDS, self._in_line()))",
        "        return 0.1",
    ),
    Planted(
        "a follower that waits asks again and again",
        "platforms/google/tpu/backend.py",
        "            if wait := self._still_made(resource, context):\n                return wait\n",
        "",
    ),
    Planted(
        "a refused place is asked for again at once",
        "jobs/lifecycle.py",
        "    return intent is not None and intent.wait > 0 and seen.now < intent.created + intent.wait",
        "    return False",
    ),
    Planted(
        "a failed look means that the slice is gone",
        "platforms/google/tpu/backend.py",
        "                trouble = api_errors.classify(_status_of(raised), CallContext(project, zone))\n"
        '                refused = trouble.cause if trouble.action == api_errors.DROP else ""\n',
        "                seen.update((index, states.observation(None, (), CallContext())) for index in indices)\n"
        "                continue\n",
    ),
    Planted(
        "a rate limit leads to another zone",
        "platforms/google/api_errors.py",
        "    Row((EXHAUSTED,), rf\"requests per (minute|second|day)|{RATE}\", (), wire.QUOTA, LATER, RATE),\n",
        "",
    ),
    Planted(
        "a zone without quota is asked again and again",
        "platforms/shared/places.py",
        "    before = before._replace(dropped=(*before.dropped, *new))\n",
        "",
    ),
    Planted(
        "a request waits in its zone for ever",
        "platforms/google/vms.py",
        "    return max(SHORTEST_WAIT, min(left)) if left else 0.0",
        "    return 0.0",
    ),
    Planted(
        "the host that lost another is blamed for it",
        "protocol/attempt_rules.py",
        "    if seen.exit is not None and seen.exit.code != 0 and not _may_be_of_another(seen):",
        "    if seen.exit is not None and seen.exit.code != 0:",
    ),
    Planted(
        "a rebooted host begins anew",
        "host/attempt/opening.py",
        "not in (life, None):\n            raise Restarted",
        "not in (life, None) and False:\n            raise Restarted",
    ),
    Planted(
        "a node in repair is dead at once",
        "platforms/google/tpu/states.py",
        "REPAIR_PATIENCE = 900.0",
        "REPAIR_PATIENCE = 0.0",
    ),
    Planted(
        "a total that is spent leads to one more attempt",
        "jobs/lifecycle.py",
        "    if reason := _over_total(seen, policy):\n        return Step(cursor, (Close(wire.DEADLINE, reason, unplaced=True),))\n"
        "    return Step(cursor, (Intend(),))",
        "    return Step(cursor, (Intend(),))",
    ),
    Planted(
        "a line that comes while others are written is lost",
        "host/view/segments.py",
        "            del self._frames[:count]\n",
        "            del self._frames[: count + 1]\n",
    ),
    Planted(
        "an accepted delete is believed",
        "platforms/google/compute/verbs/free.py",
        "return Freed.UNDER_WAY if accepted and left.status in states.ENDING else Freed.REFUSED\n",
        "return Freed.UNDER_WAY if accepted else Freed.REFUSED\n",
        "--compute",
    ),
    Planted(
        "what a list does not show is not there",
        "platforms/google/compute/verbs/look.py",
        "if vm is None and is_list and",
        "if vm is None and not is_list and",
        "--compute",
    ),
    Planted(
        "operations from before an insert explain its VM",
        "platforms/google/compute/verbs/memory.py",
        " or (vm is not None and not events)\n        return is_old",
        "\n        return is_old",
        "--compute",
    ),
    Planted(
        "a disk is left behind",
        "platforms/google/compute/verbs/free.py",
        "        if disk is None or not self._is_ours(",
        "        if True or disk is None or not self._is_ours(",
        "--compute",
    ),
    Planted(
        "an insert that found its name taken is a failure",
        "platforms/google/compute/causes.py",
        '("RESOURCE_ALREADY_EXISTS", "alreadyExists"), wire.CONFIGURATION, ADOPT)',
        '("RESOURCE_ALREADY_EXISTS", "alreadyExists"), wire.CONFIGURATION, FATAL)',
        "--compute",
    ),
    Planted(
        "what is taken back from an on-demand VM counts as preempted",
        "platforms/google/compute/states.py",
        "    cause = wire.PREEMPTION if model == SPOT else wire.INFRASTRUCTURE\n",
        "    cause = wire.PREEMPTION\n",
        "--compute",
    ),
    Planted(
        "a VM in repair is dead at once",
        "platforms/google/compute/states.py",
        "REPAIR_PATIENCE = 900.0",
        "REPAIR_PATIENCE = 0.0",
        "--compute",
    ),
    Planted(
        "a preempted VM counts as failed",
        "platforms/google/compute/states.py",
        "    cause = wire.PREEMPTION if model == SPOT else wire.INFRASTRUCTURE\n",
        "    cause = wire.INFRASTRUCTURE\n",
        "--compute",
    ),
    Planted(
        "the host of an on-demand VM that is taken back tells of a preemption",
        "host/machine/vm/instance.py",
        "wire.INFRASTRUCTURE if spot == \"FALSE\" else wire.PREEMPTION",
        "wire.PREEMPTION",
        "--compute",
    ),
    Planted(
        "a VM that somebody deleted counts as failed",
        "platforms/google/compute/states.py",
        'return f"{where}: {event.user} {did} it", wire.CANCELLED',
        'return f"{where}: {event.user} {did} it", wire.INFRASTRUCTURE',
        "--compute",
    ),
    Planted(
        "a host deletes its own VM before the others",
        "host/machine/bootstrap.py",
        "for index in [*range(own), *range(own + 1, number), own]]",
        "for index in [own, *range(own), *range(own + 1, number)]]",
        "--compute",
    ),
    Planted(
        "a host deletes its own VM alone",
        "host/machine/bootstrap.py",
        "        left = [url for url in others if not _is_gone(url, told)]\n",
        "        left = []\n",
        "--compute",
    ),
    Planted(
        "a VM that flex-start never granted counts as failed",
        "platforms/google/compute/states.py",
        "        return _wait_is_over(context, member.name), wire.STOCKOUT\n",
        "        return _wait_is_over(context, member.name), wire.INFRASTRUCTURE\n",
        "--compute",
    ),
    Planted(
        "a group whose wait is over counts as failed",
        "platforms/google/compute/states.py",
        "        return why, wire.STOCKOUT\n",
        "        return why, wire.INFRASTRUCTURE\n",
        "--groups",
    ),
    Planted(
        "a release is judged by what is seen of another attempt",
        "jobs/following/follower.py",
        "        if intent is None or intent.attempt != attempt:\n            return None\n",
        "        if intent is None:\n            return None\n",
        "--compute",
    ),
    *(
        Planted(
            f"VMs that shut down are charged for ({where})",
            "platforms/google/compute/states.py",
            "    return bool(there) and all(vm.status in _CHARGED_NO_LONGER for vm in there)\n",
            "    return False\n",
            where,
        )
        for where in ("--compute", "--groups")
    ),
    Planted(
        "the guard of a VM's second process says nothing of its agent's death",
        "host/guard.py",
        "    if code == -signal.SIGTERM and host.machine.is_explained and not host.machine.notice():\n",
        "    if host.at.host % host.at.processes:\n",
        "--compute",
    ),
    Planted(
        "the failure of a VM's second process is not told",
        "host/host.py",
        "                self._decide(move.cause, move.reason, move.host, move.grace)\n",
        "                if not self.at.host % self.at.processes:\n"
        "                    self._decide(move.cause, move.reason, move.host, move.grace)\n",
        "--compute",
    ),
    Planted(
        "a job succeeds without the second processes of its VMs",
        "host/host.py",
        "            hosts=self.at.hosts,\n",
        "            hosts=self.at.machines,\n",
        "--compute",
    ),
    Planted(
        "a VM is deleted while its second process is at work",
        "host/attempt/self_delete.py",
        "is_gone(at, host) for host, state in states.items())",
        "is_gone(at, host) for host, state in states.items() if not host % at.processes)",
        "--compute",
    ),
    Planted(
        "a second process whose agent ends while its VM goes down waits for its turn",
        "host/attempt/self_delete.py",
        "        if goes_down():\n            return\n",
        "        assert goes_down() in (False, True)\n",
        "--compute",
    ),
    Planted(
        "a second process that waits for its turn keeps its VM from going down",
        "host/attempt/self_delete.py",
        "        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # before it is asked, so that no signal goes unheard\n",
        "",
        "--compute",
    ),
    Planted(
        "each process of a VM counts as a VM when its attempt is deleted",
        "protocol/assignment.py",
        "            return self.machines, self.machine_of(self.host)\n",
        "            return self.hosts, self.host\n",
        "--compute",
    ),
    Planted(
        "a host deletes its own group before the others",
        "host/machine/bootstrap.py",
        "for index in [*range(own), *range(own + 1, number), own]]",
        "for index in [own, *range(own), *range(own + 1, number)]]",
        "--groups",
    ),
    Planted(
        "hosts delete one group of several",
        "host/machine/bootstrap.py",
        "        left = [url for url in others if not _is_gone(url, told)]\n",
        "        left = []\n",
        "--groups",
    ),
    Planted(
        "a template is freed before its group",
        "platforms/google/compute/verbs/free.py",
        "            if freed is Freed.DONE:  # what is in use by the one before cannot go\n",
        "            if True:\n",
        "--groups",
    ),
    Planted(
        "templates and policies are never freed",
        "platforms/google/compute/verbs/free.py",
        "            if freed is Freed.DONE:  # what is in use by the one before cannot go\n",
        "            if False:\n",
        "--groups",
    ),
    Planted(
        "a member is deleted alone",
        "platforms/google/compute/verbs/free.py",
        "        if not request.is_grouped(placement):\n            return _worst([self._tried(self._release",
        "        if True:\n            return _worst([self._tried(self._release",
        "--groups",
    ),
    Planted(
        "the accepted delete of a group is believed",
        "platforms/google/compute/verbs/free.py",
        "            return Freed.PARTLY if found.leaves or (deletion is not None and found.deletes) else Freed.REFUSED\n",
        "            return Freed.PARTLY if deletion is not None else Freed.REFUSED\n",
        "--groups",
    ),
    Planted(
        "the reaper knows groups, and neither templates nor policies",
        "platforms/google/compute/verbs/free.py",
        "dict.fromkeys((GROUPS, TEMPLATES, POLICIES), named",
        "dict.fromkeys((GROUPS,), named",
        "--groups",
    ),
    Planted(
        "the reaper knows VMs and disks alone",
        "platforms/google/compute/verbs/free.py",
        "dict.fromkeys((GROUPS, TEMPLATES, POLICIES), named",
        "dict.fromkeys((), named",
        "--groups",
    ),
    Planted(
        "nobody reads until when a group may wait",
        "platforms/google/compute/states.py",
        "    is_over = 0 < group.until <= now\n",
        "    is_over = False\n",
        "--groups",
    ),
    Planted(
        "a group's wait is over by the clock of whoever looks",
        "platforms/google/compute/client.py",
        "        return told + time.monotonic() - then if told else time.time()\n",
        "        return time.time()\n",
        "--groups",
    ),
    Planted(
        "the error of a group that gets no hosts is not read",
        "platforms/google/compute/states.py",
        "        if one.is_refused or (not comes and (not may_pass or is_late)):\n",
        "        if False:\n",
        "--groups",
    ),
    Planted(
        "a group that a list does not show is not there",
        "platforms/google/compute/verbs/look.py",
        "if group is None and groups.is_list and",
        "if group is None and not groups.is_list and",
        "--groups",
    ),
    Planted(
        "who has deleted a group is not told",
        "platforms/google/compute/states.py",
        "    return sorted([*own, *over, *failed],",
        "    return sorted([*own, *failed],",
        "--groups",
    ),
    Planted(
        "a host reads the task of the job's first candidate",
        "host/attempt/opening.py",
        "task = Task.decode(spec, name, self._at.choice)",
        "task = Task.decode(spec, name)",
        "--candidates",
    ),
    Planted(
        "an attempt is judged by the hosts of the first candidate",
        "jobs/lifecycle.py",
        "        return self.at(0 if intent is None else intent.choice)\n",
        "        return self\n",
        "--candidates",
    ),
    Planted(
        "an attempt is made by the first candidate, whatever its intent names",
        "jobs/following/actions.py",
        "    plan = plan.at(intent.choice) if plan.choices else plan\n",
        "",
        "--candidates",
    ),
    Planted(
        "what was preempted is asked for again",
        "capacity/choosing.py",
        "leave=past.cause == wire.PREEMPTION,",
        "leave=False,",
        "--candidates",
    ),
    Planted(
        "a request waits in its queue as if there were no other candidate",
        "platforms/google/vms.py",
        "    if plan.choices:  #",
        "    if False:  #",
        "--candidates",
    ),
    Planted(
        "hosts that were had elsewhere wipe what is known of a place",
        "capacity/facts.py",
        "    sizes: dict[Kin, list[FactKey]] = defaultdict(list)\n",
        "    if any(one.outcome == GOT for one in own.values()):\n"
        "        own = {key: one if one.outcome == GOT else NOTHING for key, one in own.items()}\n"
        "    sizes: dict[Kin, list[FactKey]] = defaultdict(list)\n",
        "--facts",
    ),
    Planted(
        "everybody tries an aged place again",
        "capacity/records.py",
        "        if key is None or claim(",
        "        if True or claim(",
        "--facts",
    ),
    Planted(
        "who is faster takes another's probe",
        "capacity/records.py",
        "(probe=own) if is_free and state in (AGED, UNKNOWN) else fact",
        "(probe=own)",
        "--facts",
    ),
    Planted(
        "a stockout of a small slice says nothing of a large one",
        "capacity/facts.py",
        "if other.size < key.size]",
        "if other.size < 0]",
        "--facts",
    ),
    Planted(
        "a stockout never ages",
        "capacity/facts.py",
        "STOCKOUT if now - last.at < AGE",
        "STOCKOUT if now - last.at < WINDOW",
        "--facts",
    ),
    Planted(
        "a turn that is to be freed is still used",
        "capacity/shares/line.py",
        "    if grant is None or grant.leaving:\n        return None\n    yielding",
        "    if grant is None:\n        return None\n    yielding",
        "--shares",
    ),
    Planted(
        "a turn that nobody seems to use is freed unmarked",
        "capacity/shares/rules.py",
        "return MARK if now - grant.at > START else KEEP",
        "return FREE if now - grant.at > START else KEEP",
        "--shares",
    ),
    Planted(
        "a turn of an attempt that was begun is freed",
        "capacity/shares/rules.py",
        "        if seen.deadline and now > seen.deadline + EXPIRED:\n",
        "        if now > grant.at + START:\n",
        "--shares",
    ),
    Planted(
        "a turn is freed while its hosts cannot be",
        "capacity/shares/rules.py",
        "return FREE if _is_gone(grant, seen, now) and not seen.is_held else KEEP",
        "return FREE if _is_gone(grant, seen, now) else KEEP",
        "--shares",
    ),
    Planted(
        "a turn is freed with the verdict, and not with the hosts",
        "capacity/shares/rules.py",
        "return FREE if _is_gone(grant, seen, now) and not seen.is_held else KEEP",
        "return FREE if not seen.is_held else KEEP",
        "--shares",
    ),
    Planted(
        "a turn costs nothing when it is given",
        "capacity/shares/rules.py",
        "Use(used + want.weighted * ENTRY, self._now)",
        "Use(used, self._now)",
        "--shares",
    ),
    Planted(
        "use does not fade",
        "capacity/shares/rules.py",
        "used = before.used * 0.5 ** (passed / HALF_LIFE) + _integral(rates[whose], passed)",
        "used = before.used + _integral(rates[whose], passed)",
        "--shares",
    ),
    Planted(
        "what is held is no use before it ends",
        "capacity/shares/rules.py",
        "used = before.used * 0.5 ** (passed / HALF_LIFE) + _integral(rates[whose], passed)",
        "used = before.used * 0.5 ** (passed / HALF_LIFE)",
        "--shares",
    ),
    Planted(
        "small ones pass a big one for ever",
        "capacity/shares/rules.py",
        "        if not late and (not over or self._makes_room(want, over)):\n",
        "        if not over or self._makes_room(want, over):\n",
        "--shares",
    ),
    Planted(
        "newcomers who have used less pass a big one for ever",
        "capacity/shares/rules.py",
        "if first is not None and first[:2] == want.key and self._now - first.at >= PATIENCE:",
        "if first is not None and False:",
        "--shares",
    ),
    Planted(
        "more chips are given than a share has",
        "capacity/shares/rules.py",
        "if self._used[bound.name] + bound.need > bound.most]",
        "if self._used[bound.name] >= bound.most]",
        "--shares",
    ),
    Planted(
        "whom no share names has no bound",
        "plan/configuration/chip_shares.py",
        "share = named.get(who) or (named.get(ANYBODY) if scope else None)",
        "share = named.get(who)",
        "--shares",
    ),
    Planted(
        "the price of a chip is not counted",
        "plan/configuration/chip_shares.py",
        "need = chips if what else chips * weight",
        "need = chips",
        "--shares",
    ),
    Planted(
        "any refused swap counts as one's own",
        "capacity/shares/records.py",
        "return found if found.book.writer == book.writer else None",
        "return found._replace(book=book)",
        "--shares",
    ),
    Planted(
        "all contents of the book have one token",
        "capacity/shares/records.py",
        "book = book._replace(writer=secrets.token_hex(8))",
        'book = book._replace(writer="one")',
        "--shares",
    ),
    Planted(
        "the book is replaced whatever is there",
        "capacity/shares/records.py",
        "written = store.swap(names.BOOK, data, generation) if generation",
        "written = store.put(names.BOOK, data) if generation",
        "--shares",
    ),
    Planted(
        "a lease never ends",
        "capacity/shares/line.py",
        "if found.book.holder == self._me or now >= found.book.until:",
        "if found.book.holder in (self._me, ''):",
        "--shares",
    ),
    Planted(
        "a holder that was replaced removes what is another's",
        "capacity/shares/line.py",
        "        if written is not None:  # else",
        "        if True:  # else",
        "--shares",
    ),
    Planted(
        "turns are stamped by the clock of whoever decides",
        "capacity/shares/line.py",
        "        now = self._store.now()\n        if now < self._told.again:",
        "        now = __import__('time').time()\n        if now < self._told.again:",
        "--shares",
    ),
    Planted(
        "a write of a lease whose answer was lost counts as a defeat",
        "protocol/records/leases.py",
        "return found is not None and bytes(found.data) == data",
        "return False",
        "--leases",
    ),
    Planted(
        "a lease is replaced whatever is there",
        "protocol/records/leases.py",
        "records.swap(name, data, before.generation)",
        "records.put(name, data)",
        "--leases",
    ),
    Planted(
        "orders of a claim are obeyed without their seal",
        "protocol/wire/lease.py",
        " or not hmac.compare_digest(self._seal_of(self.orders, key), self.seal):",
        ":",
        "--leases",
    ),
    Planted(
        "a slice is offered before all of its hosts are clean",
        "host/attempt/idle.py",
        "        while wanted:\n            for entry",
        "        while wanted and not wanted:\n            for entry",
        "--leases",
    ),
    Planted(
        "a slice is offered after a cancel, or whatever ended its attempt",
        "host/attempt/idle.py",
        "if not verdict.leaves_slice(verdict.cause):",
        "if verdict.kind == wire.CLOSED:",
        "--leases",
    ),
    Planted(
        "a slice is chosen whose key another home has",
        "jobs/following/placing.py",
        'return bool(key) and lease.key in ("", key_name(key))',
        "return lease is not None and key_name(key) is not None",
        "--leases",
    ),
    Planted(
        "a host obeys a claim of an epoch before its own",
        "host/attempt/idle.py",
        "        elif lease.epoch == own + 1 and lease.state == CLAIMED:",
        "        elif lease.state == CLAIMED:",
        "--leases",
    ),
    Planted(
        "when host 0 is dead nobody ends what was not claimed",
        "host/attempt/idle.py",
        "turn = FIRST_TURN + TURN * self._at.host if self._at.host else 0.0",
        "turn = float('inf') if self._at.host else 0.0",
        "--leases",
    ),
    Planted(
        "a slice is claimed before an intent has promised it",
        "jobs/following/actions.py",
        "    generation = job.store.create(name, data)\n    if generation is None:\n        return None\n    if past",
        "    if chosen.warm is not None:\n"
        "        from kinetic_orchestration.capacity.warm.records import Claim, claim\n"
        "        held = chosen.warm.lease\n"
        "        key = job.trust.slice_key(job.store, held.made_for, held.made_at)\n"
        "        told = Claim(job.job_id, attempt, job.store.now() + 600.0, {}, {}, key, ME)\n"
        "        claim(job.store, held.slice, held.epoch + 1, told)\n"
        "    generation = job.store.create(name, data)\n    if generation is None:\n        return None\n    if past",
        "--leases",
    ),
    Planted(
        "a slice that is free is not found",
        "capacity/warm/choosing.py",
        "if choice is None or lease.state != FREE or now > lease.until - SPARE:",
        "if choice is None or lease.state != FREE or now > lease.since + SPARE:",
        "--leases",
    ),
    Planted(
        "the release of the first job deletes the slice of the second",
        "capacity/warm/releasing.py",
        "is_anothers = held is not None and not held.lease.is_of(use.job, use.attempt)",
        "is_anothers = False",
        "--leases",
    ),
    Planted(
        "a slice is deleted while its hosts clean it",
        "capacity/warm/releasing.py",
        "if is_anothers or use.is_cleaning(store.now()):",
        "if is_anothers:",
        "--leases",
    ),
    Planted(
        "a slice is deleted whose lease has not ended",
        "capacity/warm/releasing.py",
        "if _end(store, use, held, _why(use)):",
        "if True:",
        "--leases",
    ),
    Planted(
        "an attempt that has not claimed its slice yet takes it for its own",
        "jobs/watching/look.py",
        "    if not cache.claimed:\n",
        "    if False:\n",
        "--leases",
    ),
    Planted(
        "a claim without an answer closes its attempt",
        "jobs/following/actions.py",
        "    except StoreError:  # it is not known",
        "    except AssertionError:  # it is not known",
        "--leases",
    ),
    Planted(
        "a host forgets to arm the end of what it offers",
        "host/attempt/idle.py",
        '        rearming.rearm(self._at, min(until + ARMED, last or float("inf")))\n',
        "",
        "--leases",
    ),
    Planted(
        "a host forgets to arm the deadline of the attempt that has claimed it",
        "host/attempt/idle.py",
        '            rearming.rearm(self._at, float(str(told["deadline"])))\n',
        "",
        "--leases",
    ),
    Planted(
        "an attempt that has lost its lease works on",
        "host/attempt/lease.py",
        "        if not self._why:\n            return None\n",
        "        if True:\n            return None\n",
        "--leases",
    ),
    Planted(
        "the reaper goes by the deadline of a slice's labels",
        "jobs/cleanup/leased.py",
        '    placement |= {"job": lease.job, "attempt": lease.attempt, "expires": lease.until, "age": age}\n',
        '    placement |= {"job": lease.job, "attempt": lease.attempt, "age": age}\n',
        "--leases",
    ),
    Planted(
        "a slice is claimed in another epoch than the intent has promised",
        "capacity/warm/records.py",
        "    if lease.state == CLAIMED or lease.epoch + 1 != epoch:\n",
        "    if lease.state == CLAIMED:\n",
        "--leases",
    ),
    Planted(
        "hosts that have lost their race may offer their slice",
        "host/attempt/idle.py",
        '        if not race.has_won(at, self._records):\n            raise Over("another place has won',
        '        if not at.job:\n            raise Over("another place has won',
        "--leases --races",
    ),
    Planted(
        "the slice of a loser is kept by its client",
        "capacity/warm/releasing.py",
        'leaves=use.leaves and won in (None, place.get("rival"))',
        "leaves=use.leaves",
        "--leases --races",
    ),
    Planted(
        "a slice that has deleted itself counts as idle until somebody ends its lease",
        "protocol/wire/lease.py",
        "last = now if is_there else min(now, self.until + ARMED)",
        "last = now",
        "--leases --races",
    ),
)  # fmt: skip


class Change(NamedTuple):
    file: str  # of this tree
    right: str
    wrong: str


def copy_with(changes: Sequence[Change], folder: Path) -> None:
    """A copy of this tree, in which what is right is replaced by what is wrong."""
    for part in PARTS:
        source, target = ROOT / part, folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, target)
    for change in changes:
        file = folder / change.file
        text = file.read_text(encoding="utf-8")
        if (count := text.count(change.right)) != 1:
            raise LookupError(f"{change.file} has {count} times what is to be replaced, and not once: {change.right}")
        file.write_text(text.replace(change.right, change.wrong), encoding="utf-8")


def broken_with(changes: Sequence[Change], *options: str) -> list[str]:
    """The broken promises that `python -m tests.simulation OPTIONS` reports in such a copy: a line for each seed."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy_with(changes, Path(folder))
        played = subprocess.run(
            [sys.executable, "-m", "tests.simulation", *options],
            cwd=folder, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True,
        )  # fmt: skip
    if played.returncode not in (0, 1):
        raise RuntimeError(played.stderr)
    return re.findall(r"(?m)^seed \d+: .*", played.stdout)


def find(bug: Planted, *, seeds: int = SEEDS, first: int = 0) -> str:
    """The first broken promise, or ""."""
    change = Change(f"kinetic_orchestration/{bug.file}", bug.right, bug.wrong)
    return next(iter(broken_with([change], *bug.where.split(), "--stop", f"--first={first}", f"--seeds={seeds}")), "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted")
    parser.add_argument("names", nargs="*", help="only these: parts of their names")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    chosen = [bug for bug in PLANTED if not arguments.names or any(part in bug.name for part in arguments.names)]
    missed = 0
    for bug in chosen:
        try:
            found = find(bug, seeds=arguments.seeds, first=arguments.first)
        except (LookupError, RuntimeError) as error:
            found = ""
            print(f"{bug.name}: {error}")
        missed += not found
        print(f"{bug.name:68}  {found[:150] or 'NOT FOUND'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
