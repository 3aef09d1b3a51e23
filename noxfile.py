"""The tasks of this project: `.venv/bin/nox -s NAME`, of which `.venv/bin/nox -l` lists the names.

Every session runs in the environment that nox is installed in, which `pip install -e '.[dev]'` makes. The gate
(`.ci/run`) and the hosted workflows call the same sessions.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["fast", "lint", "docs"]

PROGRAMS = Path(sys.executable).parent


def pytest(session: nox.Session, *words: str) -> None:
    session.run(sys.executable, "-m", "pytest", *words, *session.posargs)


@nox.session
def fast(session: nox.Session) -> None:
    """Test rules, values and files: most of what can break, in about a minute on two cores."""
    pytest(session, "-n", "2", "-m", "fast")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests that are not slow, in about nine minutes on two cores."""
    pytest(session, "-n", "3")  # a third of each is waiting


@nox.session
def slow(session: nox.Session) -> None:
    """Run the slow tests: frameworks, whole orchestrators, faults on real processes.

    With TURN=0 to 9, which chooses a tenth of the longest, they take about twelve minutes on two cores.
    """
    pytest(session, "-n", "5", "--dist", "loadfile", "--no-loadscope-reorder", "-m", "slow and not offline")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format, types, the direction of imports, and the hosted workflows."""
    session.run(sys.executable, "-m", "ruff", "check", ".")
    session.run(sys.executable, "-m", "ruff", "format", "--check", "-q", ".")
    session.run(sys.executable, "-m", "mypy")
    session.run(str(PROGRAMS / "lint-imports"))
    session.run(str(PROGRAMS / "zizmor"), "-q", "--offline", "--no-config", "--persona", "pedantic", ".github")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site of the documentation into site/; a broken link is an error."""
    words = session.posargs or ["build", "--strict", "-q"]
    session.run(sys.executable, "-m", "mkdocs", *words, env={"NO_MKDOCS_2_WARNING": "true"})


@nox.session
def package(session: nox.Session) -> None:
    """Build wheel and sdist of the last commit twice, compare them, and run each in an empty environment elsewhere.

    A word after -- is the folder that they are left in.
    """
    session.run(sys.executable, "-m", "tests.project.release.package", *session.posargs)


@nox.session
def upgrade(session: nox.Session) -> None:
    """Play jobs that the release before has begun, which is built from its commit, and the other way round."""
    pytest(session, "-n", "0", "-m", "slow", "tests/project/release/test_upgrade.py")


@nox.session
def slurm(session: nox.Session) -> None:
    """Test jobs on a real Slurm, which is started by root alone."""
    pytest(session, "-n", "0", "-m", "slow", "tests/core/platforms/slurm")


@nox.session
def terraform(session: nox.Session) -> None:
    """Validate the Terraform module with the real providers, and compare the stand-ins of the tests with them."""
    session.run(sys.executable, "-m", "tests.support.terraform.real")


@nox.session
def simulate(session: nox.Session) -> None:
    """Play schedules of crashes and lost answers that are drawn by the date."""
    session.run(sys.executable, "-m", "tests.simulation", "--by-date", "--each", *session.posargs)


@nox.session
def airflow(session: nox.Session) -> None:
    """Play the components of older Airflows, each in an environment that is made: `-- 2.11.2` for one of them."""
    from tests.support.airflow_releases.environment import RELEASES

    asked = [word for word in session.posargs if word in RELEASES]
    words = [word for word in session.posargs if word not in asked]
    for release in asked or RELEASES:
        played = ("-m", "offline", "tests/airflow_kinetic/live/test_live_releases.py", *words)
        session.run(sys.executable, "-m", "pytest", "-n", "0", *played, env={"AIRFLOW_RELEASE": release})
        if not words:  # those that say what the release has where
            told = ("-m", "pytest", "-n", "0", "tests/airflow_kinetic/test_provider.py")
            session.run(sys.executable, *told, env={"AIRFLOW_RELEASE": release})


@nox.session
def gate(session: nox.Session) -> None:
    """Run all that a change has to pass, in a clean copy of the last commit."""
    session.run(os.path.join(".ci", "run"), external=True)
