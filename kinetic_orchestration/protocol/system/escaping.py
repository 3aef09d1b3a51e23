"""Escaping of untrusted text for a terminal, which obeys more than letters: control sequences set titles, fill the
clipboard, clear the screen, answer in place of the keyboard, or show a line backwards.

Escaped characters are shown as Python writes them: `\\x1b]52;`. It knows neither streams nor the meaning of the text.
"""

from __future__ import annotations

import functools
import re
from typing import Final

# Of Unicode, besides C1, which terminals obey in UTF-8, too: other ends of lines; changes of the direction of writing
# (Bidi_Control; https://trojansource.codes); what is there and not seen (Default_Ignorable_Code_Point, with the tags,
# in which sentences can be hidden, but without the joiners and selectors of which scripts and emoji are made); notes
# between lines; and halves of characters.
_UNSEEN: Final = (
    r"\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff\ud800-\udfff"
)
_BEYOND: Final = rf"\x80-\x9f{_UNSEEN}"
_ALL: Final = rf"[\x00-\x08\x0b-\x1f\x7f{_BEYOND}]"  # but for tab and newline
# Also of the colours that begin there. It begins with a set of characters, for which a search is quick; quicker still
# with none beyond ASCII, which is what most of a log is.
_IN_A_LOG: Final = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f%s](?:(?<=\x1b)\[[0-9;:]*m)?"
_LOG: Final = _IN_A_LOG % _BEYOND
_ASCII_LOG: Final = _IN_A_LOG % ""
_JSON: Final = rf"[\x7f-\x9f{_UNSEEN}]"
_LONG: Final = {"2": 5, "5": 3}  # a direct colour: the number of parameters, by the second of them

_compiled = functools.cache(re.compile)  # with its first use: every import of this package begins here


def text(of: str) -> str:
    """Escape names, messages and values: lines of characters, without control sequences."""
    return _compiled(_ALL).sub(_escaped, of)


def log(of: str) -> str:
    """Escape the output of a program, except for colours and carriage returns, which progress bars use."""
    return _compiled(_ASCII_LOG if of.isascii() else _LOG).sub(_log_part, of)


def in_json(document: str) -> str:
    """The same document, with what `json.dumps(ensure_ascii=False)` leaves as it is."""
    return _compiled(_JSON).sub(_in_json, document)


def _in_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 1 << 16 else f"\\U{number:08x}"


def _log_part(found: re.Match[str]) -> str:
    colours = found[0]
    if len(colours) == 1:
        return _escaped(found)
    return colours if not _hides(re.split("[;:]", colours[2:-1])) else text(colours)


def _hides(parameters: list[str]) -> bool:
    """One of them is 8, by which text is there and not seen."""
    at = 0
    while at < len(parameters):
        if parameters[at].lstrip("0") == "8":
            return True
        long = parameters[at].lstrip("0") in ("38", "48", "58")
        at += _LONG.get("".join(parameters[at + 1 : at + 2]), 1) if long else 1
    return False
