"""A table tells what looks like a secret from what does not. Tokens are put together here, and are nobody's."""

from __future__ import annotations

import base64
import hashlib
import random
import string
import zlib

import pytest

from kinetic_orchestration.plan.declare.checks.secret_shapes import (
    is_key_file,
    is_secret,
    is_secret_argument,
    is_secret_name,
    kind_of_secret,
)

pytestmark = pytest.mark.fast

_LETTERS = string.ascii_letters + string.digits


def drawn(count: int, letters: str = _LETTERS, seed: int = 7) -> str:
    return "".join(random.Random(seed).choices(letters, k=count))


HEX = "0123456789abcdef"
PEM = "-----BEGIN " + "{}PRIVATE KEY-----\nMIIE\n"

SECRET = {
    # by name
    "HF_TOKEN": "secret", "WANDB_API_KEY": drawn(40, HEX), "DB_PASSWORD": "hunter2", "MYSQL_PWD": "hunter2",
    "PGPASSWORD": "x1y2", "GH_PAT": "abc", "SENTRY_DSN": "https://o1.ingest.sentry.io/1", "SLACK_WEBHOOK": "https://x.y",
    "SLACK_WEBHOOK_URL": "https://x.y/z", "AIRFLOW_CONN_MY_DB": "mysql://db", "AIRFLOW__CORE__FERNET_KEY": "abc",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "mysql://db", "SMTP_PASS": "x", "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_ACCESS_KEY_ID": "AKIA", "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json", "apiKey": "abc",
    "GPG_PASSPHRASE": "x", "AZURE_STORAGE_CONNECTION_STRING": "x", "SESSION_COOKIE": "x", "REDIS_AUTH": "x",
    "STRIPE_KEY": "x", "LICENSE_KEY": "x", "AZURE_DEVOPS_EXT_PAT": "x", "JWT": "x", "client-secret": "x",
    # by value
    "DB_URL": "postgresql://app:hunter2@db.internal:5432/app",
    "BROKER": "redis://:hunter2@redis:6379/0",
    "AIRFLOW_VAR_X": '{"conn_type": "mysql", "password": "hunter2"}',
    "PIP_INDEX_URL": "https://user:pa55word@pypi.example/simple",
    "PIP_EXTRA": f"https://{drawn(24)}@pypi.example/simple",
    "ERRORS_TO": f"https://{drawn(32, HEX)}@o1.ingest.example.io/2",
    "NOTIFY": "https://hooks.slack" + f".com/services/T0/B0/{drawn(24)}",
    "SIGNED": "https://storage.example.com/o?X-Goog-Signature=" + drawn(60, HEX),
    "ODBC": "Driver={x};Server=y;Uid=me;Pwd=hunter2;", "STORAGE": f"AccountName=x;AccountKey={drawn(64)}==;",
    "LIBPQ": "host=db user=me password=hunter2", "HEADER": "Bearer " + drawn(30),
    "A": "gh" + "p_" + drawn(36), "B": "github_pat_" + drawn(60), "C": "xox" + "b-" + drawn(30),
    "D": "AK" + "IA" + drawn(16, string.ascii_uppercase), "E": "AI" + "za" + drawn(35), "F": "sk_" + "live_" + drawn(24),
    "G": "sk-" + "proj-" + drawn(40), "H": "sk-" + "ant-api03-" + drawn(40), "I": "hf" + "_" + drawn(34),
    "J": "ey" + "J" + drawn(20) + ".ey" + "J" + drawn(20) + "." + drawn(20), "K": PEM.format("RSA "),
    "L": PEM.format("OPENSSH "), "M": "glpat-" + drawn(20), "N": "SG." + drawn(22) + "." + drawn(43),
    "O": "npm_" + drawn(36), "P": "pypi-AgE" + drawn(60), "Q": "ya29." + drawn(60),
    # drawn at random
    "SETTING": drawn(40), "EXTRA": base64.urlsafe_b64encode(random.Random(1).randbytes(32)).decode(),
    "FOO": base64.b64encode(random.Random(2).randbytes(48)).decode(), "BAR": drawn(40, HEX),
}  # fmt: skip

