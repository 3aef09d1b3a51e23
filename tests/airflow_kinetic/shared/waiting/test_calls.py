"""Blocking calls beside an event loop: their order, their time, and who cancelled them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_kinetic.shared.waiting import calls


def test_what_a_call_returns_and_raises_arrives() -> None:
    def fails() -> None:
        raise ValueError("no")

    assert asyncio.run(calls.run(lambda: 3)) == 3
    with pytest.raises(ValueError, match="no"):
        asyncio.run(calls.run(fails))


def test_a_call_that_hangs_is_given_up_and_holds_up_nobody() -> None:
    hangs = threading.Event()

    async def scene() -> list[object]:
        stuck = [calls.run(lambda: hangs.wait(60), within=0.5) for _ in range(calls.AT_ONCE + 8)]
        return await asyncio.gather(*stuck, calls.run(lambda: "well"), return_exceptions=True)

    try:
        *stuck, well = asyncio.run(scene())
    finally:
        hangs.set()
    assert all(isinstance(given_up, calls.TooSlow) for given_up in stuck)
    assert well == "well"


def test_a_kill_waits_for_no_call_of_another_kind() -> None:
    hangs = threading.Event()

    async def scene() -> str:
        stuck = [asyncio.create_task(calls.run(lambda: hangs.wait(60))) for _ in range(calls.AT_ONCE + 8)]
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(calls.run(lambda: "well", kind="kill"), 30)
        finally:
            hangs.set()
            await asyncio.gather(*stuck)

    assert asyncio.run(scene()) == "well"


@pytest.mark.slow
def test_time_counts_from_the_start_of_a_call_and_not_from_its_turn() -> None:
    before, within = threading.Event(), 2.0

    async def scene() -> str:
        ahead = [asyncio.create_task(calls.run(lambda: before.wait(60))) for _ in range(calls.AT_ONCE)]
        await asyncio.sleep(0)
        last = asyncio.create_task(calls.run(lambda: "well", within=within))
        await asyncio.sleep(within + 0.5)
        assert not last.done(), "its turn has not come"
        before.set()
        await asyncio.gather(*ahead)
        return await last

    assert asyncio.run(scene()) == "well"


def test_a_cancel_keeps_its_message_and_a_timeout_of_the_caller_is_its_own() -> None:
    hangs = threading.Event()

    async def scene() -> tuple[object, ...]:
        task = asyncio.create_task(calls.run(lambda: hangs.wait(60), within=30))
        await asyncio.sleep(0.1)
        task.cancel("killed by a user")
        try:
            await task
        except asyncio.CancelledError as error:
            return error.args
        return ()

    async def outer() -> None:
        async with asyncio.timeout(0.1):
            await calls.run(lambda: hangs.wait(60), within=30)

    try:
        assert asyncio.run(scene()) == ("killed by a user",)
        with pytest.raises(TimeoutError):
            asyncio.run(outer())
    finally:
        hangs.set()
