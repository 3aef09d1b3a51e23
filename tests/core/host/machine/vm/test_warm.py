"""Hosts of slices that are kept after their attempts: they clean themselves, offer, wait, and serve the next one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.host.attempt import idle, lease, self_delete
from kinetic_orchestration.host.machine import bucket_records
from kinetic_orchestration.host.view import bucket
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from tests.support.on_vms import Attempt, Site, constants
from tests.support.waits import wait_until
from tests.support.warm_vms import SHAPE, boot, claim, ended, lease_of, offered, shell

SLEEP = "echo running; exec sleep 600"
BUSY = "echo running; echo 'TPU initialization failed: open(/dev/vfio/0): Device or resource busy' >&2; exit 1"


@pytest.fixture(autouse=True)
def hosts_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    constants(monkeypatch, bucket, UNWATCHED=1.0)
    constants(monkeypatch, lease, PACE=0.5)


def running(attempt: Attempt, hosts: int = 1) -> Attempt:
    for host in range(hosts):
        wait_until(lambda host=host: "running" in attempt.log(host))
    return attempt


def named(attempt: Attempt, name: str, host: int = 0) -> list[int]:
    """Return the processes of a VM that have that name."""

    def has_name(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/comm").read_text().strip() == name
        except OSError:
            return False

    return [pid for pid in attempt.vms[host].processes() if has_name(pid)]


def armed(attempt: Attempt) -> int:
    """Return the process that holds the deadline of a VM."""
    wait_until(lambda: len(named(attempt, "kinetic-end")) == 1)
    return named(attempt, "kinetic-end")[0]


# ---- offered, claimed, run ----------------------------------------------------------------------------------------


def test_a_slice_is_offered_after_its_attempt_and_the_next_one_runs_there(site: Site) -> None:
    first = boot(shell(site, "echo first", keep=100.0))
    assert first.verdict().kind == wire.COMMITTED
    free = offered(first)
    assert (free.slice, free.shape, free.placement["name"]) == (first.name, SHAPE, first.name)
    assert (free.made_for, free.job, free.attempt, free.last) == (first.job, first.job, 1, 0.0)
    assert free.until == pytest.approx(free.since + 100.0)
    assert site.records.read(names.left(first.job, 1)) is not None
    second = shell(site, "echo second")
    claim(first, second)
    assert second.verdict().kind == wire.COMMITTED
    assert second.log() == "second\n"
    again = offered(first, epoch=1)
    assert (again.job, again.made_for) == (second.job, first.job)
    assert [one.job for one in again.idle] == [first.job]
    assert not site.apis.deleted


@pytest.mark.parametrize("rival", [0, 1])
def test_the_place_that_has_won_a_race_is_offered_as_one_of_its_own(site: Site, rival: int) -> None:
    first = boot(shell(site, "echo first", rival=rival), rival=rival)
    free = offered(first)
    assert (free.slice, free.placement["name"], free.placement["zone"]) == (first.name, first.name, "us-central2-b")
    assert not {"rival", "rivals", "won"} & {*free.placement}
    second = shell(site, "echo second")
    claim(first, second)
    assert second.verdict().kind == wire.COMMITTED
    assert offered(first, epoch=1).job == second.job
    assert site.records.read(names.won(second.job, 1)) is None, "nobody races there any more"


def test_a_place_that_has_not_won_a_race_is_deleted_and_never_offered(site: Site) -> None:
    first = shell(site, "echo first", rival=1)
    site.records.create(names.won(first.job, 1), wire.encode({"rival": 0, "writer": "another"}))
    site.records.create(names.verdict(first.job, 1), wire.Verdict(wire.COMMITTED, "another", 0.0).encode())
    boot(first, rival=1).gone()
    assert lease_of(first) is None


@pytest.mark.slow
@pytest.mark.turn
def test_the_next_attempt_of_the_same_job_gets_the_slice_of_its_failed_one_and_its_verdict_is_sealed(
    site: Site,
) -> None:
    script = 'test "$KINETIC_ATTEMPT" = 2 && echo again || exit 3'
    first = boot(shell(site, script))
    assert (first.verdict().cause, first.verdict().reason[:7]) == (wire.USER, "the pro")
    offered(first)
    second = Attempt(site, first.job, 1, 1, first.spec, first.agent)
    second.number = 2
    claim(first, second, key_of_verdict="0f" * 32)
    verdict = second.verdict()
    assert (verdict.kind, bool(verdict.seal)) == (wire.COMMITTED, True)
    assert second.log() == "again\n"


@pytest.mark.slow
@pytest.mark.turn(8)
def test_the_hosts_of_a_slice_follow_a_claim_together(site: Site) -> None:
    first = boot(shell(site, "echo first", accelerator="v5e-16"))
    offered(first)
    second = shell(site, "echo $KINETIC_HOST_INDEX of $KINETIC_HOST_COUNT", accelerator="v5e-16")
    claim(first, second)
    assert second.verdict().kind == wire.COMMITTED
    assert [second.log(host) for host in range(4)] == [f"{host} of 4\n" for host in range(4)]
    offered(first, epoch=1)


@pytest.mark.slow
@pytest.mark.turn
def test_the_next_attempt_is_charged_from_its_claim_on(site: Site) -> None:
    first = boot(shell(site, "echo first"))
    offered(first)
    time.sleep(2.0)  # an age, of which the next attempt must not be told
    second = shell(site, "echo second")
    claimed = time.monotonic()
    claim(first, second)
    second.verdict()
    started = site.records.read(names.host(second.job, 1, 0, "started.json"))
    assert started is not None
    assert 0.0 <= wire.decode(started.data)["up"] <= time.monotonic() - claimed


# ---- not offered --------------------------------------------------------------------------------------------------


def _cancel(attempt: Attempt) -> None:
    attempt.site.records.create(names.cancel(attempt.job), wire.encode({"reason": "enough", "by": "a test"}))
    attempt.site.records.ring(attempt.job)


def _kill_agent(attempt: Attempt) -> None:
    (agent,) = named(attempt, "kinetic-agent")
    os.kill(agent, 9)


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize(
    ("script", "task", "act", "cause"),
    [
        (SLEEP, {}, _cancel, wire.CANCELLED),
        (SLEEP, {}, lambda attempt: attempt.vms[0].preempt(notice=60.0), wire.PREEMPTION),
        (SLEEP, {}, _kill_agent, wire.INFRASTRUCTURE),
        (SLEEP, {"stall": 1.0}, lambda _: None, wire.STALL),
        (SLEEP, {"run": 1.0}, lambda _: None, wire.DEADLINE),
        (BUSY, {}, lambda _: None, wire.INFRASTRUCTURE),
    ],
    ids=["cancel", "preemption", "a killed agent", "stall", "deadline", "driver"],
)  # fmt: skip
def test_no_slice_is_offered_after_any_other_end(
    site: Site, script: str, task: dict[str, Any], act: Callable[[Attempt], object], cause: str
) -> None:
    attempt = running(boot(shell(site, script, task=task)))
    act(attempt)
    assert attempt.verdict().cause == cause
    attempt.gone()
    found = lease_of(attempt)
    assert found is None or found.state == "ended"


@pytest.mark.slow
@pytest.mark.turn
def test_a_job_that_keeps_none_deletes_its_slice_also_one_that_it_has_taken(site: Site) -> None:
    first = boot(shell(site, "echo first"))
    offered(first)
    second = shell(site, "echo second", keep=0.0)
    claim(first, second)
    assert second.verdict().kind == wire.COMMITTED
    assert ended(first).why == "its job keeps none"


def test_a_job_without_keep_knows_nothing_of_leases(site: Site) -> None:
    attempt = site.admit(argv=("/bin/sh", "-c", "ls ${KINETIC_ROOT:?}/var/lib/kinetic")).start(lease_key="6b")
    assert attempt.verdict().kind == wire.COMMITTED
    attempt.gone()
    assert "kept" not in attempt.log()
    assert list(site.records.list(names.SLICES)) == []


# ---- clean --------------------------------------------------------------------------------------------------------

LEAVES = r"""
cd "${KINETIC_ROOT:?}"
mkdir -p dev/shm root/.config/gcloud tmp/mounted tmp/deep/er var/lib/kinetic/private
mkdir -p var/lib/kinetic/cache/data/shared var/lib/kinetic/cache/other
mount -t tmpfs mine tmp/mounted 2>/dev/null && touch tmp/mounted/there
for file in tmp/left tmp/deep/er/left dev/shm/left root/.config/gcloud/credentials.db; do
  printf secret > "$file"
