"""A terminal does not obey text that somebody else wrote, in logs, names, messages and values."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import unicodedata
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.cli import main, output
from kinetic_orchestration.cli.streams import guarded
from kinetic_orchestration.errors import JobFailed
from kinetic_orchestration.protocol.system import escaping

CLIPBOARD = "\x1b]52;c;Y3VybCBldmlsLmV4YW1wbGUgfCBzaAo=\x07"
TITLE = "\x1b]0;root@prod\x1b\\"
CLEAR = "\x1b[2J\x1b[H"
ANSWER = "\x1bP$qm\x1b\\\x1b[6n"
C1 = "\x9d52;c;eA==\x9c\x9b2J"
BACKWARDS = "\u202egnp.exe\u2066\u061c\u200f"
UNSEEN = "\u2060\ufeff\U000e0041\U000e007f"
EVIL = CLIPBOARD + TITLE + CLEAR + ANSWER + C1 + BACKWARDS + UNSEEN + "\b\x00\x7f"
OBEYED = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)


class Evil:
    def __repr__(self) -> str:
        return f"<{EVIL}>"


@kinetic.run(accelerator="cpu")
def prints(fail: bool) -> Evil:
    print(f"evil {EVIL}")
    print("\x1b[1;38;5;8mred\x1b[0m 50 %\r100 %")
    kinetic.current().progress(1, 2, EVIL)
    if fail:
        raise RuntimeError(f"evil {EVIL}")
    return Evil()


@pytest.fixture(scope="module")
def jobs(shared_home: Path) -> tuple[str, str]:
    done, failed = (prints.run_async(fail) for fail in (False, True))
    done.result()
    with contextlib.suppress(RuntimeError):
        failed.result()
    return done.job_id, failed.job_id


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize(
    "command",
    [
        "jobs --all", "status DONE", "status FAILED", "logs DONE", "logs FAILED", "logs DONE --tail 3",
        "result DONE", "result FAILED", "status EVIL", "result EVIL", "logs EVIL", "jobs --deployment EVIL",
        "jobs --store file://EVIL", "cost --jobs --since 1d", "cost EVIL", "cancel DONE", "cancel EVIL",
        "plan EVIL.py:f", "EVIL", "accelerators EVIL", "doctor --store EVIL",
    ],
)  # fmt: skip
def test_no_command_has_a_terminal_obey(
    jobs: tuple[str, str], command: str, terminal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # a store that is named makes its folder
    out, err = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setenv("COLUMNS", "400")
    words = {"DONE": jobs[0], "FAILED": jobs[1], "EVIL": CLIPBOARD + CLEAR + C1}
    argv = [re.sub("DONE|FAILED|EVIL", lambda found: words[found[0]], word) for word in command.split(" ")]
    argv = [word.replace("\x00", "") for word in argv]
    with contextlib.suppress(SystemExit):
        main(argv)
    shown = out.getvalue() + err.getvalue()
    assert shown
    drawn = re.sub(r"\x1b\[(\?25[lh]|[0-9;]*m|2K|1A)|\r", "", shown) if terminal else shown  # by rich itself
    assert not OBEYED.search(re.sub(r"\x1b\[[0-9;]*m", "", drawn)), repr(shown)
    if "EVIL" in command or "logs" in command:
        assert r"\x1b]52;c;" in shown


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_names_of_others_are_letters_in_tables_and_fields(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    with guarded():
        output.show_table(("id", "name"), [("1", f"\x1b[8m{EVIL}\r")])
        output.show_fields([("job", f"\x1b[31m{EVIL}\r")])
    assert not OBEYED.search(re.sub(r"\x1b\[[01]?m", "", out.getvalue())), repr(out.getvalue())
    assert "\r" not in out.getvalue()


def test_json_is_the_same_document_and_has_no_controls_either(
    jobs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["logs", jobs[0], "--json"])
    shown = capsys.readouterr().out
    assert not OBEYED.search(shown)
    texts = [json.loads(line).get("text") for line in shown.splitlines()]
    assert any(EVIL in text for text in texts if text)
    main(["result", jobs[0], "--json"])
    shown = capsys.readouterr().out
    assert not OBEYED.search(shown)
    assert json.loads(shown)["repr"] == f"<{EVIL}>"


def test_colours_and_progress_of_a_log_stay(jobs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["logs", jobs[0]])
    assert "\x1b[1;38;5;8mred\x1b[0m 50 %\r100 %\n" in capsys.readouterr().out


def test_a_blocking_call_prints_and_raises_what_a_terminal_does_not_obey(
    jobs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    prints(False)
    shown = capsys.readouterr()
    assert "evil" in shown.out
    assert not OBEYED.search(re.sub(r"\x1b\[[0-9;]*m", "", shown.out + shown.err))
    assert not OBEYED.search(str(JobFailed(f"it said {EVIL}")))


@pytest.mark.parametrize(
    ("given", "as_text", "as_log"),
    [
        ("a\tb\nc é 漢 👩‍🚀", "a\tb\nc é 漢 👩‍🚀", "a\tb\nc é 漢 👩‍🚀"),
        ("\x1b[31mred\x1b[m", r"\x1b[31mred\x1b[m", "\x1b[31mred\x1b[m"),
        ("\x1b[8mhidden", r"\x1b[8mhidden", r"\x1b[8mhidden"),
        ("\x1b[1;08mhidden", r"\x1b[1;08mhidden", r"\x1b[1;08mhidden"),
        ("\x1b[38;5;8mgrey", r"\x1b[38;5;8mgrey", "\x1b[38;5;8mgrey"),
        ("\x1b[38;2;8;8;8;8mhidden", r"\x1b[38;2;8;8;8;8mhidden", r"\x1b[38;2;8;8;8;8mhidden"),
        ("50 %\r", r"50 %\x0d", "50 %\r"),
        ("\x1b[2K", r"\x1b[2K", r"\x1b[2K"),
        ("\u202eabc\ud800", r"\u202eabc\ud800", r"\u202eabc\ud800"),
        ("\u061c\u200e\u200f\U000e0041\xad", r"\u061c\u200e\u200f\U000e0041\xad", r"\u061c\u200e\u200f\U000e0041\xad"),
        ("नमस्\u200dते ❤️ 葛\U000e0100", "नमस्\u200dते ❤️ 葛\U000e0100", "नमस्\u200dते ❤️ 葛\U000e0100"),
    ],
)
def test_what_is_shown_instead(given: str, as_text: str, as_log: str) -> None:
    assert (escaping.text(given), escaping.log(given)) == (as_text, as_log)
    assert json.loads(escaping.in_json(json.dumps(given, ensure_ascii=False))) == given


def test_no_character_of_unicode_turns_the_direction_or_hides_text() -> None:
    turning = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    for number in (*range(sys.maxunicode + 1),):
        letter = chr(number)
        kind = unicodedata.category(letter)
        if kind == "Cf" and unicodedata.bidirectional(letter) in {*turning, "BN", "R", "L", "AL"}:
            seen = "\u200c\u200d\U000110bd\U000110cd" + "".join(map(chr, range(0x13430, 0x13440))) + "\u070f"
            assert (escaping.text(letter) != letter) == (letter not in seen), hex(number)
