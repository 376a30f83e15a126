"""Twenty secrets in the environment, logs, configs and hostfiles; every output of every command."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from secret_forms import NAMES, planted, shaped, word

from dsforge.cli.main import main

DICE = random.Random(20)  # noqa: S311 (nothing here is secret)
TRAVEL = ("NCCL_TOKEN", "PYTHON_API_KEY", "MLFLOW_TRACKING_PASSWORD", "UCX_PASSWORD", "MV2_SECRET")
SECRETS = {name: word(DICE, 24) for name in (*NAMES, *TRAVEL)}
SHAPES = [shaped(DICE) for _ in range(20)]
FORMS = [planted(seed) for seed in range(24)]
ALL = {*SECRETS.values(), *SHAPES, *(form.secret.split("\n")[0] for form in FORMS)}
GEN = ("--model", "llama-2-7b", "--gpu", "a100-80gb", "--nodes", "2", "--gpus-per-node", "8")
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder whose files hold secrets, a log full of them, and configs."""
    base = tmp_path_factory.mktemp("secrets")
    with pytest.raises(SystemExit):
        main(["gen", *GEN, "--out", str(base / "run")])
    lines = [f"{name}={value}" for name, value in SECRETS.items()]
    (base / "run" / ".deepspeed_env").write_text("\n".join([*lines, *SHAPES, ""]))
    texts = [form.text for form in FORMS]
    errors = [f"RuntimeError: cannot log in with {text}" for text in (*texts, *SHAPES)]
    tail = [f"{MEMORY} {text}" for text in texts]
    for number, line in enumerate((*errors, *tail)):
        trace = "Traceback (most recent call last):\n"
        (base / f"{number}.log").write_text(f"{trace}{line}\n")
    config: dict[str, object] = {"train_batch_size": SHAPES[0], "zero_optimization": {"stage": 9}}
    config |= {"api_key": SECRETS["HF_TOKEN"], f"fp16{SHAPES[1]}": {"enabled": SHAPES[2]}}
    config |= {"optimizer": {"type": SHAPES[3], "params": {"token": SECRETS["DB_PASS"]}}}
    (base / "ds_config.json").write_text(json.dumps(config))
    (base / "hostfile").write_text("\n".join(texts))
    (base / "cluster.yaml").write_text(f"gpu: {SHAPES[4]}\nname: {SHAPES[5]}\n{SHAPES[6]}: 1\n")
    (base / "workload.yaml").write_text(f"password: {SHAPES[7]}\nprecision: '{texts[0]}'\n")
    (base / "deepspeed_env").write_text("\n".join([*lines, *texts]))
    return base


COMMANDS = (
    ("preflight", "run", "--local", "--no-bandwidth"),
    ("preflight", "run", "--local", "--no-bandwidth", "--json"),
    ("preflight", "run", "--no-bandwidth", "--json", "--hostfile", "two"),
    ("diagnose", "."),
    ("diagnose", ".", "--json"),
    ("diagnose", "ALL.log", "--json"),
    *(("lint", ".", "--format", shape) for shape in ("text", "json", "sarif", "github")),
    ("lint", "deepspeed_env", "--kind", "env", "--fix"),
    ("gen", *GEN, "--out", "run"),
    ("gen", *GEN, "--out", "run", "--json"),
    ("gen", *GEN, "--out", "other", "--hostfile", "hostfile"),
    ("plan", *GEN, "--cluster", "cluster.yaml", "--workload", "workload.yaml"),
    ("plan", "--model", SHAPES[8], "--gpu", "a100-80gb"),
    ("estimate", *GEN, "--token", SHAPES[9], "--nodes", SHAPES[10]),
    ("estimate", *GEN, "--precision", SHAPES[11]),
    ("detect", "--json"),
    ("detect",),
    ("explain", f"run/{SHAPES[12]}"),
    ("validate", "hostfile"),
    ("gen", *GEN, "--out", "run", "--force"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_output_holds_a_secret(
    folder: Path,
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither stdout nor stderr, whatever the exit code; the same for the files it writes."""
    monkeypatch.chdir(folder)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    (folder / "two").write_text("localhost slots=1\n")
    with (folder / "ALL.log").open("w") as stream:
        stream.writelines(path.read_text() for path in sorted(folder.glob("[0-9]*.log")))

    with pytest.raises(SystemExit):
        main([*command])

    out, err = capsys.readouterr()
    assert [secret for secret in ALL if secret in out + err] == []
    assert out + err


def test_what_is_masked_can_still_be_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of a variable that travels stands in the document, its value does not."""
    monkeypatch.chdir(folder)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(SystemExit):
        main(["preflight", "run", "--local", "--no-bandwidth", "--json"])

    exported = json.loads(capsys.readouterr().out)["exported"]
    assert exported["UCX_PASSWORD"] == exported["NCCL_TOKEN"] == "(set)"
