"""`KineticData`: `Data` whose address is known only when its task begins, by a template or by another task's value."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_kinetic._compat import XComArg
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.declare.data import Data

_BUCKETS = ("gs://", "s3://")


class KineticData(XComArg):
    """A file or folder that a task reads, by the value of a task before it, such as ``KineticData(train.output)``, or
    by a template. Pass it where `kinetic_orchestration.Data` may be: the function receives the path of its content on
    the host. It becomes `Data` when the task's templates are rendered, and its task runs after the one whose value it
    is.

    :param path: the path or the address: a template, or the output of a task
    :param folder: in a bucket, all that is below the address is meant, with or without a slash at its end
    :param fuse: mount the data instead of copying them, where the backend can
    """

    def __init__(self, path: str | XComArg, *, folder: bool = False, fuse: bool = False) -> None:
        self.path, self.folder, self.fuse = path, folder, fuse

    def __repr__(self) -> str:
        options = ", folder=True" * self.folder + ", fuse=True" * self.fuse
        return f"KineticData({str(self.path)!r}{options})"

    def iter_references(self) -> Iterator[tuple[Any, str]]:
        yield from XComArg.iter_xcom_references(self.path)

    def resolve(self, context: Mapping[str, Any]) -> Data:
        found: Any = context["task"].render_template(self.path, context)
        if not isinstance(found, (str, os.PathLike)):
            raise UsageError(f"{self!r} is a {type(found).__name__} after rendering: it has to be a path or an address")
        path = os.fspath(found)
        in_bucket = isinstance(path, str) and path.startswith(_BUCKETS)
        return Data(f"{path.rstrip('/')}/" if self.folder and in_bucket else path, fuse=self.fuse)
