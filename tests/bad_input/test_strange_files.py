"""Every reader of a file from outside, given every strange thing: a message, within seconds."""

from __future__ import annotations

import json
import random
import resource
import time
from itertools import product
from pathlib import Path

import plans
import pytest
from strange_files import STRANGE, mangled

from dsforge.cli.main import main

SECONDS = 10
BYTES = 1 << 30
CODES = (0, 1, 2, 3)
MODEL = ("--model", "llama-2-7b")
GEN = (*MODEL, "--gpu", "a100-80gb")
READERS: dict[str, tuple[str, ...]] = {
    "hostfile": ("plan", *GEN, "--hostfile", "FILE"),
    "cluster.yaml": ("plan", *MODEL, "--cluster", "FILE"),
    "workload.yaml": ("plan", *GEN, "--workload", "FILE"),
    "spec.yaml": ("plan", "--spec", "FILE"),
    "config.json": ("plan", "--gpu", "a100-80gb", "--model", "./FILE"),
    "data.jsonl": ("plan", *GEN, "--workload", "epochs.yaml", "--data", "FILE"),
    "ds_config.json": ("estimate", *GEN, "--ds-config", "FILE"),
    "plan.json": ("explain", "FILE"),
    "table.csv": ("validate", "FILE"),
    "log.txt": ("diagnose", "FILE"),
    "plan2.json": ("diagnose", "good.log", "--plan", "FILE"),
    "ds_config.yaml": ("lint", "FILE"),
    "lint.json": ("lint", "FILE", "--kind", "ds_config", "--fix"),
    "args.txt": ("lint", "FILE", "--kind", "megatron"),
    ".deepspeed_env": ("lint", "FILE", "--kind", "env"),
    "train.yaml": ("lint", "FILE", "--kind", "train"),
    "accelerate.yaml": ("lint", "FILE", "--kind", "accelerate"),
    "lint-cluster.yaml": ("lint", "good.json", "--cluster", "FILE"),
}
CASES = [*product(READERS, STRANGE)]
QUICK = {*random.Random(7).sample(CASES, 60), ("spec.yaml", "merge in a mapping")}  # noqa: S311
DEAR = {("hostfile", "pipe"), ("cluster.yaml", "many keys"), ("lint.json", "folder")}
GOOD = {
    "cluster.yaml": b"nodes: 2\ngpus_per_node: 8\ngpu: a100-80gb\ninter_node: 100gbe\n",
    "workload.yaml": b"sequence_length: 2048\nglobal_batch_size: 64\nlora: {rank: 8, alpha: 16}\n",
    "spec.yaml": b"model: 7b\ncluster: {gpu: a100-80gb, nodes: 1}\nstrategy: {zero_stage: 3}\n",
    "hostfile": b"10.0.0.1 slots=8\n10.0.0.2 slots=8\n",
    "plan.json": b"",
    "ds_config.json": b'{"train_batch_size": 8, "bf16": {"enabled": true}, '
    b'"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}',
    "lint.json": b'{"train_batch_size": 8, "fp16": {"enabled": True,}, // x\n "zero": 1}',
    "log.txt": b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0)\n",
}


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with good files beside the strange one, and little memory to take."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "epochs.yaml").write_text("epochs: 2\n")
    (tmp_path / "good.log").write_text("RuntimeError: x\n")
    (tmp_path / "good.json").write_text('{"train_batch_size": 8}')


def answered(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says. Fails where it takes long, grows, or ends in anything but an exit."""
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SystemExit) as caught:
        main([*arguments])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    out, err = capsys.readouterr()
    assert caught.value.code in (None, *CODES)
    assert time.monotonic() - begin < SECONDS
    assert grown << 10 < BYTES
    assert "Traceback" not in err
    assert "\x1b" not in out + err
    return out + err


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("name", "strange"),
    [c if c in QUICK | DEAR else pytest.param(*c, marks=pytest.mark.slow) for c in CASES],
)
def test_a_strange_file_is_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, strange: str
) -> None:
    """No traceback, no wait, no gigabyte, nothing run, the file as it was."""
    STRANGE[strange](tmp_path / name)

    said = answered(tuple(part.replace("FILE", name) for part in READERS[name]), capsys)

    assert said
    assert not (tmp_path / "owned").exists()


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize(
    "seed", [n if n < 4 else pytest.param(n, marks=pytest.mark.slow) for n in range(40)]
)
def test_a_mangled_file_is_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, seed: int
) -> None:
    """A good file with bytes changed, doubled, cut: read or refused."""
    good = GOOD[name] or plans.plan().to_json().encode()
    (tmp_path / name).write_bytes(mangled(seed, good))

    answered(tuple(part.replace("FILE", name) for part in READERS[name]), capsys)


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    "seed", [n if n < 15 else pytest.param(n, marks=pytest.mark.slow) for n in range(150)]
)
def test_a_plan_with_other_values_is_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    """Any leaf of a plan.json set to any value: explained, or refused in a line."""
    dice = random.Random(seed)  # noqa: S311 (nothing here is secret)
    document = json.loads(plans.plan().to_json())
    for _ in range(dice.randint(1, 3)):
        holder, key = document, None
        while isinstance(holder, dict | list) and holder:
            key = dice.choice([*holder] if isinstance(holder, dict) else range(len(holder)))
            if not isinstance(holder[key], dict | list) or not holder[key]:
                break
            holder = holder[key]
        values = (0, -1, 1, 1e308, 1e-308, 10**30, "x", "", None, True, [], {}, 1.5, 10**15)
        if key is not None:
            holder[key] = dice.choice(values)
    (tmp_path / "plan.json").write_text(json.dumps(document))

    answered(("explain", "plan.json"), capsys)
    answered(("diagnose", "good.log", "--plan", "plan.json"), capsys)
