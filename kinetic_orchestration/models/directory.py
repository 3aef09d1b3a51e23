"""The rules of what a model directory is, and the digest of its files. Pure: what there is comes from a listing.

It knows layouts by the names of files, and the index of sharded weights by its content; it loads no model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from kinetic_orchestration.errors import NotAModel, UsageError
from kinetic_orchestration.models.values import ModelFile

LINEAGE: Final = "lineage.json"
"""The last file of a version, by which it exists. It is none of the model's files."""
INDEX_LIMIT: Final = 16 << 20
MOST_FILES: Final = 100_000
VERSION_LETTERS: Final = 16

_SHARDS: Final = ("*.safetensors.index.json", "*.bin.index.json", "*.h5.index.json")
_WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin", "flax_model*.msgpack", "tf_model*.h5")
_HEAVY: Final = (".safetensors", ".bin", ".msgpack", ".h5", ".keras", ".pb", ".gguf", ".onnx")
# What tools leave beside a model: https://huggingface.co/docs/huggingface_hub/guides/download
_BESIDE: Final = frozenset({".cache", ".git", ".gitattributes", ".gitignore", ".DS_Store", "__pycache__"})
_PARTIAL: Final = re.compile(r"(^|/)[^/]*(\.orbax-checkpoint-tmp|\.incomplete$|\.partial$)[^/]*")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_KIND: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")

_COVERED: Final = (("sha256",), ("crc32c", "md5"), ("crc32c",), ("etag",))  # the strongest first
COVERS: Final = {
    "sha256": "name, size and sha256 of each file, whose bytes were read",
    "crc32c": "name, size and the checksums of each object by its metadata: CRC32C, and MD5 where the object has one",
    "etag": "name, size and ETag of each object",
}


class Kind(NamedTuple):
    """A layout of model directories: its name, what makes one in words, and the test of the names of its files."""

    name: str
    needs: str
    matches: Callable[[Collection[str]], bool]


