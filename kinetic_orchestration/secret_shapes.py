"""Shapes of secrets: by the name of a variable, by a value, by the name and the head of a file.

Pure, and one place for all who ask: captured variables, arguments, files of a project. A shape is a guess. Where names
and known tokens say nothing, only values that look drawn at random count, and not those whose name says what they are:
a commit, a digest, an id, a path.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

# ---- names of variables ----------------------------------------------------------------------------------------

_SECRET_NAME = re.compile(
    r"TOKEN(?!I[ZS])|SECRET|PASSW|PASSPHRASE|CREDENTIAL|CONNECTION_?STR|CONN_STR|SQL_ALCHEMY_CONN"
    r"|(API|ACCESS|PRIVATE|AUTH|ACCOUNT|SIGNING|MASTER|SSH|LICEN[CS]E|ENCRYPTION|FERNET|GPG|HOST|SERVER|TLS|SSL)_?KEY"
    r"|(^|_)(KEYS?|DSN|PAT|PASS|CREDS?|WEBHOOKS?|COOKIES?|JWT|BEARER|PSK|OTP|TOTP)(_|$|\d)"
    r"|[A-Z0-9]_PWD(_|$)|PGPASS|(^|_)AUTH$|^AIRFLOW_CONN_"
)
_PUBLIC_NAME = re.compile(
    r"PUBLIC_?KEY|(^|_)PUB_?KEY|KEY_?(BOARD|MAP|CODE|WORD|SPACE|RING_BACKEND)|KEYCLOAK|SECRETAR"
    r"|(^|_)(EOS|BOS|PAD|UNK|MASK|SEP|CLS|SPECIAL|STOP)_TOKENS?(_|$)|TOKENS?_PER_"
    r"|(^|_)(PARTITION|PRIMARY|SORT|FOREIGN|DATASET|GROUP|JOIN)_KEYS?(_|$)"
)
_PLACE_NAME = re.compile(r"_?(FILE|PATH|DIR|DIRECTORY|FOLDER|SOCK|SOCKET)$")
_STRONG_NAME = re.compile(
    r"PASSW|PASSPHRASE|SECRET|(API|ACCESS|PRIVATE|AUTH|SIGNING)_?(KEY|TOKEN)|(^|_)(TOKEN|CREDENTIALS?|DSN|PAT)$"
)
# A value under such a name says what it is: it is no secret for being random.
_TOLD_NAME = re.compile(
    r"(^|_)(\w*SHA\d*|COMMIT|REV|REVISION|DIGEST|HASH|CHECKSUM|MD5|ETAG|FINGERPRINT|U?U?ID|GUID|VERSION|BUILD|TAG|TRACE"
    r"|TRACEPARENT|SPAN|RUN|REF|BRANCH|IMAGE|NAME|SEED|PUBLIC|PATH|PATHS|DIR|DIRS|HOME|ROOT|FILE|FILES|FOLDER|CACHE|BIN"
    r"|LIB|SOCK|SOCKET|HOST|HOSTNAME|ADDRESS|ADDR|URI|ZONE|REGION|MODEL|DATASET|LABELS?|COLORS|FLAGS|OPTS|ARGS|JOB|POD"
    r"|NODE|INSTANCE|PROMPT|PIPES|CONTEXT|TERM|LANG|LOCALE|DISPLAY|INVOCATION|JOURNAL|STREAM)(_|$|\d)"
)


def told_by_name(name: str) -> bool:
    """A variable, a field or a parameter whose name promises a secret: DB_PASSWORD, apiKey, SENTRY_DSN."""
    plain = _plain(name)
    return bool(_SECRET_NAME.search(plain)) and not (_PUBLIC_NAME.search(plain) and "PRIVATE" not in plain)


def is_secret(name: str, value: str) -> bool:
    """A variable that does not travel in the open, by its name or by its value."""
    if told_by_name(name) and not _is_harmless(_plain(name), value):
        return True
    return bool(told_by_value(value, name))


def is_secret_argument(name: str, value: str) -> bool:
    """The same of an argument, whose name says less: `key` and `token` mean much else in a training program."""
    if _STRONG_NAME.search(_plain(name)) and len(value) >= 8 and not re.search(r"\s", value):
        return not _is_harmless(_plain(name), value) and not _PLACE.match(value)
    return bool(told_by_value(value, name))


def _plain(name: str) -> str:
    return re.sub(r"[-.\s]", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).upper()


def _is_harmless(name: str, value: str) -> bool:
    """Under a secret's name, too: nothing, yes or no, a count of tokens, and the place of a file."""
    if value.strip().lower() in ("", "true", "false", "yes", "no", "on", "off", "none", "null"):
        return True
    if re.fullmatch(r"\d{1,9}", value) and re.search(r"TOKENS?|KEYS?", name) and not re.search("PASS|SECRET", name):
        return True
    return bool(_PLACE_NAME.search(name) and _PLACE.match(value))