done
printf shared > var/lib/kinetic/cache/data/shared/data
printf secret > var/lib/kinetic/private/left
printf secret > var/lib/kinetic/cache/other/left
python3 - <<'END'
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for end in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), end)
        os.execve("/bin/sleep", ["escaped", "600"], {})
    os._exit(0)
os.wait()
END
echo "$TOKEN" | wc -c
"""
LOOKS = r"""
cd "${KINETIC_ROOT:?}"
find tmp dev/shm root etc var/lib/kinetic/private var/lib/kinetic/cache/other -type f 2>/dev/null
grep -c mounted /proc/self/mounts
for comm in /proc/[0-9]*/cmdline; do tr '\0' ' ' < "$comm" 2>/dev/null | grep '^escaped' ; done
cat var/lib/kinetic/cache/data/shared/data; echo
echo "TOKEN=$TOKEN"
"""


def test_the_next_program_sees_a_clean_machine_and_what_is_shared(site: Site) -> None:
    site.apis.secrets["projects/emulated/secrets/token/versions/latest"] = b"correct horse"
    first = boot(shell(site, LEAVES, task={"secrets": {"TOKEN": "projects/emulated/secrets/token"}}))
    assert first.verdict().kind == wire.COMMITTED, first.log()
    assert first.log() == "14\n"
    offered(first)
    second = shell(site, LOOKS)
    claim(first, second)
    assert second.verdict().kind == wire.COMMITTED
    assert second.log() == "0\nshared\nTOKEN=\n"


@pytest.mark.slow
@pytest.mark.turn
def test_a_machine_whose_programs_were_changed_is_deleted_and_its_lease_says_why(site: Site) -> None:
    mine = shell(site, 'echo "# mine" >> "${KINETIC_ROOT:?}/bin/tool"')
    attempt = boot(mine, machine={"programs": {"tool": "#!/bin/sh\nexit 0\n"}})
    assert attempt.verdict().kind == wire.COMMITTED
    assert ended(attempt).why == "host 0 is not clean: /bin/tool was changed"


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize("path", ["etc/cron.d/mine", "run/systemd/transient/run-u1.service", "var/spool/cron/root"])
def test_what_the_system_may_have_started_in_place_of_the_job_is_a_doubt(site: Site, path: str) -> None:
    attempt = boot(shell(site, f'cd "${{KINETIC_ROOT:?}}" && mkdir -p {path.rpartition("/")[0]} && touch {path}'))
    assert attempt.verdict().kind == wire.COMMITTED
    why = ended(attempt).why
    assert why.startswith("host 0 is not clean: /")
    assert why.endswith("is new, by which the system may have started something")


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize(
    ("listed", "offers"), [("echo GPU 0: L4", True), ("echo no devices; exit 9", False)], ids=["all GPUs", "none"]
)
def test_a_machine_whose_gpus_do_not_answer_any_longer_is_a_doubt(site: Site, listed: str, offers: bool) -> None:
    task = {"emulated": False, "accelerator": {"kind": "gpu", "generation": "l4", "topology": ""}, "devices": 1}
    attempt = boot(shell(site, "echo first", task=task), machine={"programs": {"nvidia-smi": f"#!/bin/sh\n{listed}\n"}})
    assert attempt.verdict().kind == wire.COMMITTED, attempt.verdict()
    if offers:
        offered(attempt)
    else:
        assert "nvidia-smi lists 0 of 1 GPUs: no devices" in ended(attempt).why


@pytest.mark.slow
@pytest.mark.turn
def test_a_machine_whose_disk_is_full_of_what_is_shared_is_deleted(site: Site) -> None:
    data = "${KINETIC_ROOT:?}/var/lib/kinetic/cache/data"
    fill = f'mkdir -p "{data}"; head -c 300000000 /dev/zero > "{data}/more"; true'
    attempt = boot(shell(site, fill), machine={"disk": 256})
    assert "of its disk" in ended(attempt).why or "its disk has only" in ended(attempt).why


@pytest.mark.slow
@pytest.mark.turn
def test_a_disk_that_an_attempt_has_filled_is_emptied(site: Site) -> None:
    first = boot(shell(site, 'head -c 80000000 /dev/zero > "${KINETIC_ROOT:?}/tmp/more"; true'), machine={"disk": 64})
    offered(first)
    second = shell(site, 'head -c 20000000 /dev/zero > "${KINETIC_ROOT:?}/tmp/more" && echo room')
    claim(first, second)
    assert second.verdict().kind == wire.COMMITTED
    assert second.log() == "room\n"


@pytest.mark.slow
@pytest.mark.turn
def test_a_folder_that_leads_elsewhere_is_a_doubt_and_nothing_there_is_touched(site: Site, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "precious").touch()
    attempt = boot(shell(site, f'cd "${{KINETIC_ROOT:?}}" && rm -rf tmp && ln -s "{mine}" tmp'))
    assert attempt.verdict().kind == wire.COMMITTED
    assert ended(attempt).why == "host 0 is not clean: /tmp was changed"
    assert (mine / "precious").exists()


@pytest.mark.slow
@pytest.mark.turn(5)
def test_a_slice_of_which_one_host_is_not_clean_is_deleted(site: Site) -> None:
    script = 'test "$KINETIC_HOST_INDEX" != 2 || echo "# mine" >> "${KINETIC_ROOT:?}/bin/tool"'
    attempt = boot(shell(site, script, accelerator="v5e-16"), machine={"programs": {"tool": "#!/bin/sh\nexit 0\n"}})
    assert attempt.verdict().kind == wire.COMMITTED
    assert ended(attempt).why == "host 2 is not clean: /bin/tool was changed"


# ---- unclaimed ----------------------------------------------------------------------------------------------------


def test_a_slice_that_nobody_takes_deletes_itself(site: Site) -> None:
    attempt = boot(shell(site, "echo first", keep=2.0))
    found = ended(attempt)
    assert (found.why, found.epoch) == ("nobody took it in time", 0)
    assert found.idle[0].ended - found.idle[0].began == pytest.approx(2.0, abs=2.0)


@pytest.mark.slow
@pytest.mark.turn(3)
def test_when_host_0_has_died_while_idle_the_others_end_the_slice(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    constants(monkeypatch, idle, FIRST_TURN=0.0, TURN=1.0)
    constants(monkeypatch, self_delete, FIRST_TURN=0.0, TURN=1.0)
    attempt = boot(shell(site, "echo first", keep=15.0, accelerator="v5e-16"))
    offered(attempt)
    attempt.vms[0].freeze()
    assert ended(attempt).why == "nobody took it in time"
    assert site.apis.deleted[0][0] != f"Bearer emulator-token/{attempt.name}/0"


@pytest.mark.slow
@pytest.mark.turn(6)
def test_a_slice_whose_guard_was_killed_while_idle_is_deleted_by_its_deadline(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants(monkeypatch, idle, ARMED=2.0)
    attempt = boot(shell(site, "echo first", keep=10.0))
    offered(attempt)
    (guard,) = named(attempt, "kinetic-guard")
    os.kill(guard, 9)
    attempt.gone()
    found = lease_of(attempt)
    assert found is not None
    assert (found.state, found.until < time.time()) == ("free", True)  # of which no client takes it any longer


@pytest.mark.slow
@pytest.mark.turn
def test_a_machine_that_is_taken_away_while_idle_ends_its_lease_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants(monkeypatch, idle, NOTICES=0.5)
    attempt = boot(shell(site, "echo first"))
    offered(attempt)
    attempt.vms[0].warn()
    assert ended(attempt).why == "host 0 is being taken away: this VM is being preempted"


@pytest.mark.slow
@pytest.mark.turn
def test_a_client_ends_the_lease_of_a_slice_that_then_deletes_itself(site: Site) -> None:
    attempt = boot(shell(site, "echo first"))
    offered(attempt)
    assert leases.end(site.records, attempt.name, "released", writer="c", now=time.time(), may=lambda _: True)
    assert ended(attempt).why == "released"


@pytest.mark.slow
@pytest.mark.turn(8)
def test_a_store_that_is_silent_while_a_slice_is_idle_is_waited_for_with_a_bound(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants(monkeypatch, bucket_records, PATIENCE=0.5)
    constants(monkeypatch, idle, SILENCE=4.0, ENDING=2.0)
    first = boot(shell(site, "echo first"))
    offered(first)
    where = f"* {site.bucket.removeprefix('gs://')}/*"
    site.storage.fail(where, status=503, times=6)
    second = shell_when_it_answers(site, first)
    assert second.verdict().kind == wire.COMMITTED
    offered(first, epoch=1)
    site.storage.fail(where, status=503, times=None)
    first.gone()


@pytest.mark.slow
@pytest.mark.turn(2)
def test_a_slice_is_not_deleted_before_its_lease_has_ended_if_the_store_is_silent_for_a_moment(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants(monkeypatch, bucket_records, PATIENCE=0.5)
    attempt = boot(shell(site, "echo first", keep=5.0))
    free = offered(attempt)
    site.storage.fail(f"* {site.bucket.removeprefix('gs://')}/*", status=503, times=None)
    wait_until(lambda: time.time() > free.until + 4.0)
    assert not site.apis.deleted
    site.storage.heal()
    assert ended(attempt).why == "nobody took it in time"


def shell_when_it_answers(site: Site, first: Attempt) -> Attempt:
    wait_until(lambda: lease_of(first))
    second = shell(site, "echo second")
    claim(first, second)
    return second


# ---- restarts -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.turn
def test_a_machine_that_was_restarted_while_idle_ends_its_slice(site: Site) -> None:
    attempt = boot(shell(site, "echo first"))
    offered(attempt)
    attempt.vms[0].reboot()
    assert ended(attempt).why == "host 0 is not clean: it was restarted (another boot id)"


@pytest.mark.slow
@pytest.mark.turn
def test_a_machine_that_was_restarted_under_a_claimed_attempt_ends_that_too(site: Site) -> None:
    first = boot(shell(site, "echo first"))
    offered(first)
    second = shell(site, SLEEP)
    claim(first, second)
    running(second)
    first.vms[0].reboot()
    verdict = second.verdict()
    assert (verdict.cause, "it was restarted (another boot id)" in verdict.reason) == (wire.INFRASTRUCTURE, True)
    ended(first)


@pytest.mark.slow
@pytest.mark.turn
def test_a_machine_that_was_made_again_while_idle_ends_its_slice(site: Site) -> None:
    """As a group makes one anew, with an empty disk and the metadata of the first."""
    attempt = boot(shell(site, "echo first"))
    offered(attempt)
    attempt.destroy()
    attempt.vms.clear()
    boot(attempt)
    assert ended(attempt).why == "host 0 is not clean: what it had before its first job is not known"


# ---- claims that are not obeyed -----------------------------------------------------------------------------------


def test_a_claim_without_the_key_of_the_slice_is_refused_told_and_ends_it(site: Site) -> None:
    first = boot(shell(site, "echo first"))
    offered(first)
    second = shell(site, "echo second")
    claim(first, second, key="00" * 32)
    found = ended(first)
    assert "was refused: it has not the seal of this slice's key" in found.why
    assert second.job in found.why
    assert site.records.read(names.host(second.job, 1, 0, "started.json")) is None


@pytest.mark.slow
@pytest.mark.turn(6)
@pytest.mark.parametrize("epoch", [1, 3])
def test_a_claim_of_another_epoch_than_the_next_is_refused(site: Site, epoch: int) -> None:
    """Hosts have seen an earlier one; before a later one somebody else had the slice."""
    first = boot(shell(site, "echo first"))
    offered(first)
    second = shell(site, "echo second")
    claim(first, second)
    offered(first, epoch=1)
    third = shell(site, "echo third")
    claim(first, third, epoch=epoch)
    assert ended(first).why == f"its lease says claimed in epoch {epoch}, which its hosts do not obey: they saw 1"
    assert site.records.read(names.host(third.job, 1, 0, "started.json")) is None


@pytest.mark.slow
@pytest.mark.turn
def test_orders_that_are_for_another_slice_are_refused(site: Site) -> None:
    first = boot(shell(site, "echo first"))
    offered(first)
    second = shell(site, "echo second")
    claim(first, second, hosts=4)
    assert "are not for this slice" in ended(first).why


@pytest.mark.slow
@pytest.mark.turn
def test_an_agent_that_is_not_there_ends_the_attempt_and_the_slice(site: Site) -> None:
    first = boot(shell(site, "echo first"))
    offered(first)
    second = shell(site, "echo second")
    claim(first, second, agent="ee" * 32)
    verdict = second.verdict()
    assert (verdict.cause, "could not start" in verdict.reason) == (wire.INFRASTRUCTURE, True)
    assert "the agent could not be fetched" in ended(first).why


# ---- while it is claimed ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.turn
def test_a_lease_that_is_lost_stops_the_work_and_deletes_the_slice(site: Site) -> None:
    first = boot(shell(site, "echo first"))
    offered(first)
    second = shell(site, SLEEP)
    claim(first, second)
    running(second)
    assert leases.end(site.records, first.name, "released", writer="c", now=time.time(), may=lambda _: True)
    verdict = second.verdict()
    assert verdict.cause == wire.INFRASTRUCTURE
    assert verdict.reason == f"the lease of its slice {first.name} was lost: it was ended (released)"
    ended(first)


@pytest.mark.slow
@pytest.mark.turn(8)
def test_each_time_has_a_deadline_of_its_own(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's does not end the slice while it is free, nor does that of the lease end the next attempt."""
    constants(monkeypatch, idle, ARMED=0.0)
    first = boot(shell(site, "echo first", keep=24.0), deadline=time.time() + 25.0)
    before = armed(first)
    free = offered(first)
    while_free = armed(first)
    second = shell(site, SLEEP)
    lease_ = claim(first, second, deadline=time.time() + 45.0)
    running(second)
    claimed = armed(first)
    assert len({before, while_free, claimed}) == 3
    wait_until(lambda: time.time() > free.until + 1.0)
    assert not site.apis.deleted
    first.gone(120.0)
    assert time.time() >= lease_.until - 1.0