OPEN = {
    "PATH": "/usr/local/bin:/usr/bin:/home/me/.local/share/aB3dE5gH7jK9mN1pQ3/bin", "HF_HOME": "/models",
    "PWD": "/home/me/project", "OLDPWD": "/home/me", "XDG_SESSION_ID": "7", "SSH_AUTH_SOCK": "/tmp/ssh-XXabc/agent.7",
    "GIT_SHA": hashlib.sha1(b"x").hexdigest(), "GIT_COMMIT": drawn(40, HEX), "BUILD_ID": drawn(32),
    "IMAGE_DIGEST": "sha256:" + drawn(64, HEX), "CACHE_HASH": drawn(64, HEX), "RUN_ID": drawn(24),
    "INVOCATION_ID": drawn(32, HEX), "TRACEPARENT": f"00-{drawn(32, HEX)}-{drawn(16, HEX)}-01",
    "ANYTHING": "123e4567-e89b-12d3-a456-426614174000", "VERTEX_UUID": "123e4567e89b12d3a456426614174000",
    "TOKENIZERS_PARALLELISM": "false", "TOKENIZER": "bert-base-uncased", "MAX_TOKENS": "4096", "NUM_KEYS": "12",
    "KEYBOARD": "us", "KEYMAP": "de", "SSH_PUBLIC_KEY": "ssh-ed25519 AAAA me@host", "MONKEY": "see",
    "DB_PASSWORD_FILE": "/run/secrets/db", "SSL_KEY_PATH": "/etc/ssl/my.key", "USE_TOKEN": "true", "EMPTY_SECRET": "",
    "DB_URL": "postgresql://db.internal:5432/app", "REPO": "https://github.com/keras-team/keras.git",
    "REMOTE": "git@github.com:keras-team/keras.git", "MAIL": "someone@example.com", "SQLITE": "sqlite:////tmp/x.db",
    "TEMPLATE": "postgresql://user:${PASSWORD}@db/app", "DOC": "mysql://user:<password>@host/db",
    "MODEL": "Qwen2.5-7B-Instruct-GPTQ-Int4", "CHECKPOINT": "gs://bucket/runs/2026-11-23T18-09-37Z/step_000120",
    "HARDWARE": "v5litepod-16", "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_dump_to=/tmp/x",
    "NAMES": "projects/my-project-123456/locations/us-central1/repositories/Images", "LANG": "de_DE.UTF-8",
    "WHEN": "2026-11-23T18:09:37.123456+00:00", "PROMPT": "Answer with the keyword password only.",
    "VERSION": "1.2.3.dev4+g1a2b3c4d5", "KERAS_BACKEND": "jax", "WANDB_MODE": "offline", "LEARNING_RATE": "0.00031415926",
    "LS_COLORS": "rs=0:di=01;34:ln=01;36:mh=00:pi=40;33:so=01;35:do=01;35", "CONDA_EXE": "/opt/conda/bin/conda",
    "CLASS": "MultiHeadAttentionLayerV2Wrapper", "CAMEL": "KineticOrchestrationDeviceMetricsRecorder2026",
    "POD": "train-7d9f8b6c5-x2x9z", "SEED": "1234567890123456789012345678901234567890", "ZEROS": "0" * 64,
    "EOS_TOKEN": "</s>", "PAD_TOKEN": "[PAD]", "SPECIAL_TOKENS": "<a>,<b>", "TOKENS_PER_BATCH": "4k",
    "PARTITION_KEY": "2024-01-01", "DATASET_KEY": "train", "PRIMARY_KEY": "user", "MY_SECRETARY": "anna",
    "PASSENGERS": "12", "COMPASS": "north", "PATTERN": "*.py", "AUTHOR": "me", "OAUTH_CLIENT_ID": "123-abc.apps.example",
    "DAGSTER_PIPES_MESSAGES": drawn(60), "PACKED": base64.b64encode(zlib.compress(drawn(60).encode())).decode(),
    "SLUG": "a-rather-long-name-of-an-experiment-with-2-parts", "JSON": '{"lr": 0.001, "layers": [64, 64]}',
}  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_a_secret_is_seen(name: str) -> None:
    assert is_secret(name, SECRET[name])


