"""Shapes of secrets: by the name of a variable, by a value, by the name and the head of a file.

Pure, and one place for all users: captured variables, arguments, files of a project. A shape is a guess. If names and
known tokens are not conclusive, only values that look random count, and not those whose name shows their kind: a
commit, a digest, an id, a path.
"""

from __future__ import annotations

import base64
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, AnyStr, Final, cast


class _Shape:
    """A regular expression that is compiled at its first use: a job needs few of these, and a process that submits one
    starts noticeably later with all.
    """

    def __init__(self, text: Any, flags: int) -> None:
        self._how = text, flags

    def __getattr__(self, verb: str) -> Any:
        found = getattr(re.compile(*self._how), verb)
        setattr(self, verb, found)
        return found


def _shape(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    return cast("re.Pattern[AnyStr]", _Shape(text, flags))


# ---- names of variables ----------------------------------------------------------------------------------------

_KEY_OF = (
    r"(API|ACCESS|PRIVATE|AUTH|ACCOUNT|SIGNING|MASTER|SSH|LICEN[CS]E|ENCRYPTION|FERNET|GPG|HOST|SERVER|TLS|SSL)_?KEY"
)
_SECRET_NAME = _shape(
    r"TOKEN(?!I[ZS])|SECRET|PASSW|PASSPHRASE|CREDENTIAL|CONNECTION_?STR|CONN_STR|SQL_ALCHEMY_CONN"
    rf"|{_KEY_OF}|(^|_)(KEYS?|DSN|PAT|PASS|CREDS?|WEBHOOKS?|COOKIES?|JWT|BEARER|PSK|OTP|TOTP)(_|$|\d)"
    r"|[A-Z0-9]_PWD(_|$)|[A-Z0-9]_PW$|PGPASS|(^|_)AUTH$|^AIRFLOW_CONN_"
)
_PUBLIC_NAME = _shape(
    r"PUBLIC_?KEY|(^|_)PUB_?KEY|KEY_?(BOARD|MAP|CODE|WORD|SPACE|RING_BACKEND)|KEYCLOAK|SECRETAR"
    r"|(^|_)(EOS|BOS|PAD|UNK|MASK|SEP|CLS|SPECIAL|STOP)_TOKENS?(_|$)|TOKENS?_PER_"
    r"|(^|_)(PARTITION|PRIMARY|SORT|FOREIGN|DATASET|GROUP|JOIN)_KEYS?(_|$)"
)
_PLACE_NAME = _shape(r"_?(FILE|PATH|DIR|DIRECTORY|FOLDER|SOCK|SOCKET)$")
_STRONG_NAME = _shape(
    r"PASSW|PASSPHRASE|SECRET|(API|ACCESS|PRIVATE|AUTH|SIGNING)_?(KEY|TOKEN)|(^|_)(TOKEN|CREDENTIALS?|DSN|PAT)$"
)
# Such a name shows the kind of its value: a random one is no secret.
_KIND_NAME = _shape(
    r"(^|_)(\w*SHA\d*|COMMIT|REV|REVISION|DIGEST|HASH|CHECKSUM|MD5|ETAG|FINGERPRINT|U?U?ID|GUID|VERSION|BUILD|TAG|TRACE"
    r"|TRACEPARENT|SPAN|RUN|REF|BRANCH|IMAGE|NAME|SEED|PUBLIC|PATH|PATHS|DIR|DIRS|HOME|ROOT|FILE|FILES|FOLDER|CACHE|BIN"
    r"|LIB|SOCK|SOCKET|HOST|HOSTNAME|ADDRESS|ADDR|URI|ZONE|REGION|MODEL|DATASET|LABELS?|COLORS|FLAGS|OPTS|ARGS|JOB|POD"
    r"|NODE|INSTANCE|PROMPT|PIPES|CONTEXT|TERM|LANG|LOCALE|DISPLAY|INVOCATION|JOURNAL|STREAM)(_|$|\d)"
)


def is_secret_name(name: str) -> bool:
    """Return True if the name of a variable, field or parameter promises a secret: DB_PASSWORD, apiKey, SENTRY_DSN."""
    plain = _plain(name)
    return bool(_SECRET_NAME.search(plain)) and not (_PUBLIC_NAME.search(plain) and "PRIVATE" not in plain)


def is_secret(name: str, value: str) -> bool:
    """Return True if a variable has to be kept secret, by its name or by its value."""
    if is_secret_name(name) and not _is_harmless(_plain(name), value):
        return True
    return bool(kind_of_secret(value, name))


def is_secret_argument(name: str, value: str) -> bool:
    """Return True if an argument looks like a secret. Its name says less: `key` and `token` mean much else in a
    training program.
    """
    if _STRONG_NAME.search(_plain(name)) and len(value) >= 8 and not re.search(r"\s", value):
        return not _is_harmless(_plain(name), value) and not _PLACE.match(value)
    return bool(kind_of_secret(value, name))


def _plain(name: str) -> str:
    return re.sub(r"[-.\s]", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).upper()


def _is_harmless(name: str, value: str) -> bool:
    """Return True for harmless values even under a secret's name: empty, yes or no, a count of tokens, and a file's
    path."""
    if value.strip().lower() in ("", "true", "false", "yes", "no", "on", "off", "none", "null"):
        return True
    if re.fullmatch(r"\d{1,9}", value) and re.search(r"TOKENS?|KEYS?", name) and not re.search("PASS|SECRET", name):
        return True
    return bool(_PLACE_NAME.search(name) and _PLACE.match(value))


# ---- values ----------------------------------------------------------------------------------------------------

LONGEST: Final = 64 << 10  # of a value, only its beginning is checked

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
    "a private key": _shape(_PRIVATE_KEY),
    **{kind: _shape(rf"(?<![A-Za-z0-9_])(?:{pattern})") for kind, pattern in _TOKENS.items()},
}
_LOGIN = _shape(r"(?i)\b[a-z][a-z0-9+.-]*://([^/\s:@?#]*):([^/\s@]+)@")
_USER = _shape(r"(?i)\b[a-z][a-z0-9+.-]*://([A-Za-z0-9_-]{20,})@")
_QUERY = _shape(
    r"(?i)[?&](?:password|passwd|pwd|token|access_token|auth|api_?key|apikey|key|sig|signature|secret|client_secret"
    r"|x-amz-signature|x-goog-signature)=([^&#\s]{6,})"
)
_FIELD = _shape(
    r"(?i)(?:^|[;,\s{?&])[\"']?(?:password|passwd|pwd|sslpassword|accountkey|sharedaccesskey|sharedaccesssignature"
    r"|client_secret|secret_access_key|private_key|access_token|refresh_token)[\"']?\s*[=:]\s*[\"']?([^\s\"';,&}]+)"
)
_HEADER = _shape(r"(?i)^(?:authorization:\s*)?(?:bearer|basic|token)\s+[\w.~+/=-]{16,}$")
_PLACEHOLDER = _shape(
    r"[*x.•]+|<.*>|\$\{?\w+\}?|\$\(\w+\)|\{+\w*\}+|%\w*%?|(\$?\{\{|<%).*|your[-_ ]?[\w-]+|(change|replace)[-_ ]?(me|it)"
    r"|dummy|placeholder|redacted|todo|(op|vault|secret|awssm|gcpsm|ref\+\w+)://.*|vault:.*"
    r"|projects/[^/]+/secrets/[^/]+(/versions/\w+)?",
    re.I,
)

