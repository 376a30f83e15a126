"""Made-up secrets in the forms in which they stand in logs, environments and command lines."""

from __future__ import annotations

import random
import string
from typing import NamedTuple

LETTERS = string.ascii_letters + string.digits
NAMES = (
    *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD"),
    *("UCX_PASSWORD", "NCCL_TOKEN", "DB_PASS", "MYSQL_PWD", "SESSION_COOKIE", "HTTP_AUTH"),
    *("SSH_PASSPHRASE", "GOOGLE_CREDENTIALS", "OPENAI_API_KEY", "AZURE_SAS_TOKEN", "JWT_SECRET"),
)
OPTIONS = ("token", "api-key", "password", "hf-token", "access_token", "client_secret", "api_key")


class Planted(NamedTuple):
    """A secret, and a text that it stands in; `name` is what must still be told after masking."""

    secret: str
    text: str
    name: str = ""


def word(dice: random.Random, length: int, letters: str = LETTERS) -> str:
    """Random characters, a digit and a capital among them."""
    return "".join(dice.choice(letters) for _ in range(length - 2)) + "7Q"


def shaped(dice: random.Random) -> str:
    """A secret that its shape tells."""
    name = LETTERS + "_"
    return dice.choice(
        (
            lambda: "hf_" + word(dice, 34),
            lambda: "sk-proj-" + word(dice, 40),
            lambda: "sk-" + word(dice, 32),
            lambda: dice.choice(("AKIA", "ASIA")) + word(dice, 16, string.ascii_uppercase),
            lambda: dice.choice(("ghp_", "gho_", "ghs_")) + word(dice, 36),
            lambda: "github_pat_" + word(dice, 60, name),
            lambda: "glpat-" + word(dice, 20),
            lambda: dice.choice(("xoxb-", "xoxp-")) + word(dice, 30),
            lambda: f"eyJ{word(dice, 20)}.eyJ{word(dice, 40)}.{word(dice, 30)}",
            lambda: "nvapi-" + word(dice, 60),
            lambda: (
                dice.choice(("r8_", "gsk_", "xai-", "pplx-", "rpa_", "tgp_v1_")) + word(dice, 36)
            ),
            lambda: "dapi" + word(dice, 32, "abcdef0123456789").lower().replace("q", "0"),
            lambda: dice.choice(("hvs.", "lin_api_", "GOCSPX-", "wandb_v1_")) + word(dice, 30),
            lambda: "AGE-SECRET-KEY-1" + word(dice, 50, string.ascii_uppercase),
        )
    )()


def planted(seed: int) -> Planted:
    """A secret in a text, for each number another."""
    dice = random.Random(seed)  # noqa: S311 (nothing here is secret)
    plain, name, option = word(dice, dice.randint(8, 40)), dice.choice(NAMES), dice.choice(OPTIONS)
    shape = shaped(dice)
    pem = "\n".join(word(dice, 64) for _ in range(4))
    forms = (
        Planted(plain, f"{name}={plain}", name),
        Planted(plain, f"export {name}='{plain}'", name),
        Planted(plain, f"+{name}={plain} and more", name),
        Planted(plain, f"rank0: {name}: {plain}", name),
        Planted(plain, f"environment: {{'{name}': '{plain}', 'RANK': '0'}}", name),
        Planted(plain, f'{{"{option}": "{plain}", "steps": 3}}', option),
        Planted(plain, f"python train.py --{option} {plain} --steps 3", option),
        Planted(plain, f"python train.py --{option}={plain} --steps 3", option),
        Planted(plain, f"Command '['train', '--{option}', '{plain}']' failed", option),
        Planted(plain, f"  {option}: {plain}", option),
        Planted(plain, f"https://user:{plain}@host.example/path", "user"),
        Planted(plain, f"GET https://host.example/x?{option}={plain}&n=3 401", option),
        Planted(plain, f"GET /x?X-Amz-Signature={plain}{plain}&n=3", "X-Amz-Signature"),
        Planted(plain, f"Authorization: Bearer {plain}", "Authorization: Bearer"),
        Planted(plain, f"'authorization': 'Basic {plain}'", "Basic"),
        Planted(plain, f"Cookie: session={plain}; other={plain}", "Cookie"),
        Planted(plain, f"x-api-key: {plain}", "x-api-key"),
        Planted(plain, f"sshpass -p {plain} ssh host", "sshpass"),
        Planted(plain, f"curl -u me:{plain} https://host", "curl"),
        Planted(plain, f"machine host login me password {plain}", "login me"),
        Planted(shape, f"could not use {shape} here"),
        Planted(shape, f"('{shape}',)"),
        Planted(pem, f"-----BEGIN PRIVATE KEY-----\n{pem}\n-----END PRIVATE KEY-----", "BEGIN"),
        Planted((key := word(dice, 40, "abcdef0123456789").lower().replace("q", "0")),
                f"wandb login {key}", "wandb login"),
        Planted(plain, f"os.environ['{name}'] = '{plain}'", name),
        Planted(plain, f"[('{name}', '{plain}'), ('RANK', '0')]", name),
        Planted(plain, f'environ.setdefault("{name}", "{plain}")', name),
        Planted(plain, f"setenv {name} {plain}", name),
        Planted(plain, f"ENV {name} {plain}", name),
        Planted(plain, f"| {name} | 1{plain} |", name),
        Planted(plain, f"{name} -> 1{plain}", name),
        Planted(plain, f"- name: {name}\n  value: {plain}", name),
        Planted(plain, f"{{'name': '{name}', 'value': '{plain}'}}", name),
        Planted(plain, f'<add key="{name}" value="{plain}"/>', name),
        Planted(plain, f"<password>{plain}</password>", "password"),
        Planted(plain, f"{option}: |\n  {plain}", option),
        Planted(plain, f'"{option}" :\n        "{plain}"', option),
        Planted(plain, f"{option}=SecretStr('{plain}')", option),
        Planted(plain, f"{option}=b'{plain}'", option),
        Planted(plain, f"db_pw={plain}", "db_pw"),
        Planted(plain, f'{{"auths": {{"reg.example": {{"auth": "{plain}=="}}}}}}', "reg.example"),
        Planted(plain, f"{{'username': 'me', 'key': '{plain}'}}", "username"),
        Planted((call := word(dice, 20)), f"HfFolder.save_token('{call}')", "save_token"),
        Planted((call := word(dice, 20)), f"wandb.login(key='{call}')", "wandb.login"),
        Planted((said := "1a" + word(dice, 20)), f"Incorrect API key provided: {said}.", "API key"),
        Planted((said := "1a" + word(dice, 20)), f"with password '{said}' rejected", "password"),
        Planted(plain, f"mysql -u root -p{plain} db", "mysql -u root"),
        Planted(plain, f"docker login -u me -p {plain}", "docker login"),
        Planted(plain, f"echo {plain} | docker login --password-stdin", "echo"),
        Planted(plain, f"https://hooks.slack.com/services/T0/B0/{plain}", "hooks.slack.com"),
        Planted(plain, f"https://api.telegram.org/bot1:{plain}/sendMessage", "api.telegram.org"),
        Planted(plain, f"https://discord.com/api/webhooks/12/{plain}", "discord.com"),
    )  # fmt: skip
    return forms[seed % len(forms)]