@pytest.mark.parametrize("name", OPEN)
def test_what_is_none_is_left_alone(name: str) -> None:
    assert not is_secret(name, OPEN[name]), kind_of_secret(OPEN[name], name)


def test_random_texts_are_seen_and_digests_under_their_name_are_not() -> None:
    seen = [is_secret("SETTING", drawn(32, seed=seed)) for seed in range(200)]
    assert sum(seen) >= 190  # a draw may look like words
    assert not any(is_secret("GIT_SHA", drawn(40, HEX, seed)) for seed in range(200))


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("password", "correct-horse", True), ("api_key", "0123456789", True), ("hf_token", drawn(20), True),
        ("token", "<pad>", False), ("key", "user_id", False), ("tokens", "a b c", False), ("password", "", False),
        ("url", "postgresql://me:hunter2@db/x", True), ("anything", "hf" + "_" + drawn(34), True),
        ("sha", drawn(40, HEX), False), ("dataset", "imdb", False), ("secret_file", "/run/secrets/x", False),
        ("prompt", "What is the password of the guard?", False), ("", drawn(40), True),
    ],
)  # fmt: skip
def test_of_an_argument_the_name_says_less(name: str, value: str, secret: bool) -> None:
    assert is_secret_argument(name, value) is secret


def test_names() -> None:
    assert is_secret_name("db_password") and is_secret_name("clientSecret") and not is_secret_name("tokenizer")


SERVICE_ACCOUNT = '{"type": "service_account", "private_key": "' + PEM.format("").strip() + '"}'
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
KUBECONFIG = "apiVersion: v1\nkind: Config\nusers:\n- user:\n    client-key-data: LS0tLS1CRUdJTg==\n"

