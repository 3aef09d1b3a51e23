"""The last words of a pod, which more people read than its secrets."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from kinetic_orchestration.host.machine.pod import last_words

pytestmark = pytest.mark.fast


def test_a_pod_of_which_nobody_reads_last_words_ends_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_ROOT", str(tmp_path))
    last_words.leave("why")
    assert list(tmp_path.iterdir()) == []


def test_the_first_words_are_left_as_they_are_and_no_more_than_a_kubelet_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_ROOT", str(tmp_path))
    file = tmp_path / last_words.FILE
    file.parent.mkdir()
    file.touch()
    last_words.leave("x" + "ä" * 5000)
    last_words.leave("another")
    assert file.read_text(encoding="utf-8") == "x" + "ä" * 2047


SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "/s3cret+key", "AWS_SESSION_TOKEN": "a-token\n",
    "MINE": "captured-secret", "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token", "TOKENIZERS_PARALLELISM": "false",
    last_words.ORDERS: json.dumps({"secrets": ["MINE"], "key": "seal-of-the-attempt"}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("the key AKIAEXAMPLE is unknown", "the key (hidden) is unknown"),
        ("b'/s3cret+key' or b'a-token\\n'", "b'(hidden)' or b'(hidden)\\n'"),
        ("captured-secret, seal-of-the-attempt", "(hidden), (hidden)"),
        ("/var/run/token is not there, which is false", "/var/run/token is not there, which is false"),
        (
            "GET https://s3.example/b/o?X-Amz-Credential=AKIA%2F1&X-Amz-Signature=0a1b&X-Amz-Expires=60 failed",
            "GET https://s3.example/b/o?X-Amz-Credential=(hidden)&X-Amz-Signature=(hidden)&X-Amz-Expires=60 failed",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1, SignedHeaders=host, Signature=0a1b",
            "AWS4-HMAC-SHA256 Credential=(hidden), SignedHeaders=host, Signature=(hidden)",
        ),
        ("x-amz-security-token: abc", "x-amz-security-token: (hidden)"),
        ("Authorization: Bearer ya29.abc", "Authorization: Bearer (hidden)"),
        ("http://me:pass@minio:9000 does not answer", "http://(hidden)@minio:9000 does not answer"),
        ("http://me:p@ss/word@minio:9000 does not answer", "http://(hidden)@minio:9000 does not answer"),
        (
            '{"X-Amz-Security-Token": "abc", "Signature":"0a1b"}',
            '{"X-Amz-Security-Token": "(hidden)", "Signature":"(hidden)"}',
        ),
        ("<SignatureProvided>0a1b==</SignatureProvided>", "<SignatureProvided>(hidden)</SignatureProvided>"),
        ("<SecretAccessKey>abc</SecretAccessKey>", "<SecretAccessKey>(hidden)</SecretAccessKey>"),
        ("Version=1&WebIdentityToken=abc.def&Action=x", "Version=1&WebIdentityToken=(hidden)&Action=x"),
        (
            "of eyJhbGciOiJSUzI1NiJ9.eyJzdWIi.c2ln, ya29.a0Af and ASIAEXAMPLE1234567",
            "of (hidden), (hidden) and (hidden)",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----, it is", "(hidden), it is"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII", "(hidden)"),
        (
            "the token in /var/run/x: it was InvalidToken. The signature does not match. See https://docs.example/a",
            "the token in /var/run/x: it was InvalidToken. The signature does not match. See https://docs.example/a",
        ),
    ],
)
def test_last_words_have_no_secret_of_the_pod_and_nothing_that_looks_like_one(text: str, told: str) -> None:
    assert last_words.discreet(text, SECRETS) == told


SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEX\\AMPLE"


@pytest.mark.parametrize(
    "name",
    ["AWS_SECRET_ACCESS_KEY", "DB_PASS", "MYSQL_PWD", "SLACK_WEBHOOK", "SENTRY_DSN", "WANDB_APIKEY", "HF_TOKEN_URL"],
)
@pytest.mark.parametrize(
    "quoted",
    [
        SECRET,
        repr(SECRET),
        json.dumps({"key": SECRET}),
        f"http://x/?a={quote(SECRET, safe='')}&b=c",
        base64.b64encode(SECRET.encode()).decode(),
        f"it begins with {SECRET[:12]}",
    ],
    ids=["as it is", "repr", "json", "in an address", "in base64", "cut off"],
)
def test_a_secret_is_not_in_last_words_however_an_error_quotes_it(name: str, quoted: str) -> None:
    left = last_words.discreet(f"the server answers {quoted}", {name: SECRET})
    assert last_words.HIDDEN in left
    assert not [at for at in range(len(quoted) - 7) if quoted[at : at + 8] in left and quoted[at : at + 8] in SECRET]
    assert "MDENG" not in left and "K7M" not in left


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\\n"])
def test_no_line_of_a_secret_is_in_last_words(line_end: str) -> None:
    """A traceback ends with the last line of what it quotes."""
    text = line_end.join(["-----BEGIN KEY-----", "MIIEvQIBADANBg", "AASCBKcwggSjAg", "-----END KEY-----", ""])
    assert last_words.discreet("of AASCBKcwggSjAg is", {"MY_KEY": text}) == "of (hidden) is"


def test_a_secret_that_is_no_text_is_hidden_all_the_same() -> None:
    secret = b"\xff\xfe-secret".decode("utf-8", "surrogateescape")
    assert last_words.discreet(f"of {secret}", {"MY_KEY": secret, "ANOTHER_KEY": "\ud800-secret"}) == "of (hidden)"


def test_the_folder_of_a_pod_is_no_secret() -> None:
    variables = {"PWD": "/app/training", "OLDPWD": "/app/training"}
    assert last_words.discreet("/app/training/x is not there", variables) == "/app/training/x is not there"
