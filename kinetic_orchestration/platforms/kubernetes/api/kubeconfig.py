"""Where a cluster's API is and who this client is there: read from kubeconfigs as kubectl reads them, or inside a pod.

It owns the order in which these are looked for, how several files are merged, and the errors if they give no access.
It does not speak to the server.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import quote, urlsplit

from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.platforms.shared.cluster_access import Access, Pair, no_pair, no_token

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CLUSTER_INFO: Final = "client.authentication.k8s.io/exec"  # the cluster's extension for programs that give credentials
OURS: Final = "kinetic-orchestration"  # this package's extension of a cluster
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class _Entry(NamedTuple):
    """A context, a cluster or a user, and the file that paths in it are relative to."""

    fields: Mapping[str, Any]
    file: Path

    def text(self, name: str) -> str:
        return str(self.fields.get(name) or "")

    def texts(self, name: str) -> list[str]:
        return [str(value) for value in _items(self.fields.get(name))]

    def is_true(self, name: str) -> bool:
        return self.fields.get(name) in (True, "true")

    def path(self, name: str) -> Path | None:
        return self.file.parent / self.text(name) if self.text(name) else None

    def content(self, name: str) -> str:
        """The PEM in a field `NAME-data`, else in the file that the field names; "" if neither is there."""
        if data := self.text(f"{name}-data"):
            try:
                return base64.b64decode("".join(data.split()), validate=True).decode("ascii")
            except ValueError:
                raise CredentialsError(f"{name}-data in {self.file} is not base64 of a PEM. Write it anew.") from None
        path = self.path(name)
        return _file(path, f"{name} of {self.file}") if path else ""


class _Merged(NamedTuple):
    current: str
    contexts: Mapping[str, _Entry]
    clusters: Mapping[str, _Entry]
    users: Mapping[str, _Entry]


def load(environ: Mapping[str, str], *, path: str = "", context: str = "") -> Access:
    """Return the access of a context, "" for the current one.

    It is read from the file, else from the files that KUBECONFIG names, else from ~/.kube/config, else, in a pod and
    for no context by name, from its service account. Raises CredentialsError if there is none, or if it cannot be used
    here.
    """
    documents = _documents(environ, path, context)
    if not documents:
        return in_cluster(environ)
    merged, where = _merged(documents), _places(file for file, _ in documents)
    name = context or _current(merged, where)
    chosen = _named(merged.contexts, name, "context", where)
    cluster = _named(merged.clusters, chosen.text("cluster"), "cluster", where)
    user = _named(merged.users, chosen.text("user"), "user", where) if chosen.text("user") else _Entry({}, chosen.file)
    return _access(environ, chosen, cluster, user, name)._replace(
        find=partial(load, dict(environ), path=path, context=name)
    )


def current(environ: Mapping[str, str]) -> str:
    """Return the name of the current context; "" in a pod that has no kubeconfig and is named none.

    Raises CredentialsError if there is neither a context nor a pod's service account.
    """
    documents = _documents(environ, "", "")
    return _current(_merged(documents), _places(file for file, _ in documents)) if documents else ""


def noted(environ: Mapping[str, str], context: str) -> Mapping[str, Any]:
    """Return what this package has noted about the cluster of a context, in an extension of its entry."""
    files = _named_files(environ) or [_usual_file(environ)]
    merged = _merged([(file, _document(file)) for file in files if os.path.exists(file)])
    chosen = merged.contexts.get(context)
    cluster = merged.clusters.get(chosen.text("cluster")) if chosen is not None else None
    return {} if cluster is None else _extension(cluster, OURS)


def in_cluster(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Access:
    """Return the access of the pod that this process runs in. Raises CredentialsError if it has no service account."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise CredentialsError(
            "in-cluster is the cluster in whose pod a process runs, and this is no pod: KUBERNETES_SERVICE_HOST is not "
            "set. Name a context of the kubeconfig with cluster= or KINETIC_CLUSTER"
        )
    origin = f"the service account of this pod, {folder}"
    namespace = folder / "namespace"
    return Access(
        f"https://{f'[{host}]' if ':' in host else host}:{port}",
        origin,
        authority=_file(folder / "ca.crt", origin),
        namespace=_file(namespace, origin).strip() if namespace.exists() else "default",
        token=_token_of(folder / "token", origin),  # which the kubelet replaces each hour
        find=partial(in_cluster, dict(environ), folder),
        renewal="the kubelet brings the new one within minutes of its publication (ConfigMap kube-root-ca.crt)",
    )


# ---- files -----------------------------------------------------------------------------------------------------


def _named_files(environ: Mapping[str, str]) -> Sequence[Path]:
    return list(dict.fromkeys(map(Path, filter(None, environ.get("KUBECONFIG", "").split(os.pathsep)))))


def _usual_file(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home(), ".kube", "config")


