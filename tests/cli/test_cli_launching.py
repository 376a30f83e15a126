"""Flags about launching, as a user types them: from the command line to plan and scripts."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from dsforge.artifacts import LAUNCHERS
from dsforge.cli.main import main

JOB = ("gen", "--model", "llama-2-7b", "--gpu", "a100-80gb", "--for", "deepspeed")
POOL = "10.0.0.1 slots=8\n10.0.0.2 slots=8\n10.0.0.3 slots=8\n"
HOSTILE = ("a b", "a;id", "$(id)", "`id`", "a'b", 'a"b', "a\nb", "-x", "a|b", "a>b", "a&b", "")


class Done(NamedTuple):
    """What came of a call."""

    exit_code: int
    output: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a hostfile."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text(POOL)
    return tmp_path


def called(*arguments: str) -> Done:
    """A call of `dsforge` as its entry point makes it."""
    before, sys.argv = sys.argv, ["dsforge", *arguments]
    output, code = StringIO(), 0
    try:
        with redirect_stdout(output), redirect_stderr(output):
            main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = before
    return Done(code, output.getvalue())


def generated(folder: Path, *arguments: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The plan and the texts of the run folder of a call that must end well."""
    done = called(*JOB, *arguments, "--out", "run")
    assert done.exit_code == 0, done.output
    files = {
        path.relative_to(folder / "run").as_posix(): path.read_text()
        for path in (folder / "run").rglob("*")
        if path.is_file()
    }
    return json.loads(files["plan.json"]), files


def test_slurm_flags_reach_every_slurm_script(folder: Path) -> None:
    """The choice's and the alternative's."""
    flags = ("--slurm-account", "proj-1", "--slurm-partition", "gpu", "--slurm-time", "2-0")
    _, files = generated(folder, "--nodes", "2", "--gpus-per-node", "8", *flags)
    scripts = [text for path, text in files.items() if path.endswith(".sbatch")]

    assert len(scripts) == 2
    for text in scripts:
        for line in ("account=proj-1", "partition=gpu", "time=2-0"):
            assert f"#SBATCH --{line}\n" in text


def test_the_cluster_file_says_the_same(folder: Path) -> None:
    """A flag wins over its key."""
    cluster = {
        "gpu": "a100-80gb",
        "ssh_port": 2022,
        "hosts": [{"address": f"10.0.0.{i}", "slots": 8} for i in (1, 2, 3)],
        "exclude": "10.0.0.3@10.0.0.2:0",
        "slurm": {"account": "proj-1", "time": 90},
        "nvme": {"path": "/scratch"},
    }
    (folder / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    plan, files = generated(folder, "--cluster", "cluster.yaml", "--slurm-account", "other")

    assert "#SBATCH --account=other\n" in files["launch/slurm.sbatch"]
    assert "#SBATCH --time=90\n" in files["launch/slurm.sbatch"]
    assert "--ssh_port 2022" in files["launch/deepspeed.sh"]
    assert (plan["cluster"]["nodes"], plan["cluster"]["gpus_per_node"]) == (2, 7)
    assert plan["cluster"]["nvme"]["path"] == "/scratch"


def test_the_ssh_port_is_used_by_check_and_launch(folder: Path) -> None:
    """Of ssh and of DeepSpeed's launcher."""
    _, files = generated(folder, "--hostfile", "hosts", "--ssh-port", "2222")

    assert "-p 2222 -- " in files["launch/deepspeed.sh"]
    assert "--ssh_port 2222" in files["launch/deepspeed.sh"]


def test_included_slots_are_planned_and_launched(folder: Path) -> None:
    """Counts, hostfile and scripts agree."""
    selection = "10.0.0.3:4,5,6,7@10.0.0.1:0,1,2,3"
    plan, files = generated(folder, "--hostfile", "hosts", "--include", selection)

    assert (plan["cluster"]["nodes"], plan["cluster"]["gpus_per_node"]) == (2, 4)
    assert files["hostfile"] == "10.0.0.1 slots=4\n10.0.0.3 slots=8\n"
    assert "read -ra devices <<<'0,1,2,3 4,5,6,7'" in files["launch/deepspeed.sh"]
    assert json.loads(files["deepspeed/ds_config.json"])["train_batch_size"] % 8 == 0


def test_excluded_hosts_are_not_launched(folder: Path) -> None:
    """Whole hosts need no selection in any script: the hostfile has none but the others."""
    plan, files = generated(folder, "--hostfile", "hosts", "--exclude", "10.0.0.2")

    assert plan["cluster"]["nodes"] == 2
    assert files["hostfile"] == "10.0.0.1 slots=8\n10.0.0.3 slots=8\n"
    assert "--include" not in files["launch/deepspeed.sh"]


def test_the_nvme_folder_is_a_flag(folder: Path) -> None:
    """It stands in the config that offloads there; what is assumed of the disk is said."""
    size = ("--nodes", "1", "--gpus-per-node", "8")
    offload = ("--zero-stage", "3", "--offload-optimizer", "nvme", "--offload-params", "nvme")
    plan, files = generated(folder, *size, *offload, "--nvme-path", "/local/nvme0")
    blocks = json.loads(files["deepspeed/ds_config.json"])["zero_optimization"]

    assert blocks["offload_optimizer"]["nvme_path"] == "/local/nvme0"
    assert blocks["offload_param"]["nvme_path"] == "/local/nvme0"
    assert "default-nvme" in {reason["rule"] for reason in plan["choice"]["reasons"]}


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "flag",
    ["--slurm-account", "--slurm-partition", "--slurm-time", "--include", "--exclude"],
)
def test_what_a_shell_would_read_is_refused(flag: str, text: str, folder: Path) -> None:
    """With the flag's name, and nothing is written."""
    done = called(*JOB, "--hostfile", "hosts", flag, text, "--out", "run")

    assert done.exit_code in (1, 2)
    assert flag in done.output
    assert not (folder / "run").exists()


