"""Bad input of every kind that people and programs have produced, one case each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from good import GOOD, LLAMA

from dsforge.cli.main import main

Refused = Callable[..., str]

FLAGS = {
    "nothing": ((), "model"),
    "unknown option": (("--modle", "x"), "--modle"),
    "no value": ((*GOOD, "--tp"), "--tp"),
    "unknown model": (("--model", "lama-2-7", "--gpu", "a100"), "llama-2-7b"),
    "empty model": (("--model", "", "--gpu", "a100"), "model"),
    "model with an escape": (("--model", "\x1b[2Jx", "--gpu", "a100"), "model"),
    "model of 10000 letters": (("--model", "x" * 10_000, "--gpu", "a100"), "model"),
    "hub id that is not there": (("--model", "no/such-model-xyz", "--gpu", "a100"), "no/such"),
    "missing folder": (("--model", "./nowhere", "--gpu", "a100"), "nowhere"),
    "folder without a config": (("--model", "./run", "--gpu", "a100"), "config.json"),
    "unknown card": (("--model", "7b", "--gpu", "a10080"), "a100-80gb"),
    "no card": (("--model", "7b"), "detect"),
    "unknown link": ((*GOOD, "--inter-node", "100gb"), "100gbe"),
    "unknown inner link": ((*GOOD, "--intra-node", "nvlnk"), "nvlink"),
    "no nodes": ((*GOOD, "--nodes", "0"), "--nodes"),
    "negative nodes": ((*GOOD, "--nodes", "-3"), "--nodes"),
    "nodes as text": ((*GOOD, "--nodes", "two"), "--nodes"),
    "endless nodes": ((*GOOD, "--nodes", "9" * 30), "--nodes"),
    "too many cards": ((*GOOD, "--gpus-per-node", "5000"), "--gpus-per-node"),
    "no sequence": ((*GOOD, "--seq-len", "0"), "--seq-len"),
    "endless sequence": ((*GOOD, "--seq-len", "9" * 20), "--seq-len"),
    "sequence beyond the model": ((*GOOD, "--seq-len", "9999"), "4096"),
    "no batch": ((*GOOD, "--global-batch", "0"), "--global-batch"),
    "batch that no split divides": (
        (*GOOD, "--global-batch", "7", "--zero-stage", "1", "--tp", "1", "--pp", "1"),
        "7",
    ),
    "unknown precision": ((*GOOD, "--precision", "bf61"), "bf16"),
    "precision the card lacks": ((*GOOD, "--gpu", "v100", "--precision", "bf16"), "fp16"),
    "unknown optimizer": ((*GOOD, "--optimizer", "adamx"), "adamw"),
    "unknown method": ((*GOOD, "--method", "qlorra"), "qlora"),
    "unknown back end": ((*GOOD, "--for", "jax"), "deepspeed"),
    "ZeRO stage 4": ((*GOOD, "--zero-stage", "4"), "--zero-stage"),
    "tensor parallel 3": ((*GOOD, "--tp", "3"), "3"),
    "tensor parallel 0": ((*GOOD, "--tp", "0"), "--tp"),
    "more stages than GPUs": ((*GOOD, "--pp", "64"), "64"),
    "experts of a dense model": ((*GOOD, "--ep", "4"), "4"),
    "unknown offload": ((*GOOD, "--offload-optimizer", "ssd"), "nvme"),
    "NVMe without a disk": ((*GOOD, "--offload-params", "nvme", "--zero-stage", "3"), "nvme"),
    "unknown recompute": ((*GOOD, "--recompute", "all"), "full"),
    "unknown buckets": ((*GOOD, "--buckets", "huge"), "engine"),
    "cluster file that is missing": ((*GOOD, "--cluster", "no.yaml"), "no.yaml"),
    "cluster file that is a folder": ((*GOOD, "--cluster", "run"), "folder"),
    "spec that is missing": (("--spec", "no.yaml"), "no.yaml"),
    "hostfile that is missing": ((*GOOD, "--hostfile", "no"), "no"),
    "model that fits nowhere": (("--model", "1t", "--gpu", "rtx-3060"), "fit"),
}
SIZES = ["0b", "7bb", "7 billion", "b", "7e", "nan", "inf", "1e999b", "0.0000001b", "9" * 40]
CLUSTERS = {
    "syntax": ("nodes: [", ":1"),
    "list": ("- nodes: 1", "key: value"),
    "unknown key": ("node: 1", "nodes"),
    "duplicate key": ("nodes: 1\nnodes: 2", "twice"),
    "bomb": ("a: &a [x]\nb: &b [*a, *a]\nnodes: 1", "alias"),
    "deep": ("name: " + "[" * 300, "nested"),
    "python object": ("name: !!python/object/apply:os.system ['touch owned']", "tag"),
    "infinite memory": ("host_memory_gib: .inf", "finite"),
    "quoted number": ("nodes: '2'", "whole number"),
    "boolean number": ("nodes: true", "whole number"),
    "host as text": ("hosts: [10.0.0.1]", "key: value"),
    "host twice": (
        "hosts: [{address: 10.0.0.1, slots: 1}, {address: 10.0.0.1, slots: 1}]",
        "twice",
    ),
    "host name": ("hosts: [{address: node-1, slots: 1}]", "--resolve"),
    "host with a command": ("hosts: [{address: $(touch owned), slots: 1}]", "host"),
    "card without memory": ("gpu: {name: x, memory_gib: 0}", "memory_gib"),
    "card as a list": ("gpu: [a100]", "gpu"),
    "interface with a command": ("interface: $(touch owned)", "interface"),
    "control character": ("name: \x07", "U+0007"),
    "port": ("ssh_port: 0", "ssh_port"),
}
WORKLOADS = {
    "unknown key": ("seq_length: 1", "sequence_length"),
    "no count": ("tokens: many", "count"),
    "negative rate": ("learning_rate: -1", "learning_rate"),
    "two budgets": ("tokens: 1b\nepochs: 1", "both"),
    "bad adapters": ("lora: {rank: 0}", "lora.rank"),
    "bad data": ("data: {shape: csv}", "data.shape"),
}
HOSTFILES = {
    "empty": ("", "no host"),
    "no slots": ("10.0.0.1", ":1"),
    "slots=0": ("10.0.0.1 slots=0", "slots"),
    "junk": ("10.0.0.1 slots=1 junk", "junk"),
    "option": ("-oProxyCommand=x slots=1", "-oProxyCommand"),
    "command": ("$(touch${IFS}owned) slots=1", "host"),
    "escape": ("10.0.0.1\x1b[2J slots=1", "host"),
    "name": ("node-1 slots=1", "--resolve"),
    "user": ("root@10.0.0.1 slots=1", "ssh_user"),
}
CONFIGS = {
    "empty": b"",
    "no JSON": b"{",
    "list": b"[]",
    "not UTF-8": b"\xff\xfe{}",
    "no type": b"{}",
    "unknown type": b'{"model_type": "nonesuch"}',
    "deep": b'{"a":' * 5000,
    "not a number": json.dumps({**LLAMA, "hidden_size": float("nan")}).encode(),
    **{
        f"{key}={value!r}": json.dumps({**LLAMA, key: value}).encode()
        for key, value in (
            ("hidden_size", 0),
            ("hidden_size", "64"),
            ("hidden_size", 10**30),
            ("num_hidden_layers", -1),
            ("num_hidden_layers", None),
            ("num_attention_heads", 5),
            ("num_key_value_heads", 3),
            ("vocab_size", [1]),
            ("vocab_size", True),
        )
    },
}


@pytest.mark.parametrize(("arguments", "said"), FLAGS.values(), ids=FLAGS)
def test_bad_flags(refused: Refused, arguments: tuple[str, ...], said: str) -> None:
    """The message names the flag, the legal value or the rule."""
    assert said in refused(*arguments)


@pytest.mark.parametrize("size", SIZES)
def test_bad_sizes(refused: Refused, size: str) -> None:
    """A size that is none is a model that is unknown."""
    assert "--model: " in refused(*GOOD, "--model", size)


@pytest.mark.parametrize(("text", "said"), CLUSTERS.values(), ids=CLUSTERS)
def test_bad_cluster_files(refused: Refused, tmp_path: Path, text: str, said: str) -> None:
    """The message names the file."""
    (tmp_path / "c.yaml").write_text(text)

    message = refused("--model", "llama-2-7b", "--cluster", "c.yaml")

    assert "c.yaml" in message
    assert said in message


@pytest.mark.parametrize(("text", "said"), WORKLOADS.values(), ids=WORKLOADS)
def test_bad_workload_files(refused: Refused, tmp_path: Path, text: str, said: str) -> None:
    """The message names the file."""
    (tmp_path / "w.yaml").write_text(text)

    message = refused(*GOOD, "--workload", "w.yaml")

    assert "w.yaml" in message
    assert said in message


@pytest.mark.parametrize(("text", "said"), HOSTFILES.values(), ids=HOSTFILES)
def test_bad_hostfiles(refused: Refused, tmp_path: Path, text: str, said: str) -> None:
    """The message names the file."""
    (tmp_path / "hosts").write_text(text)

    message = refused("--model", "llama-2-7b", "--gpu", "v100", "--hostfile", "hosts")

    assert "hosts" in message
    assert said in message


@pytest.mark.parametrize("content", CONFIGS.values(), ids=CONFIGS)
def test_bad_model_configs(refused: Refused, tmp_path: Path, content: bytes) -> None:
    """The message names the file."""
    (tmp_path / "config.json").write_bytes(content)

    assert "config.json" in refused("--model", "./config.json", "--gpu", "a100-80gb")


@pytest.mark.parametrize("command", ["plan", "estimate"])
@pytest.mark.parametrize(
    ("arguments", "code"), [(("--zero-stage", "4"), 1), (("--zero-stage", "x"), 2)], ids=["4", "x"]
)
def test_other_commands_refuse_alike(
    command: str,
    arguments: tuple[str, ...],
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The flags are shared, and so is the gate: 1 for a wrong value, 2 for a wrong command line."""
    with pytest.raises(SystemExit) as caught:
        main([command, *GOOD, *arguments])

    out, err = capsys.readouterr()
    assert caught.value.code == code
    assert "--zero-stage" in err
    assert not out


def test_problems_of_every_file_come_in_one_message(refused: Refused, tmp_path: Path) -> None:
    """Nobody has to run the command five times to learn five things."""
    (tmp_path / "c.yaml").write_text("gpu: a10080\nnodez: 1\n")
    (tmp_path / "w.yaml").write_text("tokens: many\n")

    message = refused(
        *("--model", "lama-2", "--cluster", "c.yaml", "--workload", "w.yaml", "--zero-stage", "9")
    )

    assert all(
        part in message for part in ("--model", "c.yaml:1", "c.yaml:2", "w.yaml:1", "--zero-stage")
    )
