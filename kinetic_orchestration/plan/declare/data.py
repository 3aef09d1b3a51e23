"""`Data`: a file or folder that a job reads. On the host it is a plain path, or an address that is read in parts.

This module refuses what does not exist; packaging decides how the content is transferred.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.errors import DataNotFound, UsageError

_SCHEMES = ("gs://", "s3://", "hf://")


class Data:
    """A local file or folder, `gs://bucket/object`, `gs://bucket/folder/`, the same with `s3://`, or a repository of
    Hugging Face's hub, for a job: `hf://owner/name@revision`, `hf://datasets/owner/name@revision/folder`.

    Pass it as an argument, inside one, or in `volumes`. The function receives the path of its content on the host. Of
    a repository that is the content of one commit: the one that the revision is when the job is submitted.

    Args:
        path: Path or address.
        fuse: Mount the data instead of copying them, where the backend can.
        hf_trust_remote_code: Allow the code of a Hugging Face dataset to run.
        stream: Copy nothing: the function receives the address as `StreamedData`, which reads the objects that were
            there when the job was submitted, and no other ones. For `gs://`, and on this machine for a folder.

    Raises:
        DataNotFound: The path does not exist.
        UsageError: The address cannot be used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fuse: bool = False,
        hf_trust_remote_code: bool = False,
        *,
        stream: bool = False,
    ) -> None:
        try:
            raw = os.fspath(path)
        except TypeError:
            raise UsageError(f"Data takes a path, not a {type(path).__name__}: {path!r}") from None
        if not isinstance(raw, str):
            raise UsageError(f"Data takes a path of type str, not {type(raw).__name__}: os.fsdecode() makes one")
        self._raw = raw
        self._fuse = bool(fuse)
        self._hf_trust_remote_code = bool(hf_trust_remote_code)
        self._stream = bool(stream)
        self._path = _resolved(raw)
        if self.is_hf and self._fuse:
            raise UsageError(f"Data({raw!r}, fuse=True): a Hugging Face dataset cannot be mounted; leave fuse out")
        if self._hf_trust_remote_code and not self.is_hf:
            raise UsageError(f"Data({raw!r}): hf_trust_remote_code is for hf:// paths")
        if self._stream:
            _check_stream(self)
        if (self.is_gcs or self.is_s3) and not self.is_dir and "." not in raw.rpartition("/")[2]:
            _hint_at_slash(raw)

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> Any:
            from kinetic_orchestration.plan.declare.keras_kinetic import without

            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(without("Data", name, said), name=name, obj=self)

    @property
    def path(self) -> str:
        """Absolute path, or the address as given."""
        return self._path

    @property
    def fuse(self) -> bool:
        """True if the data are mounted and not copied."""
        return self._fuse

    @property
    def hf_trust_remote_code(self) -> bool:
        """True if the code of the dataset may run."""
        return self._hf_trust_remote_code

    @property
    def stream(self) -> bool:
        """True if the data are read where they are."""
        return self._stream

    @property
    def is_gcs(self) -> bool:
        """True for an address in Cloud Storage."""
        return self._raw.startswith("gs://")

    @property
    def is_s3(self) -> bool:
        """True for an address in S3-compatible storage."""
        return self._raw.startswith("s3://")

    @property
    def is_hf(self) -> bool:
        """True for a Hugging Face dataset."""
        return self._raw.startswith("hf://")

    @property
    def is_dir(self) -> bool:
        """True for a folder. In a bucket that is an address with a slash at its end, as in Keras Kinetic."""
        if self.is_gcs or self.is_s3:
            return self._raw.endswith("/")
        return self.is_hf or os.path.isdir(self._path)

    def __repr__(self) -> str:
        options = ", fuse=True" if self._fuse else ""
        if self._stream:
            options += ", stream=True"
        if self._hf_trust_remote_code:
            options += ", hf_trust_remote_code=True"
        return f"Data({self._raw!r}{options})"


def _resolved(raw: str) -> str:
    if not raw:
        raise UsageError('Data("") names nothing: give a file, a folder, a gs://, an s3:// or an hf:// path')
    if raw.startswith(_SCHEMES):
        if not raw[len("gs://") :].strip("/"):
            raise UsageError(f"Data({raw!r}) names no {'dataset' if raw.startswith('hf') else 'bucket'}")
        return raw
    if raw.startswith(("gs:/", "s3:/", "hf:/")):
        raise UsageError(f"Data({raw!r}) has lost a slash, as it happens in pathlib: give the address as a string")
    scheme, separator, _ = raw.partition("://")
    if separator and scheme.isalnum():
        raise UsageError(
            f"Data({raw!r}): {scheme}:// is not supported, only gs://, s3:// and hf://; or copy it here first"
        )
    path = os.path.abspath(os.path.expanduser(raw))  # pathlib's own import takes longer than a declaration
    if not os.path.exists(path):
        missing = "is a broken link" if os.path.islink(path) else "does not exist"
        raise DataNotFound(f"Data({raw!r}): {path} {missing}, as seen from {os.getcwd()}")
    return path


def _check_stream(data: Data) -> None:
    if data.fuse:
        raise UsageError(f"{data!r}: give either fuse, which mounts, or stream, which reads the address itself")
    if data.is_hf:
        raise UsageError(
            f"{data!r}: files of the hub are copied to the host; leave stream out, or read rows in the function, with "
            "datasets.load_dataset(…, revision=…, streaming=True)"
        )
    if data.is_s3:
        raise UsageError(f"{data!r}: only gs:// is read where it is; leave stream out, and each host copies the data")
    if data.is_gcs and not data.path.removeprefix("gs://").partition("/")[2]:
        raise UsageError(f"{data!r} is a whole bucket: name a folder of it, as gs://bucket/folder/")


def _hint_at_slash(raw: str) -> None:
    import logging

    logging.getLogger(__name__).warning("%s is taken for one object; for a folder write %s/", raw, raw)
