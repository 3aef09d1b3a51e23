"""The environment and the command of a pod's container, as a kubelet resolves them; what GKE's webhook adds. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from kinetic_orchestration.testing.kubernetes.api.answers import Object

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")
_MAPPED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_FIELDS = (
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP",
    "status.podIP",
)  # fmt: skip


class NotResolved(Exception):
    """A reference leads nowhere: the sentence that a kubelet has for it."""


def expanded(text: str, known: Mapping[str, str]) -> str:
    """Return a text with each `$(NAME)` that is known replaced; `$$` is a dollar."""
    return _REFERENCE.sub(lambda it: "$" if it[1] else known.get(it[2], it[0]), text)


def command_of(container: Object, environ: Mapping[str, str]) -> list[str]:
    """The words to run; none if its image is to say them, for here is no image."""
    if not container.get("command"):
        return []
    return [expanded(word, environ) for word in (*container["command"], *container.get("args", ()))]


def resolve(
    pod: Object,
    before: Mapping[str, str],
    injected: Mapping[str, str],
    stored: Callable[[str, str], Mapping[str, str] | None],
) -> dict[str, str]:
    """Return the environment of a pod's only container.

    Args:
        pod: As the API server has it, with its addresses.
        before: What the image, the node and the cluster give.
        injected: What a webhook had appended to the container's own entries, unless the container has the name.
        stored: Returns what the object of a kind, "secrets" or "configmaps", with a name holds; None if there is none.

    Raises:
        NotResolved: It refers to what is not there.
    """
    container = pod["spec"]["containers"][0]
    environ = dict(before)
    for source in container.get("envFrom", ()):
        environ |= _all_of(source, stored)
    for entry in container.get("env", ()):
        value = expanded(entry.get("value", ""), environ)
        if "valueFrom" in entry:
            found = _referred(pod, container, entry["valueFrom"], stored)
            if found is None:
                continue  # optional
            value = found
        environ[entry["name"]] = value
    own = {entry["name"] for entry in container.get("env", ())}
    return environ | {name: value for name, value in injected.items() if name not in own}


def _all_of(source: Object, stored: Callable[[str, str], Mapping[str, str] | None]) -> dict[str, str]:
    """Return all that an entry of `envFrom` refers to."""
    word, reference = next(
        (word, source[field])
        for word, field in (("secret", "secretRef"), ("configmap", "configMapRef"))
        if field in source
    )
    found = stored(f"{word}s", reference["name"])
    if found is None and not reference.get("optional"):
        raise NotResolved(f'{word} "{reference["name"]}" not found')
    return {f"{source.get('prefix', '')}{name}": value for name, value in (found or {}).items()}


def _referred(
    pod: Object, container: Object, source: Object, stored: Callable[[str, str], Mapping[str, str] | None]
) -> str | None:
    [(kind, reference)] = source.items()
    if kind == "fieldRef":
        return _field(pod, reference["fieldPath"])
    kinds = {
        "secretKeyRef": ("secrets", "secret", "Secret"),
        "configMapKeyRef": ("configmaps", "configmap", "ConfigMap"),
    }
    if kind not in kinds:
        raise NotResolved(f"{kind} of container {container['name']} is not known here")
    plural, name, word = kinds[kind]
    found = stored(plural, reference["name"])
    if found is None:
        if reference.get("optional"):
            return None
        raise NotResolved(f'{name} "{reference["name"]}" not found')
    if (value := found.get(reference["key"])) is None:
        if reference.get("optional"):
            return None
        raise NotResolved(
            f"couldn't find key {reference['key']} in {word} {pod['metadata']['namespace']}/{reference['name']}"
        )
    return value


def _field(pod: Object, path: str) -> str:
    if mapped := _MAPPED.fullmatch(path):
        return str(pod["metadata"].get(mapped[1], {}).get(mapped[2], ""))
    if path not in _FIELDS:
        raise NotResolved(f"the field {path} is not known here")
    kind, name = path.split(".")
    return str(pod[kind].get(name, ""))


def tpu_names(pod: Object, job: Object | None) -> dict[str, str]:
    """Return what GKE's webhook tells a host of a TPU slice: its number, and the names of all hosts in their order."""
    requests = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    subdomain = pod["spec"].get("subdomain")
    if job is None or "google.com/tpu" not in requests or not subdomain:
        return {}
    hosts = job["spec"].get("parallelism", 1)
    if job["spec"].get("completionMode") != "Indexed" or hosts < 2:
        return {}
    names: Sequence[str] = [f"{job['metadata']['name']}-{host}.{subdomain}" for host in range(hosts)]
    index = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
    return {"TPU_WORKER_ID": index, "TPU_WORKER_HOSTNAMES": ",".join(names)}
