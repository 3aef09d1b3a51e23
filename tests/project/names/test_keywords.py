"""The keywords of `command`, for type checkers, follow from `Options`. Formatted by ruff, which other Pythons here lack."""

from __future__ import annotations

from tests.project.names import keywords


def test_the_keywords_of_command_are_those_that_options_state() -> None:
    assert keywords.OF_COMMAND.read_text(encoding="utf-8") == keywords.of_command(), (
        "python -m tests.project.names.keywords"
    )
