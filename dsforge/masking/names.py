"""Names: which variables, options, keys and headers hold a secret."""

from __future__ import annotations

import re
from functools import lru_cache

SET = "(set)"  # what stands for a secret
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS = frozenset(
    (
        *(
            "secret",
            "secrets",
            "password",
            "passwords",
            "passwd",
            "passphrase",
            "passcode",
            "pwd",
            "pw",
        ),
        *("credential", "credentials", "cred", "creds", "cookie", "cookies", "apikey", "accesskey"),
        *("privatekey", "secretkey", "authkey", "authtoken", "accesstoken", "apitoken", "sas"),
        *("authorization", "bearer", "jwt", "userpass", "sshpass", "dbpassword", "pgpassword"),
    )
)
_RUN_TOGETHER = re.compile(r"(?:password|passwd|passphrase|secret|credentials?)$")
_KEYS = frozenset(
    (
        *("api", "access", "private", "secret", "account", "storage", "encryption", "signing"),
        *("auth", "ssh", "service", "shared", "master", "license", "subscription", "deploy"),
        *("wandb", "openai", "anthropic", "azure", "aws", "gcp", "ngc", "comet", "neptune", "hmac"),
    )
)
# Words beside `token` that make it a piece of text: `pad_token`, `tokens_per_second`, `token_id`.
_OF_TEXT = frozenset(
    (
        *("pad", "eos", "bos", "unk", "sep", "cls", "mask", "special", "image", "video", "audio"),
        *("per", "max", "min", "num", "number", "n", "total", "avg", "mean", "last", "first"),
        *("next", "start", "end", "stop", "new", "input", "output", "prompt", "completion"),
        *("generated", "valid", "train", "trained", "seen", "target", "loss", "ignored", "vocab"),
        *("id", "ids", "count", "counts", "length", "len", "type", "index", "embedding", "step"),
        *("embeddings", "size", "limit", "budget", "rate", "throughput", "dropped", "capacity"),
        *("dispatcher", "drop", "routing", "moe", "position", "positions", "classification"),
    )
)


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether a variable, option, key or header of that name holds a secret."""
    if name in ("PWD", "OLDPWD"):
        return False  # where a shell stands
    words = [word.lower() for word in WORD.findall(name)]
    if any(word in _SECRET_WORDS or _RUN_TOGETHER.search(word) for word in words):
        return not {"file", "path", "dir", "stdin"} & set(words[-1:]) or "secret" in words
    if "token" in words or (words[-1:] == ["tokens"] and name.isupper()):
        return not _OF_TEXT & set(words)
    if words[-1:] in (["key"], ["keys"]):
        return name.isupper() or bool(_KEYS & set(words[:-1]))
    if "key" in words:
        before = words[: words.index("key")]
        return words[-1] == "id" and bool({"access", "api", "secret"} & set(before))
    named = set(words) & {"pass", "auth"}
    return bool(named) and words[-1] in ("pass", "auth") and (len(words) > 1 or name.isupper())