def _has(names: Collection[str], *patterns: str) -> bool:
    return any("/" not in name and fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _is_orbax(names: Collection[str]) -> bool:
    """Tell the finished step of Orbax, or one of its items: https://orbax.readthedocs.io, checkpoint format."""
    ends = {name.rpartition("/")[2] for name in names}
    return ("_CHECKPOINT_METADATA" in names or "_METADATA" in names) and bool(ends & {"manifest.ocdbt", ".zarray"})


KINDS: Final = (
    Kind(
        "adapter",
        "adapter_config.json with adapter_model.safetensors or .bin (PEFT)",
        lambda names: "adapter_config.json" in names and _has(names, "adapter_model.safetensors", "adapter_model.bin"),
    ),
    Kind(
        "safetensors",
        f"config.json with weights ({', '.join(_WEIGHTS)})",
        lambda names: "config.json" in names and _has(names, *_WEIGHTS),
    ),
    Kind(
        "keras-preset",
        "config.json with model.weights.h5 (KerasHub)",
        lambda names: "config.json" in names and _has(names, "model*.weights.h5"),
    ),
    Kind("keras", "a .keras file", lambda names: _has(names, "*.keras")),
    Kind(
        "saved-model",
        "saved_model.pb with variables/ (TensorFlow)",
        lambda names: "saved_model.pb" in names and any(name.startswith("variables/") for name in names),
    ),
    Kind("orbax", "_CHECKPOINT_METADATA or _METADATA with arrays (Orbax)", _is_orbax),
    Kind("gguf", "a .gguf file", lambda names: _has(names, "*.gguf")),
    Kind("onnx", "a .onnx file", lambda names: _has(names, "*.onnx")),
)


def check_label(name: str) -> None:
    """Raise UsageError for a name of a model, or of an alias, that a store or a registry does not take."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a model or an alias: give up to 63 letters, digits, '.', '_' or '-', the first a "
            "letter or a digit"
        )


def files_of(listed: Sequence[ModelFile]) -> tuple[ModelFile, ...]:
    """Return the files of a listing that belong to a model, by name: neither what tools leave, nor our lineage."""
    return tuple(sorted(file for file in listed if file.name != LINEAGE and _BESIDE.isdisjoint(file.name.split("/"))))


def kind_of(
    files: Sequence[ModelFile], address: str, kind: str = "", read: Callable[[str], bytes] | None = None
) -> str:
    """Return the kind of a model directory.

    Args:
        files: Its files.
        address: Its address, for errors.
        kind: What the user calls it, if the layout is none that is known here.
        read: Reads one of its files, for the index of sharded weights.

    Raises:
        NotAModel: It is none, or not complete.
    """
    names = {file.name for file in files}
    if not files:
        raise NotAModel(f"{address} is no model directory: it has no files, or is not there")
    if len(files) > MOST_FILES:
        raise NotAModel(f"{address} has more than {MOST_FILES:,} files: name the directory of one model")
    if torn := next((name for name in sorted(names) if _PARTIAL.search(name)), None):
        raise NotAModel(f"{address} is not complete: it has {torn!r}, which a program was still writing")
    if kind and not _KIND.fullmatch(kind):
        raise UsageError(f"kind={kind!r}: give a short name in lower case, such as 'keras'")
    found = kind or next((one.name for one in KINDS if one.matches(names)), "")
    if not found:
        raise NotAModel(
            f"{address} is no model directory. It has {some(names)}. Looked for: "
            f"{'; '.join(one.needs for one in KINDS)}. If it is another kind of model, name it with kind="
        )
    if empty := next((file.name for file in files if not file.size and file.name.endswith(_HEAVY)), None):
        raise NotAModel(f"{address} is not complete: {empty!r} has no bytes")
    for index in sorted(name for name in names if _has([name], *_SHARDS)):
        if read is not None and (missing := _shards(read(index), index, address) - names):
            raise NotAModel(f"{address} is not complete: {index} names {some(missing)}, which it does not have")
    return found


def _shards(data: bytes, index: str, address: str) -> set[str]:
    """Return the files that an index of sharded weights names."""
    try:
        table: Any = json.loads(data)["weight_map"]
        return {str(name) for name in table.values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NotAModel(f"{address} is not complete: its {index} cannot be read as an index of weights") from None


def some(names: Collection[str]) -> str:
    """Return the first of some names, as an error shows them."""
    shown = sorted(names)[:5]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(repr(name) for name in shown) + more


def covered(file: ModelFile) -> dict[str, str]:
    """Return those of a file's marks that its model's digest covers."""
    marks = next((marks for marks in _COVERED if all(mark in file.marks for mark in marks)), ())
    return {mark: file.marks[mark] for mark in marks}


def covers(files: Sequence[ModelFile]) -> str:
    """Return in words what the digest of these files covers."""
    return "; ".join(COVERS[mark] for mark in sorted({next(iter(covered(file))) for file in files}))


def digest_of(files: Sequence[ModelFile]) -> str:
    """Return the sha256 of the canonical listing of the files. No name has a NUL, so it has one meaning only."""
    lines = []
    for file in sorted(files):
        marks = covered(file)
        if not marks:
            raise UsageError(f"nothing is known of the content of {file.name!r}: neither a digest nor a checksum")
        told = " ".join(f"{mark}:{value}" for mark, value in sorted(marks.items()))
        lines.append(f"{file.name}\0{file.size} {told}\0")
    listing = "kinetic model 1\n" + "".join(lines)
    return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()


def version_of(digest: str) -> str:
    """Return the name of the version that a model of this digest is, in its place and wherever it is deployed."""
    return digest[:VERSION_LETTERS]


def agree(one: Mapping[str, str], other: Mapping[str, str]) -> bool | None:
    """Return whether two files have the same content by the marks that both have; None if they share none."""
    shared = set(one) & set(other) - {"etag"}
    if shared:
        return all(one[mark] == other[mark] for mark in shared)
    etags = one.get("etag", ""), other.get("etag", "")
    # Of an object that was written in parts, the ETag depends on their number, and of an encrypted one on the key.
    return etags[0] == etags[1] if all(etags) and not any("-" in etag for etag in etags) else None
