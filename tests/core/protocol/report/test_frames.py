"""Log segments: what was appended whole is read whole, whatever follows it."""

from __future__ import annotations

import pytest

from kinetic_orchestration.protocol.report import frames

pytestmark = pytest.mark.fast

SEGMENT = b"".join(
    frames.encode(kind, 1_700_000_000.25 + number, payload)
    for number, (kind, payload) in enumerate([("o", b"one\n"), ("e", b""), ("o", b"\x1eo 1 2\n\n"), (">", b"")])
)


def test_what_was_encoded_is_decoded_with_its_place() -> None:
    found, used = frames.decode(SEGMENT, segment=3, offset=100)
    assert used == len(SEGMENT)
    assert [(frame.kind, frame.payload) for frame in found] == [
        ("o", b"one\n"), ("e", b""), ("o", b"\x1eo 1 2\n\n"), (">", b""),
    ]  # fmt: skip
    assert found[0].time == 1_700_000_000.25
    assert (found[0].segment, found[0].offset) == (3, 100)
    assert found[1].offset == 100 + len(frames.encode("o", 1_700_000_000.25, b"one\n"))


@pytest.mark.parametrize("cut", range(len(SEGMENT)))
def test_a_frame_that_is_half_there_is_left_for_later(cut: int) -> None:
    found, used = frames.decode(SEGMENT[:cut])
    again, rest = frames.decode(SEGMENT[used:], offset=used)
    assert found + again == frames.decode(SEGMENT)[0]
    assert used + rest == len(SEGMENT)


@pytest.mark.parametrize(
    "torn",
    [b"\0" * 5000, b"\0\n" * 50, b"garbage\n", b"\x1e\n", b"\x1eo x 4\nabcd", b"\x1eo 1 -4\nabcd", b"\xff 1 2\n"],
)
def test_what_a_power_cut_tore_is_no_frame_and_ends_the_log(torn: bytes) -> None:
    assert frames.decode(SEGMENT + torn) == frames.decode(SEGMENT)


WRITTEN = [("o", b"one line\n"), ("e", b"another \x1e line\n"), ("m", b'{"step":1,"values":{}}'), ("o", b"last\n")]
WHOLE = b"".join(frames.encode(kind, 1_700_000_000.0 + number, text) for number, (kind, text) in enumerate(WRITTEN))


@pytest.mark.parametrize("byte", range(len(WHOLE)))
def test_a_flipped_bit_costs_one_frame_and_is_told(byte: int) -> None:
    """The frames before and after it are whole, whichever bit it is. Of what follows the last one nobody knows yet."""
    starts = [frame.offset for frame in frames.decode(WHOLE)[0]]
    hit = max(number for number, start in enumerate(starts) if start <= byte)
    for bit in range(8):
        changed = bytearray(WHOLE)
        changed[byte] ^= 1 << bit
        found, used = frames.decode(bytes(changed))
        told = [(frame.kind, frame.payload) for frame in found]
        assert told[:hit] == WRITTEN[:hit]
        if hit == len(WRITTEN) - 1 and len(told) == hit:
            assert used == starts[hit]
            continue
        size = ([*starts, len(WHOLE)])[hit + 1] - starts[hit]
        assert told[hit] == ("n", b"%d bytes of the log are damaged\n" % size)
        assert told[hit + 1 :] == WRITTEN[hit + 1 :]
        assert used == len(WHOLE)


def test_the_frames_of_an_older_agent_are_read() -> None:
    older = b"\x1eo 1700000000000000 4\none\n" + WHOLE
    found, used = frames.decode(older)
    assert [(frame.kind, frame.payload) for frame in found] == [("o", b"one\n"), *WRITTEN]
    assert used == len(older)


def lines(*pieces: bytes) -> list[bytes]:
    cutter = frames.Lines()
    found = [whole for piece in pieces if (whole := cutter.feed(piece))]
    return [*found, rest] if (rest := cutter.flush()) else found


def test_lines_are_cut_only_where_they_end() -> None:
    assert lines(b"one\ntw", b"o\n", b"three") == [b"one\n", b"two\n", b"three"]
    assert lines(b"\r 10%", b"\r 20%\nend") == [b"\r", b" 10%\r 20%\n", b"end"]


def test_a_carriage_return_and_its_newline_stay_together() -> None:
    assert lines(b"one\r", b"\ntwo\r\n") == [b"one\r\ntwo\r\n"]
    assert lines(b"10%\r", b"20%\r", b"done") == [b"10%\r", b"20%\r", b"done"]


def test_a_line_that_ends_in_a_carriage_return_is_whole_once_nothing_follows() -> None:
    cutter = frames.Lines()
    assert cutter.feed(b"10%\r") == b""
    assert cutter.ended
    assert cutter.flush() == b"10%\r"
    assert not cutter.ended


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    cutter = frames.Lines()
    longest = sum(len(cutter.feed(b"x" * (1 << 20))) for _ in range(40))
    assert longest + len(cutter.flush()) == 40 << 20
    assert longest > 0