_PLACE = _shape(r"(?:~?/|\.{1,2}/|[A-Za-z]:[\\/]|file://)")
_UUID = _shape(r"(?i)\{?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\}?")
_HEX = _shape(r"(?i)(?:0x)?[0-9a-f]{32,}")
_WORDS = _shape(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}|\d{4,}")
_PACKED = _shape(r"(eJ|eN|eA|H4sI)[\w+/=-]{30,}")  # zlib's and gzip's first bytes in base64
_WORD = _shape(r"[\w+/=.~-]+")
_PIECE = _shape(r"[A-Za-z0-9+]{16,}")
RANDOM: Final = 3.5  # bits a letter, from which on a piece is no word


def kind_of_secret(value: str, name: str = "") -> str:
    """Return the kind of secret that a text contains, or ""."""
    value = value[:LONGEST].strip()
    if len(value) < 8:
        return ""
    shape = known_token(value) or next((kind for kind, holds in _SHAPES.items() if holds(value)), "")
    if shape or is_secret_name(name) or _KIND_NAME.search(_plain(name)):
        return shape
    return "a random text" if _is_random(value) else ""


def _filled(pattern: re.Pattern[str], value: str) -> bool:
    """Return True if the last group of any match is no placeholder."""
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
    """Return the kind of the first token of a known form in a text, or ""."""
    return next((kind for kind, pattern in _KNOWN.items() if pattern.search(text)), "")