def _documents(environ: Mapping[str, str], path: str, context: str) -> Sequence[tuple[Path, Mapping[str, Any]]]:
    """Return the kubeconfigs that there are, as kubectl counts them: none in a pod that is named no file and no
    context, and has a service account. Raises CredentialsError where there is neither."""
    if path:
        file = Path(path).expanduser()
        return [(file, _document(file))]
    named, usual = _named_files(environ), _usual_file(environ)
    if found := [(file, _document(file)) for file in named or [usual] if os.path.exists(file)]:
        return found
    if named:  # and never means the cluster of this pod: it may be another one
        raise CredentialsError(
            f"KUBECONFIG names {_places(named)}, which {'does' if len(named) == 1 else 'do'} not exist: correct it, or "
            f"unset it for {usual}"
        )
    none = f"there is no kubeconfig at {usual}"
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        raise CredentialsError(
            f"{none}, and this is no pod. For GKE, 'gcloud container clusters get-credentials CLUSTER' writes one; "
            "KUBECONFIG names another file"
        )
    if context:
        raise CredentialsError(
            f"{none}, so no context {context!r} is known. Mount one and name it with KUBECONFIG, or name no cluster "
            "for that of this pod"
        )
    if not os.path.exists(token := SERVICE_ACCOUNT / "token"):
        raise CredentialsError(
            f"{none}, and this pod has no token of its service account: {token} does not exist. Let it have one "
            "(automountServiceAccountToken), or name a kubeconfig with KUBECONFIG"
        )
    return ()


def _places(files: Iterable[Path]) -> str:
    return ", ".join(map(str, files))


def _current(merged: _Merged, where: str) -> str:
    if merged.current:
        return merged.current
    known = ", ".join(sorted(merged.contexts)) or "none"
    raise CredentialsError(
        f"{where} has no current-context; it has: {known}. Name one with cluster= or KINETIC_CLUSTER, or choose it "
        "with 'kubectl config use-context'"
    )