# ---- values ----------------------------------------------------------------------------------------------------

LONGEST: Final = 64 << 10  # of a value, so much is looked at

_PRIVATE_KEY = (
    r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|AGE-SECRET-KEY-1[A-Z0-9]{20,}|PuTTY-User-Key-File"
)
_TOKENS: Final[Mapping[str, str]] = {
    "a token of GitHub": r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}",
    "a token of GitLab": r"gl(?:pat|dt|rt|cbt|ptt)-[\w-]{20,}",
    "a token of Slack": r"xox[abeoprs]-[\w-]{10,}|xapp-\d-[\w-]{10,}",
    "a webhook": r"hooks\.slack\.com/(?:services|workflows|triggers)/\w|discord(?:app)?\.com/api/webhooks/\d"
    r"|webhook\.office\.com/\w|logic\.azure\.com/workflows/",
    "a key of AWS": r"(?:AKIA|ASIA)[A-Z2-7]{16}",
    "a key of Google": r"AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|1//0[\w-]{30,}",
    "a key of Stripe": r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{20,}",
    "a key of Anthropic": r"sk-ant-[\w-]{20,}",
    "a key of OpenAI": r"sk-(?:proj-|svcacct-|admin-|or-v1-)?(?=[\w-]*\d)[A-Za-z0-9_-]{20,}",
    "a token of Hugging Face": r"hf_[A-Za-z0-9]{30,}|api_org_[A-Za-z0-9]{30,}",
    "a token of npm": r"npm_[A-Za-z0-9]{36}",
    "a token of PyPI": r"pypi-AgE[\w-]{30,}",
    "a key of SendGrid": r"SG\.[\w-]{16,}\.[\w-]{16,}",
    "a key of Twilio": r"SK[0-9a-f]{32}",
    "a token of a cloud": r"dapi[0-9a-f]{32}|do[opr]_v1_[0-9a-f]{64}|hvs\.[\w-]{24,}|tskey-\w+-[\w-]{10,}"
    r"|gsk_[A-Za-z0-9]{40,}|r8_[A-Za-z0-9]{30,}|glsa_[A-Za-z0-9_]{32,}|lin_api_[A-Za-z0-9]{30,}"
    r"|ATATT3[\w=-]{30,}|dp\.(?:pt|st|ct)\.[\w.-]{30,}|xai-[A-Za-z0-9]{40,}",
    "a JSON web token": r"eyJ[\w-]{8,}\.eyJ[\w-]{4,}\.[\w-]*",
}
_KNOWN = {
    "a private key": re.compile(_PRIVATE_KEY),
    **{kind: re.compile(rf"(?<![A-Za-z0-9_])(?:{pattern})") for kind, pattern in _TOKENS.items()},
}
_LOGIN = re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://([^/\s:@?#]*):([^/\s@]+)@")
_USER = re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://([A-Za-z0-9_-]{20,})@")
_QUERY = re.compile(
    r"(?i)[?&](?:password|passwd|pwd|token|access_token|auth|api_?key|apikey|key|sig|signature|secret|client_secret"
    r"|x-amz-signature|x-goog-signature)=([^&#\s]{6,})"
)
_FIELD = re.compile(
    r"(?i)(?:^|[;,\s{?&])[\"']?(?:password|passwd|pwd|sslpassword|accountkey|sharedaccesskey|sharedaccesssignature"
    r"|client_secret|secret_access_key|private_key|access_token|refresh_token)[\"']?\s*[=:]\s*[\"']?([^\s\"';,&}]+)"
)
_HEADER = re.compile(r"(?i)^(?:authorization:\s*)?(?:bearer|basic|token)\s+[\w.~+/=-]{16,}$")
_PLACEHOLDER = re.compile(r"[*x.•]+|<.*>|\$\{?\w+\}?|\{+\w*\}+|%\w*%?|\{\{.*|your[-_ ]?\w+|changeme|redacted", re.I)