def _is_random(value: str) -> bool:
    """Return True for one word that no user would write: random letters of both cases and digits, or hexadecimal."""
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
#
# The name selects the check of a file's contents: none, as the name is conclusive or harmless, or that of its kind. A
# check gets the head. A copy (`.env~`, `id_rsa.bak`) is checked like the original.

HEAD: Final = 64 << 10  # of a file, only its beginning is checked
_FIRST = 4096  # where a private key begins, perhaps behind comments; and a file that is one token

# Code and prose are reviewed before they are committed, and a program does not run without its code.
_PROSE = frozenset(
    (
        *("py", "pyi", "pyc", "ipynb", "md", "rst", "htm", "html", "css", "js", "jsx", "ts", "tsx", "go", "rs", "java"),
        *("c", "h", "cc", "cpp", "sh", "tf", "pub", "svg", "png", "lock"),
    )
)
# The names of these, most of a project's bytes, are not conclusive.
_DATA = frozenset(
    (
        *("bin", "npy", "npz", "pt", "pth", "ckpt", "safetensors", "h5", "hdf5", "keras", "onnx", "parquet", "arrow"),
        *("tfrecord", "pkl", "so", "zip", "gz", "zst", "tar", "whl", "jpg", "jpeg", "gif", "webp", "pdf", "wav", "mp3"),
    )
)
_COPIES = frozenset(
    ("bak", "backup", "orig", "old", "save", "sav", "prev", "copy", "tmp", "swp", "swo", "swn", "disabled")
)
_TEMPLATE = _shape(r"(^|[._-])(example|sample|template|tmpl|tpl|dist|defaults?|schema|j2|jinja2?)(\.|$)")
_SURE, _SETTINGS, _KEY, _MANIFEST = "sure", "settings", "key", "manifest"
_KEEPASS, _CERTIFICATE = "keepass", "certificate"
_CERTAIN = ("p12", "pfx", "p8", "ppk", "jks", "keystore", "kdbx", "keytab", "ovpn", "tfstate", "tfvars", "kubeconfig")
_BY_SUFFIX: Final[Mapping[str, str]] = {
    **dict.fromkeys(_CERTAIN, _SURE), "env": _SETTINGS, "key": _KEY, "kdb": _KEEPASS, "pem": _CERTIFICATE,
}  # fmt: skip
_BY_NAME: Final = _shape(
    r"(?P<sure>\.env(rc|[._-].*)?|\.dev\.vars|[._]netrc|\.?pgpass(\.conf)?|\.my\.cnf|\.mylogin\.cnf|\.pypirc"
    r"|\.git-credentials|\.ht(passwd|digest)|\.vault-token|\.boto|\.s3cfg|rclone\.conf|kaggle\.json|airflow\.cfg"
    # An editor hides its copy of a file: .id_rsa.swp
    r"|\.?(id_(rsa|dsa|ecdsa|ed25519)(_sk)?([._-].*)?|kubeconfig|client_secret.*\.json"
    r"|(application_default_)?credentials([._-].*)?\.(json|ya?ml|toml|ini|cfg|conf|txt|csv|xml|db)|credentials"
    r"|secrets?([._-].*)?\.(json|toml|ini|cfg|conf|env|txt|properties)))"
    r"|(?P<manifest>\.?secrets?([._-].*)?\.ya?ml)"
)
_SETTINGS_NAME: Final = _shape(r"(.+\.)?env\.[\w.-]+")  # prod.env.local, env.production
_ZIP = b"PK\x03\x04"
_KEEPASS_HEAD = b"\x03\xd9\xa2\x9a"
_PUBLIC_HEAD = _shape(rb"-----BEGIN (?:[A-Z0-9]+ )*(?:CERTIFICATE|PUBLIC KEY|X509 CRL|DH PARAM)")
_PRIVATE_HEAD = _shape(_PRIVATE_KEY.encode())
# On a line of its own, and no prose about keys: a part of one follows.
_PRIVATE_LINE = _shape(
    rb"(?m)^[ \t]*(?:-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----\s+[A-Za-z0-9+/]{4}"
    rb"|AGE-SECRET-KEY-1[A-Z0-9]{20,})"
)
_NAMES_A_KEY = _shape(rf"{_KEY_OF}|SECRET")
_SETTING = _shape(r"(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_][\w.-]*)[ \t]*=(.*)$")
_ENTRY = _shape(r"[\"']?([\w./-]+)[\"']?[ \t]*:(?:[ \t]+|$)(.*)")  # of YAML
_COMMENT = _shape(r"(?:^|[ \t])#")
_CONFIGURATIONS = frozenset({".npmrc", ".yarnrc", ".yarnrc.yml", "pip.conf", ".piprc", "uv.toml", ".condarc"})
_LOGIN_OF_A_TOOL = _shape(
    rb"(?im)^\s*(//\S*:)?_?(authToken|auth|password|npmAuthToken)\s*[=:]\s*[\"']?(?!\$\{)[^\s\"'$]{6,}"
)
_IN_JSON = _shape(
    r'"(private_key|refresh_token|client_secret|auth|identitytoken)"\s*:\s*"((?:[^"\\]|\\.)*)"'
    # Composer's, of one host: a token, or an account with the password behind its name
    r'|"(?:github-oauth|gitlab-oauth|gitlab-token|bitbucket-oauth|forgejo-token|bearer)"\s*:\s*\{'
    r'[^{}]*?:\s*(?:\{[^{}]*?(?:token|secret)"\s*:\s*)?"([^"]*)"'
    r'|"http-basic"\s*:\s*\{[^{}]*\{[^{}]*"password"\s*:\s*"([^"]*)"'
)
_MAY_BE_IN_JSON = _shape(
    rb'"(?:private_key|refresh_token|client_secret|auth|identitytoken|http-basic|bearer|[a-z]+-(?:oauth|token))"'
)
_ONE_WORD = _shape(r"[a-z]{1,12}")
_IN_KUBECONFIG = _shape(rb"(?m)^\s*(client-key-data|token|password|client-certificate-data)\s*:\s*\S{8,}")
_KIND = _shape(r"(?m)^kind:[ \t]*[\"']?(\w+)")
# Custom resources of Kubernetes that name a secret elsewhere, or hold one that only their cluster can read.
_REFERENCES = frozenset(
    (
        *("ExternalSecret", "ClusterExternalSecret", "SecretStore", "ClusterSecretStore", "SealedSecret"),
        "SecretProviderClass",
    )
)
_NAME_OF_ONE = _shape(r"(existing|from)?_?secret_?(name|ref)?", re.I)


