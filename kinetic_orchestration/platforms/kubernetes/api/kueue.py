"""Questions about Kueue's objects, in a version of its API that the cluster serves.

What is read of them is the same in all of these: Kueue before 0.15 has v1beta1 alone, from 0.20 on v1beta2 alone.
This module does not know what is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError
from kinetic_orchestration.platforms.kubernetes.api.client import Api

GROUP = "kueue.x-k8s.io"
VISIBILITY = f"visibility.{GROUP}"
VERSIONS = ("v1beta2", "v1beta1")

Answer = TypeVar("Answer")
_served: WeakKeyDictionary[Api, str] = WeakKeyDictionary()  # the version that answered last


def ask(api: Api, question: Callable[[str], Answer]) -> Answer:
    """Return the answer to a question, which receives a version.

    Raises:
        ApiError: Of the kind UNSERVED, if the cluster serves none that is understood, and of any other.
    """
    first = version(api)
    refused: ApiError | None = None
    for each in (first, *(other for other in VERSIONS if other != first)):
        try:
            answer = question(each)
        except ApiError as error:
            if error.kind != answers.UNSERVED:
                raise
            refused = error
        else:
            _served[api] = each
            return answer
    assert refused is not None
    raise refused


def version(api: Api) -> str:
    """Return the version that answered last; before that, the newest."""
    return _served.get(api, VERSIONS[0])


def served(api: Api) -> tuple[str, ...]:
    """Return the versions that the cluster serves, understood or not; none without Kueue. Raises ApiError."""
    try:
        found = api.get(f"/apis/{GROUP}").get("versions") or ()
    except ApiError as error:
        if error.kind != answers.UNSERVED:
            raise
        return ()
    return tuple(answers.escaped(one.get("version")) for one in found)
