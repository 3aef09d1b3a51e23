"""Tells what is a model, a directory in the layout of Hugging Face's hub or a name there, and identifies it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.protocol.content.digest import plain_of_file
from kinetic_orchestration.protocol.system.parallel import side_by_side

HUB = "hf://"
CONFIG = "config.json"
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "tekken.json")
READERS = 8


def hub_name(model: str) -> tuple[str, str]:
    """Return the name and the revision of `hf://owner/name@revision`; the revision is "" if there is none.

    Raises:
        UsageError: It names no model.
    """
    name, _, revision = model.removeprefix(HUB).strip("/").partition("@")
    if name.count("/") != 1 or not all(name.split("/")) or "?" in model:
        raise UsageError(f"{model!r} names no model of the hub: write hf://owner/name, or hf://owner/name@revision")
    return name, revision


def check(folder: str) -> None:
    """Raise UsageError unless a folder has a model in the hub's layout."""
    if not os.path.isdir(folder):
        what = "is a file" if os.path.exists(folder) else "does not exist"
        raise UsageError(f"the model {folder} {what}: a model is a directory with {CONFIG}, weights and a tokenizer")
    names = os.listdir(folder)
    missing = []
    if CONFIG not in names:
        missing.append(CONFIG)
    if not any(name.endswith(WEIGHTS) for name in names):
        missing.append(f"weights (a file *{', *'.join(WEIGHTS)})")
    if not any(name in names for name in TOKENIZERS):
        missing.append(f"a tokenizer ({', '.join(TOKENIZERS[:3])}, …)")
    if missing:
        has = ", ".join(sorted(names)[:8]) or "nothing"
        raise UsageError(
            f"{folder} is no model: it lacks {' and '.join(missing)}, and has {has}. Give the directory that "
            "save_pretrained or a conversion to the hub's layout has written"
        )
    try:
        if not isinstance(json.loads(Path(folder, CONFIG).read_text("utf-8")), dict):
            raise ValueError("it is no object")
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{folder} is no model: its {CONFIG} cannot be read ({str(error)[:200]})") from None


def identity(model: str) -> str:
    """Return the text that is the same for the same model: the digest of all bytes of a directory, or a name.

    Its files are read once, which also leaves them in the machine's memory for the server that loads them next.
    """
    if not os.path.exists(model):
        return model
    if os.path.isfile(model):
        return plain_of_file(model)
    paths = sorted(
        os.path.relpath(os.path.join(folder, name), model)
        for folder, _, names in os.walk(model, followlinks=True)
        for name in names
        if not name.startswith(".")
    )
    digests = side_by_side(lambda path: plain_of_file(os.path.join(model, path)), paths, READERS, name="kinetic-model")
    told = "".join(f"{path}\0{digest}\n" for path, digest in zip(paths, digests, strict=True))
    return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()
