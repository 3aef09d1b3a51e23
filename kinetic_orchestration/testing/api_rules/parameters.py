"""The query parameters that every Google API takes, and their meaning for the call and for its answer.

Shared by all servers of the emulated cloud. It does not know APIs.
docs/pipelines/emulator.md names the source of each rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kinetic_orchestration.testing.api_rules import field_masks, refusals
from kinetic_orchestration.testing.api_rules.refusals import Refusal

JSON = "application/json; charset=UTF-8"
_SCRIPT = "text/javascript; charset=UTF-8"
# Each may be written with a $ before it, so that no field of a message can be meant.
_NAMES = frozenset(
    {
        *("alt", "fields", "prettyPrint", "callback", "access_token", "oauth_token"),
        *("key", "quotaUser", "userIp", "upload_protocol", "uploadType"),  # all but the first change nothing here
    }
)
_ERROR_FORMAT = "$.xgafv"
_CALLBACK = re.compile(r"[A-Za-z_$][\w$.\[\]]*")
_FALSE = ("false", "f", "0", "no", "n")


class Parameters(NamedTuple):
    """The standard parameters of a request, besides those of its method."""

    alt: str = "json"
    fields: str = ""
    pretty: bool = True
    callback: str = ""
    error_format: str = "2"
    token: str = ""
    key: str = ""  # of an API

    def check(self, *, bytes_too: bool = False) -> None:
        """Raise Refusal for what is not served; `bytes_too` where an object's bytes can be asked for."""
        kind = self.alt.partition(";")[0].lower()
        if kind == "media" and not bytes_too:
            raise refusals.alt_media()
        if kind not in ("json", "media"):
            raise refusals.alt_unknown(self.alt)
        if self.error_format not in ("1", "2"):
            raise refusals.system_parameter(_ERROR_FORMAT, self.error_format)
        if self.fields:
            field_masks.tree(self.fields)
        if self.callback and not self._calls:
            raise refusals.system_parameter("callback", self.callback)

    @property
    def numbers(self) -> bool:
        """True if enums are to be numbers."""
        return self.alt.endswith("enum-encoding=int")

    @property
    def kind(self) -> str:
        """The Content-Type of an answer."""
        return _SCRIPT if self._calls else JSON

    @property
    def _calls(self) -> bool:
        """True if the answer is a JavaScript call; an invalid function name is ignored."""
        return bool(_CALLBACK.fullmatch(self.callback))

    def select(self, found: Any, message: Any = None) -> Any:
        """Return the fields that the caller wants; with a message's descriptor, unknown ones are refused."""
        return field_masks.select(found, field_masks.tree(self.fields, message)) if self.fields else found

    def page(self, found: Any) -> bytes:
        """Return the body of an answer."""
        if self.pretty:
            text = json.dumps(found, ensure_ascii=False, indent=2) + "\n"
        else:
            text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
        if self._calls:
            text = f"// API callback\n{self.callback}({text});"
        return text.encode("utf-8", "backslashreplace")

    def refused(self, refusal: Refusal) -> bytes:
        """Return the body of a refusal."""
        return self.page(refusal.to_http(errors=self.error_format == "1"))


def taken(query: Iterable[tuple[str, str]], headers: Mapping[str, str]) -> tuple[Parameters, list[tuple[str, str]]]:
    """Return the parameters that all APIs take, and the rest of the query. Names of `headers` are in lower case."""
    said: dict[str, str] = {}
    rest = []
    for name, value in query:
        bare = name.removeprefix("$")
        if name == _ERROR_FORMAT:
            said[name] = value  # of two, the last
        elif bare in _NAMES:
            said.setdefault(bare, value)  # of two, the first
        else:
            rest.append((name, value))
    return Parameters(
        alt=said.get("alt", "json"),
        fields=headers.get("x-goog-fieldmask") or said.get("fields", ""),
        pretty=said.get("prettyPrint", "").lower() not in _FALSE,
        callback=said.get("callback", ""),
        error_format=said.get(_ERROR_FORMAT, "2"),
        token=said.get("access_token") or said.get("oauth_token", ""),
        key=headers.get("x-goog-api-key") or said.get("key", ""),
    ), rest