def is_key_file(path: str, head: bytes, *, whole: bool) -> bool:
    """Return True if a file of a project looks like a key.

    Args:
        path: Path of the file.
        head: Its first bytes.
        whole: True if these are all.
    """
    suffix = path[path.rfind(".") + 1 :]
    if suffix in _PROSE:  # most files
        return False
    if suffix in _DATA:
        return _begins_with_key(head)
    name, suffix = _original(path)
    if suffix in _PROSE or _TEMPLATE.search(name):
        return False
    kind = _kind(path, name, suffix)
    if (kind and _CHECKS[kind](name, head, whole)) or _begins_with_key(head):
        return True
    return whole and len(head) <= HEAD and _holds_key(name, suffix, head)


def _begins_with_key(head: bytes) -> bool:
    if head.find(b"PRIVATE KEY", 0, _FIRST) >= 0 or head.find(b"AGE-SECRET", 0, _FIRST) >= 0:
        return bool(_PRIVATE_LINE.search(head[:_FIRST]))
    return head.startswith(b"PuTTY-User-Key-File")


def is_key_name(path: str) -> bool:
    """Return True if a file may be a key by its name alone."""
    name, suffix = _original(path)
    return suffix not in _PROSE and bool(_kind(path, name, suffix)) and not _TEMPLATE.search(name)


def _original(path: str) -> tuple[str, str]:
    """Return the name of a file, or of the one that it is a copy of, and its suffix, both in lower case."""
    name = path[path.rfind("/") + 1 :].lower()
    suffix = name[name.rfind(".") + 1 :]
    while suffix in _COPIES or name.endswith(("~", "#")) or (suffix.isdigit() and suffix != name):
        name = name.strip("~#") if name.endswith(("~", "#")) else name[: -len(suffix) - 1]
        suffix = name[name.rfind(".") + 1 :]
    return name, suffix


def _kind(path: str, name: str, suffix: str) -> str:
    """The kind of check for the contents of a file of that name, or "" for none."""
    if found := _BY_NAME.fullmatch(name):
        return str(found.lastgroup)
    if kind := _BY_SUFFIX.get(suffix):
        return kind
    if "env." in name and _SETTINGS_NAME.fullmatch(name):
        return _SETTINGS
    if ".tfstate." in name or path.endswith(".kube/config"):
        return _SURE
    return _SETTINGS if path.startswith(".envs/") or "/.envs/" in path else ""


