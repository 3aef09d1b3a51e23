"""The program of a pod's container, as arguments of a plain Python: it fetches the agent and becomes it.

So no image is built, and the cluster has no object of ours but the JobSet. Each of its pods has a copy of the program,
which is why it is packed without what only people read.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import tokenize
import zlib
from pathlib import Path
from typing import Final

LIMIT = 128 << 10  # bytes of one argument, as Linux has it

_PACKAGE = Path(__file__).parents[2]
_MODULES = (
    "host/machine/bootstrap.py",
    "host/machine/pod/account.py",
    "host/machine/pod/last_words.py",
    "host/machine/pod/start.py",
    "protocol/system/copies.py",
)
_ON_S3 = (
    "host/machine/bucket_records.py",
    "host/machine/connections.py",
    *(f"host/machine/s3/{name}.py" for name in ("credentials", "place", "records")),
    *(f"host/machine/s3/{name}.py" for name in ("refusals", "requests", "signature")),
    "protocol/names.py",
    *(f"protocol/records/{name}.py" for name in ("base", "bucket_metadata")),
    "protocol/system/parallel.py",
)

LOADER: Final = """\
import base64, json, os, sys, zlib
top = os.path.join(os.environ.get("KINETIC_ROOT") or "/", "var/lib/kinetic/start")
for name, text in json.loads(zlib.decompress(base64.b64decode(sys.argv.pop()))).items():
    path = os.path.join(top, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
sys.path.insert(0, top)
from kinetic_orchestration.host.machine.pod.start import main
main()
"""


def program(store: str) -> str:
    """Return the last argument of the loader: the modules that read the store. Same files, same text."""
    return _packed((*_MODULES, *_ON_S3) if store.startswith("s3://") else _MODULES)


@functools.cache
def _packed(modules: tuple[str, ...]) -> str:
    folders = {str(parent) for name in modules for parent in Path(_PACKAGE.name, name).parents if parent.name}
    files = {f"{folder}/__init__.py": "" for folder in folders}
    files |= {f"{_PACKAGE.name}/{name}": bare((_PACKAGE / name).read_text(encoding="utf-8")) for name in modules}
    packed = zlib.compress(json.dumps(files, sort_keys=True, ensure_ascii=False).encode(), 9)
    text = base64.b64encode(packed).decode()  # not base85, whose $$ and $( the kubelet expands
    assert len(text) < LIMIT
    return text


def bare(source: str) -> str:
    """Return a module's source without comments and docstrings. Its lines keep their numbers."""
    found: list[tokenize.TokenInfo] = []
    begins = True  # a statement, which a docstring is as a whole
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            continue
        if token.type == tokenize.STRING and begins:
            height = token.end[0] - token.start[0]
            found.append(token._replace(string='""' + "\\\n" * height, end=token.end))
            begins = False
            continue
        if token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            begins = token.type == tokenize.NEWLINE
        found.append(token)
    return "\n".join(line.rstrip() for line in tokenize.untokenize(found).splitlines()) + "\n"