_PLACE = re.compile(r"(?:~?/|\.{1,2}/|[A-Za-z]:[\\/]|file://)")
_UUID = re.compile(r"(?i)\{?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\}?")
_HEX = re.compile(r"(?i)(?:0x)?[0-9a-f]{32,}")
_WORDS = re.compile(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}|\d{4,}")
_PACKED = re.compile(r"(eJ|eN|eA|H4sI)[\w+/=-]{30,}")  # zlib's and gzip's first bytes in base64
_WORD = re.compile(r"[\w+/=.~-]+")
_PIECE = re.compile(r"[A-Za-z0-9+]{16,}")
RANDOM: Final = 3.5  # bits a letter, from which on a piece is no word


def told_by_value(value: str, name: str = "") -> str:
    """The kind of secret that a text holds, for people, or ""."""
    value = value[:LONGEST].strip()
    if len(value) < 8:
        return ""
    shape = known_token(value) or next((kind for kind, holds in _SHAPES.items() if holds(value)), "")
    if shape or told_by_name(name) or _TOLD_NAME.search(_plain(name)):
        return shape
    return "a random text" if _is_random(value) else ""


def _filled(pattern: re.Pattern[str], value: str) -> bool:
    """Tell whether the last group of any match is meant, and no placeholder."""
    return any(not _PLACEHOLDER.fullmatch(found[found.re.groups]) for found in pattern.finditer(value))


_SHAPES: Final[Mapping[str, Callable[[str], bool]]] = {
    "an address with a password": lambda value: _filled(_LOGIN, value),
    "an address with a token": lambda value: (
        any(_is_drawn(found[1]) or _HEX.fullmatch(found[1]) for found in _USER.finditer(value))
        or ("://" in value and _filled(_QUERY, value))
    ),
    "a password among settings": lambda value: _filled(_FIELD, value),
    "a header of authorization": lambda value: bool(_HEADER.match(value)),
}


def known_token(text: str) -> str:
    """The kind of the first token of a known shape in a text, or ""."""
    return next((kind for kind, pattern in _KNOWN.items() if pattern.search(text)), "")


def _is_random(value: str) -> bool:
    """One word that nobody would write: drawn from letters of both cases and digits, or hexadecimal."""
    if re.search(r"\s", value) or len(value) > 512 or _UUID.fullmatch(value) or _PLACE.match(value) or "://" in value:
        return False
    if _PACKED.fullmatch(value):
        return False
    if _HEX.fullmatch(value):
        return _entropy(value.lower()) >= 3.0
    return len(value) >= 20 and bool(_WORD.fullmatch(value)) and any(map(_is_drawn, _PIECE.findall(value)))


def _is_drawn(piece: str) -> bool:
    kinds = [re.search(kind, piece) is not None for kind in ("[a-z]", "[A-Z]", r"\d")]
    if sum(kinds) < 3 or _entropy(piece) < RANDOM or (len(piece) < 28 and len(re.findall(r"\d", piece)) < 2):
        return False
    words = [word for word in _WORDS.findall(piece) if re.search(r"(?i)[aeiou\d]", word)]
    return sum(map(len, words)) <= len(piece) * 0.45


def _entropy(text: str) -> float:
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())


# ---- files -----------------------------------------------------------------------------------------------------

HEAD: Final = 64 << 10  # a larger file is judged by its name

