"""The variables of a job's program: which of this process are sent, in the open or as secrets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kinetic_orchestration.errors import ConflictingSettings
from kinetic_orchestration.plan.configuration.settings import VARIABLES
from kinetic_orchestration.plan.declare.checks.options import check_keras_backend
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.messages import warn_once
from kinetic_orchestration.plan.values import Traits

# A wildcard never captures what would break the job's own process.
NEVER_BY_WILDCARD = frozenset(
    (
        *("PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("CONDA_DEFAULT_ENV", "SHELL", "TMPDIR", "TEMP", "TMP", "HOSTNAME", "USER", "LOGNAME", "SSH_AUTH_SOCK"),
        *("KUBERNETES_SERVICE_HOST", "KERAS_BACKEND", "KINETIC_SIGNING_KEY", "KINETIC_BILLING_KEY"),
    )
)


def capture(
    patterns: Iterable[str], environ: Mapping[str, str], *, named_only: bool = False
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables that are sent in the open, and the names of those that look like secrets, by name or by value.

    As in Keras Kinetic, a final * makes a prefix of a name, and a * elsewhere is a letter. `named_only`: send a
    credential only if it is named, as to other machines.
    """
    from kinetic_orchestration.plan.declare.checks.secret_shapes import (
        is_secret,  # its many patterns take as long as all other imports
    )

    patterns = tuple(patterns)
    exact = {pattern for pattern in patterns if not pattern.endswith("*")}
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    names = sorted(
        name for name in environ if name in exact or (name not in NEVER_BY_WILDCARD and name.startswith(prefixes))
    )
    missing = sorted(exact - set(environ))
    if missing:
        warn_once(f"capture_env_vars names {', '.join(missing)}, not set here")
    hidden = tuple(name for name in names if is_secret(name, environ[name]))
    kept = tuple(name for name in hidden if name in exact or not named_only)
    if len(kept) < len(hidden):
        stay = ", ".join(name for name in hidden if name not in kept)
        warn_once(
            f"{stay}: looks like a credential and stays here, because a wildcard of capture_env_vars meant it. "
            "Name it exactly to send it, by Secret Manager"
        )
    return {name: environ[name] for name in names if name not in hidden}, kept


def warn_of_secrets(spec: JobSpec) -> None:
    """Warn of values that look like secrets: the user may not want all readers of the store to see them."""
    if not spec.env and not spec.argv:
        return
    from kinetic_orchestration.plan.declare.checks.secret_shapes import is_secret, kind_of_secret

    found = [f"env={name}" for name, value in spec.env.items() if is_secret(name, value)]
    found += [f"part {at} of the command" for at, part in enumerate(spec.argv, 1) if kind_of_secret(part)]
    if found:
        warn_once(
            f"{spec.name}: {', '.join(found)} looks like a secret, and whoever may read the store can read it. Hand it "
            "over with secrets=, or set the variable here and name it in capture_env_vars"
        )


def with_keras_backend(env: dict[str, str], options: Options, given: Mapping[str, str]) -> dict[str, str]:
    """The variables with the value of `keras_backend=`; a name that Keras does not know would only be found on
    a host."""
    asked, given_value = options.keras_backend, given.get("KERAS_BACKEND")
    if asked and given_value and asked != given_value:
        raise ConflictingSettings(
            f"keras_backend={asked!r} and env={{'KERAS_BACKEND': {given_value!r}}} name two backends of Keras: keep one"
        )
    found = {**env, "KERAS_BACKEND": asked} if asked else env
    if found.get("KERAS_BACKEND", "") not in ("", "numpy", "openvino"):  # with which nothing is trained
        check_keras_backend("KERAS_BACKEND", found["KERAS_BACKEND"])
    return found


def warn_of_kinetics_settings(environ: Mapping[str, str], traits: Traits) -> None:
    if all(name in VARIABLES for name in environ if name.startswith("KINETIC_")):
        return
    from kinetic_orchestration.plan.declare.keras_kinetic import without_effect  # a table that most launches do without

    for name, why in without_effect(environ, traits.ignored):
        warn_once(f"{name} is set, and has no effect here: {why}")


def owner_in(environ: Mapping[str, str]) -> str:
    return environ.get("USER") or environ.get("LOGNAME") or ""