# What a diagnosis lives on; every one of these stays as it is.
HARMLESS = (
    "step 7 loss 2.31 tokens=2048 tokens/s 5123 tokens_per_second=5123",
    "pad_token='<pad>' eos_token=</s> bos_token_id=1 pad_token_id: 0 unk_token=<unk>",
    "tokenizer: /data/llama/tokenizer.json tokenizer_name=meta-llama/Llama-2-7b-hf",
    "--seq-length 4096 --tokenizer-type HuggingFaceTokenizer --tokenizer-model /m --num-tokens 3",
    "--max-position-embeddings 4096 --micro-batch-size 1 --kv-channels 128 --distribute-saved",
    "sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "commit 0123456789abcdef0123456789abcdef01234567 of the run",
    "NCCL_IB_HCA=mlx5_0 NCCL_SOCKET_IFNAME=eth0 NCCL_DEBUG=INFO NCCL_IB_GID_INDEX=3",
    "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
    "Missing key(s) in state_dict: 'lm_head.weight'. Unexpected key(s): 'score.weight'",
    "num_key_value_heads=8 key_value=3 query_key_value.weight cache_key: 12ab",
    "RuntimeError: NCCL error: unhandled system error, NCCL version 2.21.5",
    "forward pass: 3.1 ms, backward pass: 6.2 ms, passes=3, bypass=true",
    "token id 32000 is out of range 0 to 31999",
    "Token indices sequence length is longer than the maximum (5000 > 4096)",
    "unexpected token: expected a comma at line 3",
    "author: somebody, authority=none, authors=[]",
    "function signature: forward(self, input_ids)",
    "max_tokens=5 total_tokens: 5000000 tokens: 2b n_tokens=7 valid_tokens=3",
    "hf_config=hf_transformers hf_hub_download hf_model_path=/models/x",
    "ssh://git@github.com/a/b.git http://10.0.0.1:29500/x socket://[::1]:29500",
    "10.0.0.1 slots=8 root@10.0.0.2 slots=8",
    "/opt/conda/lib/python3.11/site-packages/torch/_secrets_of_the_trade.py:3",
    "WANDB_MODE=offline TOKENIZERS_PARALLELISM=false HF_HOME=/data/hf PWD=/root/run",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "zero_optimization.stage3_param_persistence_threshold=100000",
    "HF_TOKEN=(set)",
    "'HF_TOKEN' is not set; HF_TOKEN may open it",
    "password is required",
    "moe_token_dispatcher_type=alltoall --moe-token-drop-policy probs",
    "embed_tokens.weight model.embed_tokens: 32000 x 4096",
    "['HF_TOKEN', 'WANDB_API_KEY'] are not set; ('MASTER_PORT', '29500')",
    "| HF_TOKEN | required | name: HF_TOKEN value: (set)",
    "name: zero_stage value: 3, key: lr value: 0.001, name: tokenizer value: llama-2",
    "unknown token Qwen2TokenizerFast, secret sauce, password for the host is asked",
    "login('me') key: value: </s> <pad>12</pad>",
    "loading /bot/data and /webhooks/ of https://example.org/api",
    "add_special_tokens=False special_tokens_map.json use_auth_token=True",
)