def _file(path: Path, of: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise CredentialsError(f"{path} ({of}) cannot be read: {said}.") from None


def _document(path: Path) -> Mapping[str, Any]:
    text = _file(path, "a kubeconfig")
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else None
    except ValueError:  # YAML has braces, too
        found = None
    if found is None:
        found = _yaml(text, path)
    if not isinstance(found, dict | None):
        raise CredentialsError(f"{path} is no kubeconfig: it holds no mapping.")
    return found or {}


def _yaml(text: str, path: Path) -> Any:
    import yaml

    # All scalars as text: a name or a token that looks like a number or a date stays what it is.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        return _without_null(yaml.load(text, loader))  # a BaseLoader makes no objects
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        said = getattr(error, "problem", None) or type(error).__name__
        # Not the error itself, which quotes the line, and with it perhaps a token.
        raise CredentialsError(f"{path} is no YAML{line}: {said}.") from None


def _without_null(value: Any) -> Any:
    """The same values, None for what YAML writes as nothing."""
    if isinstance(value, dict):
        return {name: _without_null(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_null(one) for one in value]
    return None if value in ("", "~", "null") else value


def _merged(documents: Sequence[tuple[Path, Mapping[str, Any]]]) -> _Merged:
    """Return the content of all files together: of each name, that of the first file that has it."""
    current = ""
    kinds: dict[str, dict[str, _Entry]] = {"context": {}, "cluster": {}, "user": {}}
    for file, document in documents:
        current = current or _Entry(document, file).text("current-context")
        for kind, known in kinds.items():
            for item in _items(document.get(f"{kind}s")):
                fields = item.get(kind) if isinstance(item, dict) else None
                if isinstance(fields, dict):
                    known.setdefault(str(item.get("name")), _Entry(fields, file))
    return _Merged(current, kinds["context"], kinds["cluster"], kinds["user"])


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(known: Mapping[str, _Entry], name: str, kind: str, where: str) -> _Entry:
    if name in known:
        return known[name]
    there = ", ".join(sorted(known)) or "none"
    raise CredentialsError(f"{where} has no {kind} {name!r}. There are: {there}.")


# ---- what the entries say --------------------------------------------------------------------------------------


def _access(environ: Mapping[str, str], context: _Entry, cluster: _Entry, user: _Entry, name: str) -> Access:
    server = cluster.text("server").rstrip("/")
    address = urlsplit(server)
    if address.scheme != "https" and (address.scheme != "http" or address.hostname not in _LOOPBACK):
        raise CredentialsError(
            f"The server of context {name!r} in {cluster.file} is {server!r}: only https:// keeps a token secret."
        )
    authority = cluster.content("certificate-authority")
    token, pair = _identity(user, _cluster_info(cluster, server), environ)
    return Access(
        server,
        f"context {name!r} of {cluster.file}",
        authority=authority,
        insecure=cluster.is_true("insecure-skip-tls-verify"),
        server_name=cluster.text("tls-server-name"),
        proxy=_proxy(cluster, environ, address.hostname or "", address.port or 443),
        namespace=context.text("namespace") or "default",
        headers=tuple(_impersonated(user)),
        token=token,
        pair=pair,
    )


def _identity(
    user: _Entry, cluster: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Callable[[bool], str], Callable[[], Pair | None]]:
    if user.fields.get("auth-provider"):
        _refuse(
            user,
            "an auth-provider, which Kubernetes removed in 1.26",
            "write it anew, for GKE with 'gcloud container clusters get-credentials CLUSTER'",
        )
    if user.text("username") or user.text("password"):
        _refuse(user, "a user name with a password, which Kubernetes removed in 1.19", "use a token or a certificate")
    pair = partial(_pair, user) if _has(user, "client-certificate") or _has(user, "client-key") else no_pair
    if file := user.path("tokenFile"):
        return _token_of(file, f"tokenFile of {user.file}"), pair
    if token := user.text("token").strip():
        return lambda fresh: token, pair
    spec = user.fields.get("exec")
    if isinstance(spec, dict):
        from kinetic_orchestration.platforms.kubernetes.api.exec_plugin import ExecPlugin

        plugin = ExecPlugin(spec, user.file.parent, cluster, environ)
        return plugin.token, plugin.pair
    return no_token, pair


def _refuse(user: _Entry, what: str, advice: str) -> NoReturn:
    raise CredentialsError(f"The user in {user.file} has {what}: {advice}.")


def _has(entry: _Entry, name: str) -> bool:
    return bool(entry.text(name) or entry.text(f"{name}-data"))


def _pair(user: _Entry) -> Pair:
    """The client certificate as the files have it now: some are renewed in place."""
    certificate, key = user.content("client-certificate"), user.content("client-key")
    if not (certificate and key):
        _refuse(user, "one of client-certificate and client-key", "both are needed")
    return Pair(certificate, key)


def _token_of(file: Path, of: str) -> Callable[[bool], str]:
    return lambda fresh: _file(file, of).strip()


def _impersonated(user: _Entry) -> list[tuple[str, str]]:
    """The headers of `as`: left out, the client would have the rights of another."""
    found = [("Impersonate-User", user.text("as"))] if user.text("as") else []
    found += [("Impersonate-Uid", user.text("as-uid"))] if user.text("as-uid") else []
    found += [("Impersonate-Group", group) for group in user.texts("as-groups")]
    extra = user.fields.get("as-user-extra")
    for key, values in extra.items() if isinstance(extra, dict) else ():
        found += [(f"Impersonate-Extra-{quote(str(key), safe='')}", str(value)) for value in _items(values)]
    return found


def _cluster_info(cluster: _Entry, server: str) -> dict[str, Any]:
    """The cluster as an ExecCredential has it."""
    info: dict[str, Any] = {"server": server}
    if authority := cluster.content("certificate-authority"):
        info["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    info |= {name: cluster.text(name) for name in ("tls-server-name", "proxy-url") if cluster.text(name)}
    if cluster.is_true("insecure-skip-tls-verify"):
        info["insecure-skip-tls-verify"] = True
    if config := _extension(cluster, CLUSTER_INFO):
        info["config"] = config
    return info


def _extension(cluster: _Entry, name: str) -> Mapping[str, Any]:
    """Return the note of a program about a cluster under its own name."""
    for extension in _items(cluster.fields.get("extensions")):
        if isinstance(extension, dict) and extension.get("name") == name:
            found = extension.get("extension")
            return found if isinstance(found, dict) else {}
    return {}


# ---- proxies ---------------------------------------------------------------------------------------------------


def _proxy(cluster: _Entry, environ: Mapping[str, str], host: str, port: int) -> str:
    """The proxy of `proxy-url`, else the environment's, unless NO_PROXY or a loopback address goes past it."""
    proxy = cluster.text("proxy-url")
    if not proxy and host not in _LOOPBACK and not _is_direct(_variable(environ, "NO_PROXY"), host, port):
        proxy = _variable(environ, "HTTPS_PROXY")
    if not proxy:
        return ""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith("http://"):
        kind = proxy.partition("://")[0]
        raise CredentialsError(
            f"The proxy for {host} is of the kind {kind}, and only http:// is spoken here: name another with "
            f"proxy-url in {cluster.file}, or put {host} into NO_PROXY."
        )
    return proxy


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.lower()) or ""


def _is_direct(exceptions: str, host: str, port: int) -> bool:
    """True if NO_PROXY has the host, as kubectl reads it: a name with all below it, an address, a network, or `*`."""
    for one in filter(None, (part.strip().lower() for part in exceptions.split(","))):
        name = one.removesuffix(f":{port}").removeprefix("*").lstrip(".")
        if one == "*" or host == name or host.endswith(f".{name}") or ("/" in one and _is_within(host, one)):
            return True
    return False


def _is_within(host: str, network: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