def _is_settings(_: str, head: bytes, whole: bool) -> bool:
    """Return True if one of its variables looks like a secret; numbers and plain words are none."""
    text = _text(head).replace("\0", "\n")  # as an editor's copy has its lines
    settings = ((name, _value(rest)) for name, rest in _SETTING.findall(text))
    return bool(known_token(text)) or any(
        is_secret(name, value) and not _PLACEHOLDER.fullmatch(value) for name, value in settings
    )


def _is_key(name: str, head: bytes, whole: bool) -> bool:
    """Return True if it is binary, armoured, random, or called the key of something. Labels are none."""
    if _is_public(head, whole) or not head:
        return False
    if b"-----BEGIN " in head or b"\0" in head[:_FIRST] or _NAMES_A_KEY.search(_plain(name)):
        return True
    text = _text(head[:_FIRST])
    if "\ufffd" in text[:-1]:
        return True
    words = text.split()
    return len(words) <= 2 and any(known_token(word) or _is_random(word) for word in words)


def _is_public(head: bytes, whole: bool) -> bool:
    """Return True for certificates alone, and for a talk's slides, which are named like keys."""
    return head.startswith(_ZIP) or (whole and bool(_PUBLIC_HEAD.search(head)) and not _PRIVATE_HEAD.search(head))


def _is_manifest(_: str, head: bytes, whole: bool) -> bool:
    """Return True for a file of secrets, and not for one that only names them, or holds them encrypted."""
    text = _text(head)
    if not whole or len(head) > HEAD:
        return True
    if text.startswith("$ANSIBLE_VAULT;") or ("\nsops:" in f"\n{text}" and "ENC[AES256_GCM," in text):
        return False
    kinds = set(_KIND.findall(text))
    if kinds:
        return not kinds <= _REFERENCES
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", "---"))]
    return not (lines and all(map(_names_only, lines)))


def _names_only(line: str) -> bool:
    """Return True if a line of YAML contains only the source of a value."""
    item = line.strip()
    inner = item.removeprefix("-").lstrip()
    entry = _ENTRY.fullmatch(inner)
    if entry is None and inner == item:
        return False
    name, value = (entry[1], _value(entry[2])) if entry else ("", _value(inner))
    return not value or value.startswith("!") or bool(_PLACEHOLDER.fullmatch(value) or _NAME_OF_ONE.fullmatch(name))


def _value(text: str) -> str:
    """Return what stands behind a name, without quotes and comment."""
    text = text.strip()
    if text[:1] in ("'", '"') and (end := text.find(text[0], 1)) > 0:
        return text[1:end]
    return _COMMENT.split(text, maxsplit=1)[0].strip()


_CHECKS: Final[Mapping[str, Callable[[str, bytes, bool], bool]]] = {
    _SURE: lambda name, head, whole: True,
    _SETTINGS: _is_settings,
    _KEY: _is_key,
    _MANIFEST: _is_manifest,
    _KEEPASS: lambda name, head, whole: head.startswith(_KEEPASS_HEAD),
    _CERTIFICATE: lambda name, head, whole: not _is_public(head, whole),
}


def _holds_key(name: str, suffix: str, text: bytes) -> bool:
    if name in _CONFIGURATIONS:
        return bool(_LOGIN_OF_A_TOOL.search(text) or _LOGIN.search(_text(text)))
    if suffix == "json":
        return bool(_MAY_BE_IN_JSON.search(text)) and any(map(_is_login, _IN_JSON.finditer(_text(text))))
    bare = "." not in name.lstrip(".")
    if (bare or suffix in ("yaml", "yml", "conf")) and b"kind: Config" in text:
        return bool(_IN_KUBECONFIG.search(text))
    if (bare or suffix == "txt") and len(text) <= _FIRST and len(text.split(maxsplit=1)) == 1:
        return bool(known_token(_text(text)))
    return False


def _is_login(found: re.Match[str]) -> bool:
    name, value = found[1], next(text for text in found.groups()[1:] if text is not None)
    if name == "auth":  # Docker's: an account and its password
        return _is_basic(value)
    if not value or _PLACEHOLDER.fullmatch(value):
        return False
    if name == "private_key":
        return "PRIVATE KEY" in value or not re.search(r"\s", value)
    return not _ONE_WORD.fullmatch(value)


def _is_basic(value: str) -> bool:
    try:
        return b":" in base64.b64decode(value, validate=True)
    except ValueError:
        return False


def _text(head: bytes) -> str:
    return head[:HEAD].decode("utf-8", "replace")
