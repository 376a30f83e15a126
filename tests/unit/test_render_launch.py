"""Hostfile, environment, scripts, train.yaml, Megatron arguments, PLAN.md."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import planning
import plans
import pytest
import yaml

from dsforge.artifacts import write_all
from dsforge.errors import RenderError
from dsforge.hostfile import parse_hostfile
from dsforge.job import TrainJob
from dsforge.plan import Plan
from dsforge.render import render
from dsforge.render.environment import Variable, environment_variables
from dsforge.specs import DataSpec, Host, LoraSpec, MoeSpec

HOSTS, CASES = plans.HOSTS, plans.CLUSTERS
BASH = shutil.which("bash") or "/bin/bash"
each_case = pytest.mark.parametrize("name", CASES)


def texts(plan: Plan) -> dict[str, str]:
    """Every artifact by path."""
    return {a.path: a.text for a in render(plan)}


def values(plan: Plan) -> dict[str, str]:
    """Environment variables by name."""
    return {v.name: v.value for v in environment_variables(plan)}


def arguments(plan: Plan) -> dict[str, str]:
    """Megatron's arguments by flag."""
    lines = texts(plan)["megatron/args.txt"].splitlines()
    return {flag: value for flag, _, value in (line.partition(" ") for line in lines)}


def test_the_hostfile_lists_the_hosts_with_the_planned_slots() -> None:
    """A host with more slots than the weakest one gives only those."""
    uneven = (HOSTS[0], Host(address="10.0.0.2", slots=12))
    text = texts(plans.plan(on=plans.cluster(hosts=uneven)))["hostfile"]

    assert text == "10.0.0.1 slots=8\n10.0.0.2 slots=8\n"


@pytest.mark.parametrize("nodes", [2, 280, 800])
def test_unknown_hosts_become_example_addresses(nodes: int) -> None:
    """As many distinct ones as there are nodes, with a comment, and PLAN.md says so."""
    written = texts(plans.plan(on=plans.cluster(nodes)))
    hosts = parse_hostfile(written["hostfile"], "hostfile")

    assert len({host.address for host in hosts}) == nodes
    assert written["hostfile"].startswith("#")
    assert "has no hosts" in written["PLAN.md"]


