"""The chain of credentials: each source against a server that answers as AWS documents it."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from kinetic_orchestration.host.machine.s3 import credentials
from kinetic_orchestration.host.machine.s3.credentials import Chain, Unavailable, find
from kinetic_orchestration.host.machine.s3.place import place_of

ROLE = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>k</AccessKeyId><SecretAccessKey>s</SecretAccessKey>
<SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""
OFF = {"AWS_EC2_METADATA_DISABLED": "true"}


class Answers:
    """What a server gives for a method and path, and what it was asked with."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.given: dict[str, tuple[int, str]] = {}
        self.asked: list[tuple[str, dict[str, str], str]] = []


@contextmanager
def serving() -> Iterator[Answers]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            answers.asked.append((f"{self.command} {self.path}", dict(self.headers), body))
            status, text = answers.given.get(f"{self.command} {self.path}", (404, ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_PUT = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        answers = Answers(f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield answers
        server.shutdown()


@pytest.fixture
def server() -> Iterator[Answers]:
    with serving() as answers:
        yield answers


@pytest.fixture
def aws(tmp_path: Path) -> Path:
    folder = tmp_path / ".aws"
    folder.mkdir()
    return folder


def told(expires: str = "2099-01-01T00:00:00Z", **more: str) -> str:
    return json.dumps({"AccessKeyId": "k", "SecretAccessKey": "s", "Token": "t", "Expiration": expires, **more})


def test_variables_come_first(aws: Path) -> None:
    (aws / "credentials").write_text("[default]\naws_access_key_id=other\naws_secret_access_key=other\n")
    given = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t", "HOME": str(aws.parent)}
    assert find(given) == ("k", "s", "t", 0.0, "AWS_ACCESS_KEY_ID")


def test_variables_that_were_read_from_files_with_the_ends_of_their_lines_are_the_same(aws: Path) -> None:
    """As those of a Secret are that was made --from-file."""
    given = {"AWS_ACCESS_KEY_ID": "k\n", "AWS_SECRET_ACCESS_KEY": "s\r\n", "AWS_SESSION_TOKEN": "t\n"}
    assert find({**given, "HOME": str(aws.parent)}) == ("k", "s", "t", 0.0, "AWS_ACCESS_KEY_ID")


@pytest.mark.parametrize("text", ["aws_secret_access_key = hunter2\n", "[default]\naws_secret_access_key hunter2\n"])
def test_a_file_that_cannot_be_read_is_named_with_the_line_and_without_its_text(aws: Path, text: str) -> None:
    (aws / "credentials").write_text(text)
    with pytest.raises(
        Unavailable, match=rf"\.aws/credentials cannot be read .* \(line {text.count(chr(10))}\)"
    ) as told:
        find({"HOME": str(aws.parent), **OFF})
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
def test_what_no_header_can_hold_is_told_without_a_letter_of_it(aws: Path, variable: str) -> None:
    given = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", variable: "hunter2\nhunter2"}
    with pytest.raises(Unavailable, match=r"The credentials \(AWS_ACCESS_KEY_ID\) have a character in their") as told:
        find({**given, "HOME": str(aws.parent)})
    assert "hunter2" not in str(told.value)


def test_an_answer_that_has_only_a_part_of_the_credentials_is_not_quoted(server: Answers, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("jwt")
    part = json.dumps({"SecretAccessKey": "hunter2", "Expiration": "2099-01-01T00:00:00Z"})
    server.given = {
        "POST /": (200, ROLE.replace("<AccessKeyId>k</AccessKeyId>", "").replace(">s<", ">hunter2<")),
        "GET /v1/credentials": (200, part),
    }
    role = {"AWS_ROLE_ARN": "arn:r", "AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ENDPOINT_URL_STS": server.url}
    for given in (role, {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/v1/credentials"}):
        with pytest.raises(Unavailable, match="its answer is incomplete, or none that can be read") as told:
            find({**given, "HOME": str(tmp_path), **OFF})
        assert "hunter2" not in str(told.value)


def test_a_profile_is_read_from_both_files(aws: Path) -> None:
    (aws / "credentials").write_text("[team]\naws_access_key_id = k\naws_secret_access_key = s\n")
    (aws / "config").write_text("[profile team]\nregion = eu-north-1\nendpoint_url = https://minio.example:9000/\n")
    given = {"HOME": str(aws.parent), "AWS_PROFILE": "team", **OFF}
    assert find(given) == ("k", "s", "", 0.0, "the profile team of ~/.aws")
    place = place_of("bucket", given)
    assert (place.endpoint, place.region) == ("https://minio.example:9000", "eu-north-1")
    with pytest.raises(Unavailable, match=r"none in the variables, in the profile 'default' of ~/.aws"):
        find({"HOME": str(aws.parent), **OFF})


def test_a_command_of_a_profile_gives_them(aws: Path) -> None:
    program = aws / "give.py"
    program.write_text(f"print({told(SessionToken='t2')!r})")
    (aws / "config").write_text(f'[default]\ncredential_process = "{sys.executable}" "{program}"\n')
    found = find({"HOME": str(aws.parent), **OFF})
    assert found[:3] == ("k", "s", "t2")
    program.write_text("import sys; sys.exit('the device is locked')")
    with pytest.raises(Unavailable, match=r"gave no credentials: the device is locked\. Run it by hand"):
        find({"HOME": str(aws.parent), **OFF})


def test_what_only_aws_tools_do_is_told_with_the_way_there(aws: Path) -> None:
    (aws / "config").write_text("[profile work]\nsso_session = corp\n")
    with pytest.raises(
        Unavailable, match=r"by sso_session.*aws configure export-credentials --profile work --format env"
    ):
        find({"HOME": str(aws.parent), "AWS_PROFILE": "work", **OFF})


def test_a_pod_with_a_web_identity_takes_its_role(server: Answers, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of the cluster\n")
    server.given["POST /"] = (
        200,
        ROLE,
    )
    given = {
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/jobs",
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_ENDPOINT_URL_STS": server.url,
    }
    found = find(given)
    assert found == ("k", "s", "t", 4070908800.0, "the role arn:aws:iam::1:role/jobs")
    asked = parse_qs(server.asked[0][2])
    assert (asked["Action"], asked["WebIdentityToken"]) == (["AssumeRoleWithWebIdentity"], ["of the cluster"])
    server.given["POST /"] = (403, "<ErrorResponse>InvalidIdentityToken</ErrorResponse>")
    with pytest.raises(Unavailable, match=r"InvalidIdentityToken.*Let the role trust this identity's issuer"):
        find(given)


def test_a_pod_of_eks_asks_the_agent_of_its_node(server: Answers, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of the pod")
    server.given["GET /v1/credentials"] = (200, told())
    given = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/v1/credentials",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
        "HOME": str(tmp_path),
    }
    assert find(given)[:3] == ("k", "s", "t")
    assert server.asked[0][1]["Authorization"] == "of the pod"
    with pytest.raises(Unavailable, match="it has to be https, or this machine's own"):
        find({**given, "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://elsewhere.example/x"})


def test_a_task_of_ecs_asks_its_endpoint(server: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "CONTAINER", server.url)
    server.given["GET /v2/credentials/1"] = (200, told())
    assert find({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/credentials/1", "HOME": str(tmp_path)})[0] == "k"


def test_a_machine_of_ec2_asks_its_metadata_by_a_session(server: Answers, tmp_path: Path) -> None:
    server.given["PUT /latest/api/token"] = (200, "session")
    server.given["GET /latest/meta-data/iam/security-credentials/"] = (200, "jobs\n")
    server.given["GET /latest/meta-data/iam/security-credentials/jobs"] = (200, told())
    found = find({"AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url, "HOME": str(tmp_path)})
    assert found[:3] == ("k", "s", "t")
    headers = {name.lower(): value for name, value in server.asked[-1][1].items()}
    assert headers["x-aws-ec2-metadata-token"] == "session"


def test_credentials_are_asked_for_again_before_they_expire(
    server: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_ROLE_ARN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/a")
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + credentials.EARLY / 2))
    server.given["GET /a"] = (200, told(soon))
    chain = Chain()
    first = chain.get()
    server.given["GET /a"] = (200, told(AccessKeyId="second"))
    assert chain.get().key == "second"
    assert chain.get().key == "second"
    assert len(server.asked) == 2
    server.given["GET /a"] = (500, "")
    assert chain.get(stale=first).key == "second"


def test_valid_credentials_outlast_a_refresh_that_fails(
    server: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other thread waits for it, and it is not tried again at once."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_ROLE_ARN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/a")
    monkeypatch.setattr(credentials, "PATIENCE", 1.5)
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + credentials.EARLY / 2))
    server.given["GET /a"] = (200, told(soon))
    chain = Chain()
    first = chain.get()
    server.given["GET /a"] = (500, "")
    refreshing = threading.Thread(target=chain.get)
    refreshing.start()
    while len(server.asked) < 2:
        time.sleep(0.01)
    assert chain.get() is first
    assert refreshing.is_alive()
    refreshing.join()
    tried = len(server.asked)
    assert chain.get() is first
    assert len(server.asked) == tried
    with pytest.raises(Unavailable):
        chain.get(stale=first)


@pytest.mark.parametrize("code", ["Throttling", "IDPCommunicationError"])
def test_a_role_is_asked_for_again_while_the_refusal_may_pass(server: Answers, tmp_path: Path, code: str) -> None:
    (tmp_path / "token").write_text("of the cluster\n")
    server.given["POST /"] = (400, f"<ErrorResponse><Error><Code>{code}</Code></Error></ErrorResponse>")
    given = {
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/jobs",
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_ENDPOINT_URL_STS": server.url,
    }
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(find, given)
        while not server.asked:
            time.sleep(0.01)
        server.given["POST /"] = (200, ROLE)
        assert found.result().key == "k"


def test_a_profile_that_no_file_has_is_told(aws: Path) -> None:
    (aws / "credentials").write_text("[team]\naws_access_key_id = k\naws_secret_access_key = s\n")
    with pytest.raises(Unavailable, match=r"Neither .* has the profile 'taem', which AWS_PROFILE names"):
        find({"HOME": str(aws.parent), "AWS_PROFILE": "taem", **OFF})


@pytest.mark.parametrize(
    ("bucket", "given", "base"),
    [
        ("b", {}, "https://b.s3.us-east-1.amazonaws.com"),
        ("b.with.dots", {}, "https://s3.us-east-1.amazonaws.com/b.with.dots"),
        ("b", {"AWS_ENDPOINT_URL": "http://minio:9000/base/"}, "http://minio:9000/base/b"),
        ("b", {"AWS_ENDPOINT_URL": "x", "AWS_ENDPOINT_URL_S3": "https://a.r2.cloudflarestorage.com"}, "https://a.r2.cloudflarestorage.com/b"),
        ("b", {"AWS_ENDPOINT_URL_S3": "https://s3.dualstack.us-east-1.amazonaws.com"}, "https://b.s3.dualstack.us-east-1.amazonaws.com"),
    ],
)  # fmt: skip
def test_where_a_bucket_is_follows_from_the_settings(
    bucket: str, given: dict[str, str], base: str, tmp_path: Path
) -> None:
    assert place_of(bucket, {"HOME": str(tmp_path), **given}).base("us-east-1") == base


def test_an_endpoint_with_a_password_is_refused_without_it() -> None:
    with pytest.raises(ValueError, match="has a name or a password in it") as told:
        place_of("bucket", {"AWS_ENDPOINT_URL": "http://me:hunter2@minio:9000", "HOME": "/nowhere"})
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    "endpoint", ["/s3cret+key", "wJalrXUtnFEMI", "s3cret.key/x", "https://minio?token=hunter2", "9fb1c2:hunter2"]
)
def test_what_is_no_address_is_not_quoted(endpoint: str) -> None:
    """It may be the key, in the place of the address."""
    with pytest.raises(ValueError, match=r"\(or AWS_ENDPOINT_URL\) is no address: give the server's address") as told:
        place_of("bucket", {"AWS_ENDPOINT_URL": endpoint, "HOME": "/nowhere"})
    assert endpoint not in str(told.value)


@pytest.mark.parametrize("endpoint", ["minio:9000", "minio.example.com", "ftp://minio:9000/"])
def test_an_address_without_its_protocol_is_quoted(endpoint: str) -> None:
    with pytest.raises(ValueError, match=f" is '{endpoint}': give the server's address"):
        place_of("bucket", {"AWS_ENDPOINT_URL": endpoint, "HOME": "/nowhere"})


def test_a_region_of_china_has_a_domain_of_its_own(tmp_path: Path) -> None:
    place = place_of("b", {"HOME": str(tmp_path), "AWS_DEFAULT_REGION": "cn-north-1"})
    assert place.base(place.region) == "https://b.s3.cn-north-1.amazonaws.com.cn"