@pytest.mark.parametrize("text", ["nvme", "~/nvme", "/a b", "/$(id)", "/a;b", "/a\nb", ""])
def test_a_disk_that_is_no_plain_path_is_refused(text: str, folder: Path) -> None:
    """Absolute, without anything that a shell or JSON would read otherwise."""
    done = called(*JOB, "--nodes", "1", "--nvme-path", text, "--out", "run")

    assert done.exit_code in (1, 2)
    assert not (folder / "run").exists()


@pytest.mark.parametrize("port", ["0", "65536", "-1", "22x", "２２"])  # noqa: RUF001
def test_a_port_that_is_none_is_refused(port: str, folder: Path) -> None:
    """Before anything is written."""
    done = called(*JOB, "--hostfile", "hosts", "--ssh-port", port, "--out", "run")

    assert done.exit_code in (1, 2)
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    "name", ["13b", "my-7b", "a b-70b", "x-100gbe", "7b-instruct", "llama-2-7b"]
)
def test_folders_called_like_sizes_and_links_are_folders(name: str, folder: Path) -> None:
    """Model, data and run folder keep their names, byte for byte."""
    config = {
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "vocab_size": 32000,
    }
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(config))
    (folder / f"{name}.jsonl").write_text('{"text": "a"}\n')
    out = folder / f"out-{name}"
    call = ("gen", "--model", name, "--gpu", "a100", "--data", f"{name}.jsonl", "--out", str(out))
    done = called(*call, "--for", "deepspeed")
    job = yaml.safe_load((out / "train.yaml").read_text())
    plan = json.loads((out / "plan.json").read_text())

    assert done.exit_code == 0, done.output
    assert (job["model"], job["data"]["train"]) == (f"../{name}", f"../{name}.jsonl")
    assert (plan["model"]["name"], plan["model"]["layers"]) == (name, 8)
    assert plan["cluster"]["gpus_per_node"] == 1


@pytest.mark.parametrize(
    ("back_end", "start"),
    [("megatron", "megatron/pretrain.sh"), ("deepspeed", "launch/deepspeed.sh")],
)
def test_gen_says_how_to_launch_what_it_chose(back_end: str, start: str, folder: Path) -> None:
    """The last step names a script that exists; no step asks for what the choice does not read."""
    pair = ("--model", "llama-2-7b", "--gpu", "a100-80gb", "--nodes", "2", "--gpus-per-node", "8")
    done = called("gen", *pair, "--for", back_end, "--out", "run")
    steps = done.output.rpartition("(PLAN.md explains them)")[2]

    assert start in steps
    assert (folder / "run" / start).is_file()
    assert ("train.yaml" in steps) == (folder / "run/train.yaml").is_file()


def test_another_choice_takes_the_old_launchers_away(folder: Path) -> None:
    """Of the same folder: no script of the former choice stays where the new one is launched."""
    pair = ("--model", "llama-2-7b", "--gpu", "a100-80gb", "--nodes", "2", "--gpus-per-node", "8")
    launchers = {
        "deepspeed": {*LAUNCHERS},
        "megatron": {"slurm.sbatch"},
    }
    for back_end in ("deepspeed", "megatron", "deepspeed"):
        done = called("gen", *pair, "--for", back_end, "--out", "run")

        assert done.exit_code == 0, done.output
        assert {path.name for path in (folder / "run/launch").iterdir()} == launchers[back_end]
        assert (folder / "run/train.yaml").exists() == (back_end == "deepspeed")
        assert (folder / "run/train-deepspeed.yaml").exists() == (back_end == "megatron")