KEYS = {
    ".env": "A=1", ".env.local": "A=1", "prod/.env.production": "A=1", ".envrc": "export A=1",
    "prod.env": "DB_PASSWORD=hunter2",
    "id_rsa": "x", "keys/id_ed25519": "x", "id_rsa_github": "x", "deploy": PEM.format("OPENSSH "),
    "notes.txt": PEM.format("RSA "), "tls.pem": "x", "tls.key": PEM.format("EC "), "chain.pem": CERTIFICATE + PEM.format(""),
    "a.p12": "x", "a.pfx": "x", "a.jks": "x", "a.keystore": "x", "a.kdbx": "x", "my.keytab": "x", "vpn.ovpn": "x",
    "sa.json": SERVICE_ACCOUNT, "adc.json": '{"client_secret": "x", "refresh_token": "1//0x"}', ".netrc": "x",
    "_netrc": "x", ".pypirc": "x", ".npmrc": "//registry.npmjs.org/:_authToken=abcdefghij", ".git-credentials": "x",
    "pip.conf": "[global]\nindex-url = https://me:hunter2@pypi.example/simple\n", ".aws/credentials": "x",
    ".kube/config": "x", "kubeconfig": "x", "cluster.yaml": KUBECONFIG, ".htpasswd": "x", "secrets.toml": "x",
    ".streamlit/secrets.toml": "x", "secret.yaml": "x", "secrets.prod.json": "x", "terraform.tfstate": "{}",
    "terraform.tfstate.backup": "{}", "prod.tfvars": "x", "credentials.json": "x", "credentials-prod.json": "x",
    "application_default_credentials.json": "x", "client_secret_1.json": "x", "kaggle.json": "x", ".pgpass": "x",
    ".docker/config.json": '{"auths": {"x": {"auth": "bWU6aHVudGVyMg=="}}}', "token": "hf" + "_" + drawn(34),
    "token.txt": "gh" + "p_" + drawn(36) + "\n", "airflow.cfg": "x", ".vault-token": "x",
    # files of variables by what is in them, and copies of keys
    "prod.env.local": "DB_PASSWORD=hunter2", "env.production": "export HF_TOKEN='x1y2'", "db.env": "URL=" + SECRET["DB_URL"],
    ".envs/prod": "A=1\nSMTP_PASS=x1y2\n", ".envs/.production/.django": f"A={drawn(40)}", "a/.envs/.local/.db": "DB_PW=x1y2",
    ".env~": "A=1", ".env.bak": "A=1", "#.env#": "A=1", ".env.swp": "b0VIM", ".env.old.1": "A=1", "id_rsa.bak": "x",
    ".id_rsa.swp": "b0VIM", "id_ed25519~": "x", "secrets.toml.orig": "x", "kubeconfig.old": "x", "sa.json.bak": SERVICE_ACCOUNT,
    "prod.env.bak": "DB_PASSWORD=hunter2", ".prod.env.swp": "b0VIM\0\0DB_PASSWORD=hunter2\0", ".NPMRC.save": "_authToken=abcdefghij",
    # behind comments
    "deploy.pem.txt": "# of the old cluster\n# until March\n\n" + PEM.format("RSA "), "gateway.crt": CERTIFICATE + PEM.format(""),
    "age.txt": "# created: 2026-11-23\n# public key: age1x\nAGE-SECRET" + "-KEY-1" + drawn(58, string.ascii_uppercase),
    "bag": "Bag Attributes\n    localKeyID: 01\n" + PEM.format(""), "tls.yaml": "tls:\n  key: |\n    " + PEM.format("EC "),
    "login.ppk.txt": "PuTTY-User-Key-File-3: ssh-ed25519\n",
    # Composer
    "auth.json": '{"http-basic": {"repo.example.org": {"username": "me", "password": "hunter2"}}}',
    "config/auth.json": '{"github-oauth": {"github.com": "' + drawn(40, HEX) + '"}}',
    "composer.json": '{"config": {"gitlab-token": {"git.example": {"username": "me", "token": "' + drawn(20) + '"}}}}',
    "home/auth.json": '{"bearer": {"repo.example.org": "' + drawn(20) + '"}}',
    # of a name that says little
    "fernet.bin.key": drawn(43) + "=", "rails.key": drawn(32, HEX), "der.key": "\x30\x82\0\x01", "master.key": "hunter2",
    "ta.key": "-----BEGIN OpenVPN Static key V1-----\n", "passwords.kdb": b"\x03\xd9\xa2\x9a\x65\xfb".decode("latin-1"),
    "secrets.yaml": "db:\n  password: hunter2\n", "secrets.yml": "apiVersion: v1\nkind: Secret\ndata:\n  a: aHVudGVyMg==\n",
    "secrets.prod.yaml": "kind: ExternalSecret\n---\nkind: Secret\ndata:\n  a: aHVudGVyMg==\n", "secrets-2.yaml": "- hunter2",
}  # fmt: skip