def test_ethernet_switches_infiniband_off() -> None:
    """Only on Ethernet between several nodes; RoCE and InfiniBand keep it."""
    from dsforge import catalog

    roce = plans.cluster(inter_node=catalog.link("roce-400"))

    assert values(plans.plan())["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_IB_DISABLE" not in values(plans.plan(on=roce))
    assert "NCCL_IB_DISABLE" not in values(plans.plan(on=plans.cluster(1)))


def test_the_interface_is_named_where_it_is_known() -> None:
    """For NCCL and gloo, between nodes only."""
    known = values(plans.plan(on=CASES["two-nodes"]))

    assert known["NCCL_SOCKET_IFNAME"] == known["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "NCCL_SOCKET_IFNAME" not in values(plans.plan())


def test_cpu_ranks_get_no_nccl() -> None:
    """The CPU accelerator, gloo's interface and a share of the cores."""
    assert values(plans.plan(on=CASES["two-cpu-nodes"])) == {
        "GLOO_SOCKET_IFNAME": "eth0",
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "2",
    }


@pytest.mark.parametrize("gpu", ["gaudi-2", "gaudi-3"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_gaudi_gets_no_variable_of_cuda(gpu: str, nodes: int) -> None:
    """HCCL finds its network itself; DeepSpeed is told that it runs on `hpu`."""
    from dsforge import catalog

    on = plans.cluster(nodes, gpu=catalog.gpu(gpu), interface="eth0", hosts=HOSTS[:nodes])
    found = values(plans.plan(on=on))

    assert found["DS_ACCELERATOR"] == "hpu"
    assert not [name for name in found if name.startswith(("PYTORCH_CUDA", "CUDA", "NCCL"))]
    assert ("GLOO_SOCKET_IFNAME" in found) == (nodes > 1)


def test_gaudi_is_not_planned_with_megatron() -> None:
    """Megatron-LM asserts that CUDA is there, so nothing may start it."""
    from dsforge import catalog
    from dsforge.planner import choose

    on = plans.cluster(4, gpu=catalog.gpu("gaudi-2"))
    plan = choose(planning.ask("llama-2-13b", on, plans.workload()))

    assert plan.strategy.back_end == "deepspeed"
    assert not any(path.startswith("megatron/") for path in texts(plan))


def test_slots_of_gaudi_cannot_be_selected() -> None:
    """DeepSpeed's launcher narrows ranks by a variable that Gaudi does not read."""
    from dsforge import catalog

    hosts = (Host(address="10.0.0.1", slots=2, devices=(2, 3)),)
    with pytest.raises(RenderError, match="cannot select slots of gaudi-2"):
        render(plans.plan(on=plans.cluster(1, 2, gpu=catalog.gpu("gaudi-2"), hosts=hosts)))


@each_case
def test_every_variable_has_a_reason_in_the_report(name: str) -> None:
    """PLAN.md explains what .deepspeed_env must not comment."""
    plan = plans.plan(on=CASES[name])
    written = texts(plan)

    for variable in environment_variables(plan):
        assert f"{variable.name}={variable.value}\n" in written[".deepspeed_env"]
        assert variable.reason in written["PLAN.md"]


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS", "DB_PASSWORD", "WANDB_API_KEY"])
def test_secrets_are_refused(name: str) -> None:
    """No such name can become a line of a file."""
    with pytest.raises(RenderError, match="secret"):
        Variable(name, "1", "")


@pytest.mark.parametrize("value", ["", "a b", "$(id)", 'a"b', "a\nB=1", "`id`", "a;b"])
def test_values_that_a_remote_shell_would_evaluate_are_refused(value: str) -> None:
    """DeepSpeed puts such a value between double quotes and sends it to a shell."""
    with pytest.raises(RenderError, match="cannot be passed"):
        Variable("NCCL_SOCKET_IFNAME", value, "")


def test_the_launcher_gets_hosts_address_and_port() -> None:
    """DeepSpeed guesses none of them."""
    script = texts(plans.plan(on=CASES["ssh"]))["launch/deepspeed.sh"]

    for part in (
        "--hostfile hostfile",
        '--master_addr "${hosts[0]}"',
        "--ssh_port 2222",
        "--launcher_args='-l me'",
        "--module dsforge.train train.yaml",
    ):
        assert part in script


@pytest.mark.parametrize(
    ("hostfile", "said"),
    [
        (None, "no hostfile"),
        ("", "contains no host"),
        ("# 10.0.0.1 slots=8\n", "contains no host"),
        ("10.0.0.1 slots=8\n", "names 1 hosts, the plan is for 2"),
        ("192.0.2.1 slots=8\n192.0.2.2 slots=8\n", "example address"),
        ("10.0.0.1 slots=8\n-oProxyCommand=id slots=8\n", "hostfile:2 must read"),
        ("10.0.0.1 slots=8\nroot@10.0.0.2 slots=8\n", "a user name (set ssh_user"),
        ("10.0.0.1 slots=8\n10.0.0.2 slots=8 more\n", "hostfile:2 must read"),
        ("10.0.0.1 slots=8\n10.0.0.2 slots=0\n", "hostfile:2 must read"),
        ("10.0.0.1 slots=8\n$(id) slots=8\n", "hostfile:2 must read"),
        ("10.0.0.1 slots=8\n10.0.0.1 slots=8\n", "names 10.0.0.1 twice"),
        ("10.0.0.1 slots=8\n127.0.0.1 slots=8\n", "means each host itself"),
    ],
    ids="missing empty comments few examples dash user more zero shell twice loopback".split(),
)
def test_a_hostfile_that_is_not_the_plans_stops_the_launch(
    hostfile: str | None, said: str, tmp_path: Path
) -> None:
    """Before DeepSpeed starts: it would train on this machine alone."""
    run, tools = tmp_path / "run", tmp_path / "bin"
    write_all(render(plans.plan(on=CASES["two-nodes"])), run)
    tools.mkdir()
    for tool in ("deepspeed", "pdsh", "ssh"):
        (tools / tool).write_text("#!/bin/sh\necho STARTED\n")
        (tools / tool).chmod(0o755)
    (run / "hostfile").unlink()
    if hostfile is not None:
        (run / "hostfile").write_text(hostfile)

    done = subprocess.run(
        [run / "launch/deepspeed.sh"],
        env={"PATH": f"{tools}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert said in done.stderr
    assert "STARTED" not in done.stdout


def program(path: Path, line: str) -> None:
    """Write a shell script of one line."""
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("port", ["", "65536x", "２９５００", "-1", "1 2"])  # noqa: RUF001
@pytest.mark.parametrize("script", ["deepspeed", "torchrun"])
def test_a_port_that_is_none_stops_the_launch(script: str, port: str, tmp_path: Path) -> None:
    """Digits of other scripts too, which Python would take."""
    run, tools = tmp_path / "run", tmp_path / "bin"
    write_all(render(plans.plan(on=CASES["one-node"])), run)
    tools.mkdir()
    program(tools / script, "echo STARTED $*")
    program(tools / "python", f'exec {sys.executable} "$@"')
    done = subprocess.run(
        [run / f"launch/{script}.sh"],
        env={"PATH": f"{tools}:/usr/bin:/bin", "MASTER_PORT": port},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ("must be a whole number" in done.stderr) == bool(port)
    assert ("STARTED" in done.stdout) == (not port)


def test_a_folder_that_is_half_written_is_not_launched(tmp_path: Path) -> None:
    """A killed gen leaves a mark, which every script looks for."""
    write_all(render(plans.plan(on=CASES["one-node"])), tmp_path)
    (tmp_path / ".dsforge-commit").mkdir()

    for script in ("launch/deepspeed.sh", "launch/torchrun.sh"):
        done = subprocess.run([tmp_path / script], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "interrupted" in done.stderr


def test_a_hostile_name_stays_one_word(tmp_path: Path) -> None:
    """A model path with shell in it is data in every script."""
    plan = plans.plan()
    name = "x'; touch pwned; $(id) `id` \" "
    model = plan.model.model_copy(update={"hub_id": None, "path": name})
    script = texts(plan.model_copy(update={"model": model}))["megatron/pretrain.sh"]
    line = next(line for line in script.splitlines() if line.startswith("  tokenizer="))

    said = subprocess.run(
        [BASH, "-c", f'{line}; printf %s "$tokenizer"'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == name
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"data": DataSpec(train="d/t.jsonl", validation="d/v.jsonl", shape="messages")},
        {"method": "lora", "lora": LoraSpec(rank=8, dropout=0.05)},
        {"method": "lora", "lora": LoraSpec(bits=4)},
        {"method": "lora", "lora": LoraSpec(base="fp4", double_quant=False, quant_storage="uint8")},
        {"method": "lora", "lora": LoraSpec(base="int8"), "optimizer": "paged_adamw_32bit"},
        {"tokens": None, "epochs": 3.0},
    ],
    ids=["plain", "data", "lora", "qlora", "fp4", "int8", "epochs"],
)
def test_train_yaml_is_a_train_job(changed: dict[str, Any]) -> None:
    """It reads back as the type that the loop takes, and says every field that it has."""
    work = plans.workload(**changed)
    plan = plans.plan(work=work)
    read = yaml.safe_load(texts(plan)["train.yaml"])
    job = TrainJob.model_validate(read)

    assert set(read) | {"lora", "optimizer_states", "preference", "torch"} == set(
        TrainJob.model_fields
    )
    assert (job.lora, job.steps) == (work.lora, work.steps)
    assert job.optimizer_states == work.optimizer_states
    assert job.model == "meta-llama/Llama-2-7b-hf"
    assert job.gradient_checkpointing is True
    assert job.data == (work.data or DataSpec(train="data/train.jsonl"))


def test_megatron_sizes() -> None:
    """Shape, parallel sizes and batch are the plan's."""
    said = arguments(plans.plan())

    assert said["--num-layers"] == "32"
    assert said["--ffn-hidden-size"] == "11008"
    assert said["--tensor-model-parallel-size"] == "2"
    assert said["--global-batch-size"] == "64"
    assert {"--swiglu", "--sequence-parallel", "--bf16", "--use-distributed-optimizer"} <= set(said)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt2-xl", {"--position-embedding-type": "learned_absolute", "--swiglu": None}),
        ("llama-3-8b", {"--num-query-groups": "8", "--untie-embeddings-and-output-weights": ""}),
        ("qwen2.5-7b", {"--add-qkv-bias": "", "--disable-bias-linear": ""}),
        ("qwen3-8b", {"--qk-layernorm": ""}),
        ("mixtral-8x7b", {"--num-experts": "8", "--moe-router-topk": "2"}),
        ("deepseek-v2-lite", {"--kv-lora-rank": "512", "--moe-layer-freq": "([0]*1+[1]*26)"}),
    ],
)
def test_megatron_families(model: str, expected: dict[str, str | None]) -> None:
    """The switches that tell one family from another."""
    said = arguments(plans.plan(model))

    assert {flag: said.get(flag) for flag in expected} == expected


@pytest.mark.parametrize("model", ["falcon-7b", "bloom-7b1", "opt-30b", "gemma-2-9b", "pythia-1b"])
def test_what_megatron_cannot_build_has_no_files(model: str) -> None:
    """PLAN.md gives the rule in their place."""
    written = texts(plans.plan(model))

    assert not [path for path in written if path.startswith("megatron/")]
    assert "[megatron-model]" in written["PLAN.md"]


@pytest.mark.parametrize(("gpu", "needed"), [("h100-80gb", True), ("b200-180gb", False)])
def test_one_connection_before_blackwell(gpu: str, needed: bool) -> None:
    """Megatron insists on it for tensor parallelism on Hopper and older."""
    from dsforge import catalog

    plan = plans.plan(on=plans.cluster(gpu=catalog.gpu(gpu)))

    assert ("CUDA_DEVICE_MAX_CONNECTIONS=1" in texts(plan)["megatron/pretrain.sh"]) == needed


def test_expert_pattern_follows_the_layers() -> None:
    """Every second layer with experts, after a dense one."""
    plan = plans.plan("mixtral-8x7b")
    moe = MoeSpec(
        experts=8,
        experts_per_token=2,
        expert_ffn_hidden_size=64,
        first_dense_layers=1,
        layer_step=2,
    )
    model = plan.model.model_copy(update={"layers": 4, "moe": moe})

    said = arguments(plan.model_copy(update={"model": model}))
    assert said["--moe-layer-freq"] == "([0]*1+[1]*1+[0]*1+[1]*1)"


@pytest.mark.parametrize("end", ["\n", ""], ids=["newline", "no-newline"])
def test_one_node_gets_the_same_environment(tmp_path: Path, end: str) -> None:
    """The script exports .deepspeed_env itself, where DeepSpeed would not read it."""
    run, tools = tmp_path / "run", tmp_path / "bin"
    write_all(render(plans.plan(on=CASES["one-node"])), run)
    (run / ".deepspeed_env").write_text(f"OMP_NUM_THREADS=3\nNCCL_TEST=a=b={end}")
    tools.mkdir()
    program(tools / "deepspeed", 'echo "$OMP_NUM_THREADS $NCCL_TEST $*"')
    program(tools / "python", f'exec {sys.executable} "$@"')

    done = subprocess.run(
        [run / "launch/deepspeed.sh"],
        env={"PATH": f"{tools}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.startswith("3 a=b= --hostfile hostfile ")


@each_case
def test_nothing_in_an_artifact_depends_on_this_machine(name: str) -> None:
    """Rendered twice they are equal, without an absolute path of ours, a time or a secret."""
    plan = plans.plan(on=CASES[name])
    written = texts(plan)

    assert written == texts(Plan.model_validate_json(plan.model_dump_json()))
    for text in written.values():
        assert str(Path.home()) not in text
        assert str(Path(__file__).parents[2]) not in text
        assert not re.search(r"\b20\d\d-\d\d-\d\d|\d\d:\d\d:\d\d", text)
        assert not re.search(r"(?i)(token|password|secret)\s*[=:]\s*\S", text)


def test_the_report_gives_the_rule_for_a_missing_variant() -> None:
    """Rule and number stand where the file would be."""
    text = texts(plans.plan(on=plans.cluster(nvme=None)))["PLAN.md"]

    assert "not written: NVMe offload needs a disk, the cluster has none [nvme-present]" in text


@pytest.mark.parametrize(
    ("changed", "model", "random"),
    [
        ({"path": "/models/mine", "hub_id": None}, "/models/mine", False),
        ({"path": "/models/mine/config.json", "hub_id": None}, "/models/mine/config.json", True),
        ({"hub_id": None}, "llama-2-7b", True),
        ({}, "meta-llama/Llama-2-7b-hf", False),
    ],
    ids=["folder", "config", "name", "hub"],
)
def test_weights_come_from_where_the_model_was_read(
    changed: dict[str, Any], model: str, random: bool
) -> None:
    """A folder is trained from its weights, never from random ones because its name is unknown."""
    plan = plans.plan()
    plan = plan.model_copy(update={"model": plan.model.model_copy(update=changed)})
    job = TrainJob.model_validate(yaml.safe_load(texts(plan)["train.yaml"]))

    assert (job.model, job.random_weights) == (model, random)