_TEMPLATE = re.compile(r"(?i)(^|[._-])(example|sample|template|tmpl|tpl|dist|defaults?|schema|j2|jinja2?)(\.|$)")
# Code and prose are read by people before they are committed, and a program does not run without its code.
_PROSE = frozenset(
    (
        *("py", "pyi", "pyc", "ipynb", "md", "rst", "htm", "html", "css", "js", "jsx", "ts", "tsx", "go", "rs", "java"),
        *("c", "h", "cc", "cpp", "sh", "tf", "pub", "svg", "png", "lock"),
    )
)
_KEY_FILE = re.compile(
    r"(?i)\.env(rc|[._-].*)?|.+\.env|\.dev\.vars|[._]netrc|\.?pgpass(\.conf)?|\.my\.cnf|\.mylogin\.cnf|\.pypirc"
    r"|\.git-credentials|\.ht(passwd|digest)|\.vault-token|\.boto|\.s3cfg|rclone\.conf|kaggle\.json|airflow\.cfg"
    r"|.*\.(pem|key|p12|pfx|p8|ppk|jks|keystore|kdbx?|keytab|ovpn|tfstate|tfvars)|.*\.tfstate\..*|krb5\.keytab"
    r"|id_(rsa|dsa|ecdsa|ed25519)(_sk)?([._-].*)?|kubeconfig|.*\.kubeconfig|client_secret.*\.json"
    r"|(application_default_)?credentials([._-].*)?\.(json|ya?ml|toml|ini|cfg|conf|txt|csv|xml|db)|credentials"
    r"|secrets?([._-].*)?\.(json|ya?ml|toml|ini|cfg|conf|env|txt|properties)"
)
_PUBLIC_HEAD = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*(?:CERTIFICATE|PUBLIC KEY|X509 CRL|DH PARAM)")
_PRIVATE_HEAD = re.compile(_PRIVATE_KEY.encode())
_ZIP = b"PK\x03\x04"
_TOKEN_FILE = 4096
_CONFIGURATIONS = frozenset({".npmrc", ".yarnrc", ".yarnrc.yml", "pip.conf", ".piprc", "uv.toml", ".condarc"})
_LOGIN_OF_A_TOOL = re.compile(
    rb"(?im)^\s*(//\S*:)?_?(authToken|auth|password|npmAuthToken)\s*[=:]\s*[\"']?(?!\$\{)[^\s\"'$]{6,}"
)
_IN_JSON = re.compile(
    rb'"private_key"\s*:\s*"[^"]|"refresh_token"\s*:\s*"[^"]|"client_secret"\s*:\s*"[^"]|"auth"\s*:\s*"[\w+/=]{8,}"'
)
_IN_KUBECONFIG = re.compile(rb"(?m)^\s*(client-key-data|token|password|client-certificate-data)\s*:\s*\S{8,}")


def is_key_file(path: str, head: bytes, *, whole: bool) -> bool:
    """A file of a project that looks like a key. `head`: its first bytes, and whether these are all."""
    if is_key_name(path):
        return not _is_public(path, head, whole=whole)
    name = path.rpartition("/")[2]
    suffix = name.rpartition(".")[2].lower()
    if suffix in _PROSE or _TEMPLATE.search(name):
        return False
    if _PRIVATE_HEAD.match(head[:512].lstrip()):
        return True
    return whole and len(head) <= HEAD and _holds_key(name.lower(), suffix, head)


def is_key_name(path: str) -> bool:
    """By its name alone."""
    name = path.rpartition("/")[2]
    if name.rpartition(".")[2].lower() in _PROSE:
        return False
    return path.endswith(".kube/config") or bool(_KEY_FILE.fullmatch(name) and not _TEMPLATE.search(name))


def _is_public(path: str, head: bytes, *, whole: bool) -> bool:
    """Certificates alone, or a talk's slides: of what is named like a key, these are none."""
    if not path.lower().endswith((".pem", ".key")):
        return False
    return head.startswith(_ZIP) or (whole and bool(_PUBLIC_HEAD.search(head)) and not _PRIVATE_HEAD.search(head))


def _holds_key(name: str, suffix: str, text: bytes) -> bool:
    if name in _CONFIGURATIONS:
        return bool(_LOGIN_OF_A_TOOL.search(text) or _LOGIN.search(text.decode("utf-8", "replace")))
    if suffix == "json":
        return bool(_IN_JSON.search(text))
    bare = "." not in name.lstrip(".")
    if (bare or suffix in ("yaml", "yml", "conf")) and b"kind: Config" in text:
        return bool(_IN_KUBECONFIG.search(text))
    if (bare or suffix == "txt") and len(text) <= _TOKEN_FILE and b"\n" not in text.strip():
        return bool(known_token(text.decode("utf-8", "replace").strip()))
    return False