NO_KEYS = {
    ".env.example": "A=", ".env.template": "A=", ".env.sample": "A=", "secrets.example.toml": "x", "environment.py": "x",
    "id_rsa.pub": "x", "tokens.py": "x", "credentials.py": "x", "test_credentials.py": "x", "docs/credentials.md": "x",
    "cacert.pem": CERTIFICATE, "public.pem": "-----BEGIN PUBLIC KEY-----\nMIIB\n", "slides.key": "PK\x03\x04x",
    "settings.json": '{"lr": 1}', ".npmrc": "save-exact=true\n", "pip.conf": "[global]\nindex-url = https://pypi.example\n",
    "test_keys.py": f'KEY = """{PEM.format("")}"""', "notes.txt": "how to make a key", "values.yaml": "kind: Deployment\n",
    "kernel.json": '{"argv": []}', "vocabulary.txt": "hf\ntoken\n", "keys.py": PEM.format("RSA "), "tokenizer.json": "{}",
    "secrets.py": "x", "id_rsa_test.py": "x", ".envs/readme": "x", "main.tf": "x", "config": "x", "keyboard.txt": "x",
    "secretary.csv": "x", "credentials_test.ipynb": "x",
    "settings.py.bak": PEM.format("RSA "), ".env.example.bak": "A=", "notes~": "x", "model.1": "x", ".env.sample~": "A=",
    # JSON of another kind, and placeholders
    "api.json": '{"auth": "required", "method": "password"}', "basic.json": '{"auth": "basic-login-form"}',
    "oauth.json": '{"client_secret": "dummy"}', "oauth.prod.json": '{"client_secret": "${CLIENT_SECRET}"}',
    "oauth.dev.json": '{"client_secret": "changeme", "refresh_token": "<yours>"}', "form.json": '{"client_secret": "string"}',
    "auth.json": '{"http-basic": {}, "github-oauth": {}}', "sa.json": '{"private_key": "(of the account)"}',
    "composer.json": '{"config": {"github-oauth": {"github.com": "%env(GITHUB)%"}}}'.replace("%env(GITHUB)%", "${GITHUB}"),
    # numbers and words
    "hparams.env": "EPOCHS=10\nLR=3e-4\nOPTIMIZER=adamw  # with decay\nNAME=run_7\nMAX_TOKENS=4096\n",
    "configs/train.env": "# of one run\nexport SEED=1\nMODEL='resnet50'\nDATA=gs://bucket/imdb\nTOKENIZER=bert\n",
    "template.env": "DB_PASSWORD=", "dev.env": "DB_PASSWORD=${DB_PASSWORD}\nAPI_KEY=changeme\nHF_TOKEN=  # yours\n",
    "env.yaml": "name: train\ndependencies:\n- numpy=1.26\n", "env.local": "EPOCHS=3", ".envs/.local/.train": "EPOCHS=3",
    "answers.key": "1,B\n2,D\n3,A\n", "labels.key": "cat\ndog\n", "quiz.key": "A B C D A A B\n", "one.key": "BDCAABDC\n",
    "tokens.kdb": "\x01\0 a table", "how.txt": "Write -----BEGIN PRIVATE KEY-----, and then it.\n",
    "format.txt": "A file is:\n-----BEGIN RSA PRIVATE KEY-----\n...\n-----END RSA PRIVATE KEY-----\n",
    "secrets.yaml": "apiVersion: external-secrets.io/v1\nkind: ExternalSecret\nspec:\n  data:\n  - remoteRef:\n      key: db\n",
    "k8s/secrets.yaml": "kind: SealedSecret\nspec:\n  encryptedData:\n    password: AgBy3i4OJSWK+PiTySYZZA9rO43cGDEq\n",
    "secrets.enc.yaml": "password: ENC[AES256_GCM,data:x,type:str]\nsops:\n  mac: ENC[AES256_GCM,data:y]\n",
    "secrets.prod.yml": "# by name\ndb:\n  password: ${DB_PASSWORD}\n  token: 'op://vault/db/token'\n- !vault db\nexistingSecret: db-login\n",
    "group_vars/secrets.yml": "$ANSIBLE_VAULT;1.1;AES256\n3132\n",
}  # fmt: skip


@pytest.mark.parametrize("path", KEYS)
def test_a_file_that_looks_like_a_key_is_seen(path: str) -> None:
    assert is_key_file(path, KEYS[path].encode("latin-1"), whole=True)


@pytest.mark.parametrize("path", NO_KEYS)
def test_a_file_that_is_none_is_left_alone(path: str) -> None:
    assert not is_key_file(path, NO_KEYS[path].encode(), whole=True)
