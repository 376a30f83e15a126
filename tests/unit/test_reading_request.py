"""Cluster, workload and request: values, defaults with reasons, contradictions, precedence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsforge.cli.asked import to_request
from dsforge.cli.flags import Flags
from dsforge.cli.main import app
from dsforge.errors import SpecError
from dsforge.plan import Request
from dsforge.reading import addresses
from dsforge.reading.cluster import cluster_of
from dsforge.reading.source import parse_source, read_source
from dsforge.specs import LoraSpec
from dsforge.units import GIB

PAIR = {"model": "llama-2-7b", "gpu": "a100-80gb"}


def asked(**values: object) -> Request:
    """The request of a command line for llama-2-7b on A100 cards."""
    return to_request(Flags(**{**PAIR, **values}))  # type: ignore[arg-type]


def refused(**values: object) -> str:
    """All messages of a command line that must be refused."""
    with pytest.raises(SpecError) as caught:
        to_request(Flags(**values), launches=True)  # type: ignore[arg-type]
    return "\n".join(map(str, caught.value.problems))


def rules(request: Request) -> set[str]:
    """Rules of the reasons that reading gave."""
    return {reason.rule for reason in request.reasons}


def written(path: Path, text: str) -> Path:
    """The path, with that text in it."""
    path.write_text(text)
    return path


def test_what_is_given_is_taken_and_leaves_no_reason() -> None:
    """Flags reach the specs in base units."""
    request = asked(nodes=2, gpus_per_node=8, intra_node="nvlink-3", inter_node="100gbe", tp=4)

    assert (request.cluster.nodes, request.cluster.gpus_per_node) == (2, 8)
    assert request.cluster.inter_node.bytes_per_s == 12.5e9
    assert request.constraints.tensor_parallel_size == 4
    assert not rules(request) & {"default-nodes", "default-inter-node", "default-intra-node"}


def test_what_is_not_given_is_chosen_with_a_reason() -> None:
    """Every default can be read in the plan."""
    request = asked(nodes=2)

    assert rules(request) == {
        *("default-intra-node", "default-inter-node", "default-gpus-per-node"),
        *("default-host-memory", "default-cpu-cores", "default-sequence-length"),
        *("default-method", "default-optimizer", "default-precision"),
        *("default-learning-rate", "default-global-batch", "default-nics"),
    }
    assert request.cluster.gpus_per_node == 8
    assert request.cluster.inter_node.name == "100gbe"


def test_network_adapters_and_ram_are_taken_as_given() -> None:
    """Adapters carry side by side; nothing is assumed where one GPU has a node to itself."""
    given = asked(nodes=2, gpus_per_node=8, inter_node="100gbe", nics_per_node=4, host_memory=512)
    alone = asked(nodes=2, gpus_per_node=1)

    assert given.cluster.inter_node_bytes_per_s == 4 * 12.5e9
    assert given.cluster.host_memory_bytes == 512 * 1024**3
    assert not (rules(given) | rules(alone)) & {"default-nics"}
    assert "default-host-memory" not in rules(given)


@pytest.mark.parametrize(
    ("gpu", "precision"), [("a100-80gb", "bf16"), ("v100-32gb", "fp16")], ids=str
)
def test_precision_follows_the_card(gpu: str, precision: str) -> None:
    """bf16 where the card has it, else fp16."""
    assert asked(gpu=gpu).workload.precision == precision


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        ("epochs: 1\nsequence_length: 1024\n", 72),
        ("tokens: 2b\nsequence_length: 4096\n", 144),
        ("global_batch_tokens: 1e6\nsequence_length: 4096\n", 240),
        ("global_batch_tokens: 20k\nsequence_length: 4096\n", 5),
        ("global_batch_size: 7\n", 7),
    ],
    ids=["fine-tuning", "from scratch", "tokens", "few tokens", "samples"],
)
def test_the_global_batch_gives_every_gpu_its_part(tmp_path: Path, text: str, samples: int) -> None:
    """Defaults are multiples of the 24 GPUs; what was asked in samples stays as it is."""
    workload = written(tmp_path / "w.yaml", text)

    assert asked(nodes=3, gpus_per_node=8, workload=workload).workload.global_batch_size == samples


@pytest.mark.parametrize(
    ("text", "rank"),
    [("method: qlora", 16), ("method: qlora\nlora: {rank: 8}", 8), ("lora: {rank: 8, bits: 4}", 8)],
    ids=["alone", "with adapters", "by its bits"],
)
def test_qlora_is_lora_on_matrices_in_4_bits(tmp_path: Path, text: str, rank: int) -> None:
    """The method is a spelling: what is planned are adapters with `bits: 4`."""
    workload = asked(workload=written(tmp_path / "w.yaml", text)).workload

    assert workload.lora == LoraSpec(rank=rank, bits=4)
    assert (workload.method, workload.method_name) == ("lora", "qlora")
    assert workload.learning_rate == 2e-4


@pytest.mark.parametrize(
    ("text", "rate"),
    [("epochs: 1", 2e-5), ("method: lora", 2e-4), ("tokens: 1b", 3e-4), ("optimizer: lion", 6e-6)],
    ids=["full", "lora", "from scratch", "lion"],
)
def test_the_learning_rate_follows_the_method(tmp_path: Path, text: str, rate: float) -> None:
    """Each regime has its usual rate."""
    workload = written(tmp_path / "w.yaml", text)

    assert asked(workload=workload).workload.learning_rate == rate


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        ("gpt3-125m", 6e-4),
        ("llama-2-13b", 3e-4),
        ("llama-3.1-70b", 1.5e-4),
        ("deepseek-v3", 1.5e-4),  # by the 37 B that a token passes
        ("llama-3.1-405b", 8e-5),
        ("megatron-turing-nlg-530b", 5e-5),
        ("2t", 5e-5),
    ],
)
def test_training_from_scratch_is_as_recipes_have_it(model: str, rate: float) -> None:
    """The rate falls with the size, weights decay by a tenth, and both name where it is from."""
    request = asked(model=model, tokens="1t")
    workload = request.workload
    said = {reason.rule: reason.message for reason in request.reasons}

    assert (workload.learning_rate, workload.weight_decay) == (rate, 0.1)
    assert "arXiv" in said["default-learning-rate"]
    assert "0.1" in said["default-weight-decay"]


def test_fine_tuning_does_not_decay_weights_unless_asked(tmp_path: Path) -> None:
    """A stated value wins either way, zero included."""
    stated = written(tmp_path / "w.yaml", "tokens: 1t\nweight_decay: 0\n")

    assert asked().workload.weight_decay == 0
    assert asked(workload=stated).workload.weight_decay == 0


def test_hosts_with_fewer_slots_set_the_pace(tmp_path: Path) -> None:
    """The plan is made for the weakest host, and a reason says what that costs."""
    hostfile = written(tmp_path / "hostfile", "10.0.0.1 slots=8\n10.0.0.2 slots=4\n")

    request = asked(hostfile=hostfile)

    reason = next(r.message for r in request.reasons if r.rule == "weakest-host")
    assert (request.cluster.nodes, request.cluster.gpus_per_node) == (2, 4)
    assert {host.slots for host in request.cluster.hosts} == {4}
    assert "4 of 12 GPUs (33% of the compute) stay idle" in reason


def test_fewer_nodes_than_hosts_leave_hosts_idle(tmp_path: Path) -> None:
    """The first hosts are used, and the idle ones are named."""
    hostfile = written(tmp_path / "hostfile", "10.0.0.1 slots=8\n10.0.0.2 slots=8\n")

    request = asked(hostfile=hostfile, nodes=1)

    assert [host.address for host in request.cluster.hosts] == ["10.0.0.1"]
    assert "10.0.0.2" in next(r.message for r in request.reasons if r.rule == "idle-hosts")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nodes": 3}, "--nodes: `nodes` (=3) must not exceed the hosts that are listed (=2)"),
        ({"gpus_per_node": 9}, "`gpus_per_node` (=9) must not exceed the slots of 10.0.0.1 (=8)"),
    ],
    ids=["nodes", "slots"],
)
def test_more_than_the_hosts_have_is_refused(
    tmp_path: Path, values: dict[str, object], message: str
) -> None:
    """The flag and the weakest host are named."""
    hostfile = written(tmp_path / "hostfile", "10.0.0.1 slots=8\n10.0.0.2 slots=8\n")

    assert message in refused(**PAIR, hostfile=hostfile, **values)


def test_host_names_need_resolve(tmp_path: Path) -> None:
    """A name is refused with the hint, and with its line."""
    hostfile = written(tmp_path / "hostfile", "node-1 slots=8\n")

    message = refused(**PAIR, hostfile=hostfile)

    assert f"{hostfile}:1" in message
    assert "--resolve" in message


def test_a_plan_needs_only_the_number_of_hosts(tmp_path: Path) -> None:
    """Nobody goes to a host while planning: its name may mean nothing here."""
    text = "# ours\nnode-1 slots=4\nnode-2.cluster slots=4\nlocalhost slots=4\n10.0.0.9 slots=4\n"
    hostfile = written(tmp_path / "hostfile", text)
    cluster = asked(hostfile=hostfile).cluster

    assert (cluster.nodes, cluster.gpus_per_node) == (4, 4)
    assert [host.address for host in cluster.hosts][::3] == ["node-1", "10.0.0.9"]
    for bad in ("node-1 slots=0\n", "node-1 slots=4\nNODE-1 slots=4\n", "-oProxy slots=1\n"):
        with pytest.raises(SpecError):
            asked(hostfile=written(tmp_path / "bad", bad))
    with pytest.raises(SpecError):
        to_request(Flags(model="7b", gpu="v100", hostfile=hostfile), launches=True)


@pytest.mark.parametrize(
    ("text", "size"), [("8k", 8192), ("1K", 1024), ("2k", 2048), ("0.5k", 512), ("4096", 4096)]
)
def test_lengths_and_batches_are_written_as_people_say_them(
    text: str, size: int, tmp_path: Path
) -> None:
    """On the command line and in a file; tokens of a run stay decimal."""
    said = written(tmp_path / "w.yaml", f"sequence_length: {text}\nglobal_batch_size: {text}\n")
    words = ("estimate", "--model", "7b", "--gpu", "b200", "--json")
    for more in (("--seq-len", text, "--global-batch", text), ("--workload", str(said))):
        shown = CliRunner().invoke(app, [*words, *more], catch_exceptions=False).stdout
        work = json.loads(shown)["workload"]
        assert (work["sequence_length"], work["global_batch_size"]) == (size, size)
    assert asked(tokens="8k").workload.tokens == 8000


@pytest.mark.parametrize(("micro", "gpus"), [(1, 8), (3, 8), (5, 6), (7, 1), (16, 8)])
def test_a_batch_that_nobody_gave_follows_the_micro_batch(micro: int, gpus: int) -> None:
    """The default is a whole number of micro batches for each GPU; one that was given is not."""
    found = asked(nodes=1, gpus_per_node=gpus, micro_batch=micro).workload.global_batch_size

    assert found % (micro * gpus) == 0
    assert 64 <= found < 64 + micro * gpus
    assert asked(micro_batch=micro, global_batch=50).workload.global_batch_size == 50


def test_resolve_turns_names_into_addresses(tmp_path: Path) -> None:
    """The machine's own name for itself is the one name that resolves everywhere."""
    hostfile = written(tmp_path / "hostfile", "localhost slots=2\n")

    assert asked(hostfile=hostfile, resolve=True).cluster.hosts[0].address == "127.0.0.1"


def test_resolving_gives_up_in_time() -> None:
    """A reserved name (RFC 6761) has no address, and that is known within the time."""
    assert addresses.resolved(["dsforge.invalid"], timeout_s=0.5) == {}


def test_all_parts_report_their_problems_together(tmp_path: Path) -> None:
    """Model, card, link, hostfile, workload and strategy, in one error."""
    hostfile = written(tmp_path / "hostfile", "10.0.0.1 slots=0\n")

    message = refused(
        model="lama-2-7",
        nodes=-1,
        gpu="a10080",
        inter_node="carrier-pigeon",
        hostfile=hostfile,
        precision="bf61",
        zero_stage=7,
    )

    for flag in ("model", "nodes", "gpu", "inter-node", "precision", "zero-stage"):
        assert f"--{flag}: " in message
    assert f"{hostfile}:1" in message


def test_the_command_line_wins_over_the_files(tmp_path: Path) -> None:
    """Flag over own file over spec file."""
    spec = written(
        tmp_path / "s.yaml",
        "model: gpt2\ncluster: {gpu: v100, nodes: 2}\nstrategy: {zero_stage: 1}\n",
    )
    cluster = written(tmp_path / "c.yaml", "gpu: h100-80gb\nnodes: 3\n")

    request = to_request(Flags(spec=spec, cluster=cluster, nodes=5, zero_stage=2))

    assert (request.model.name, request.cluster.gpu.name) == ("gpt2-small", "h100-80gb")
    assert (request.cluster.nodes, request.constraints.zero_stage) == (5, 2)


def test_paths_in_a_spec_are_relative_to_it(tmp_path: Path) -> None:
    """A spec folder can be moved as a whole."""
    written(tmp_path / "c.yaml", "gpu: h100-80gb\nnodes: 3\n")
    written(tmp_path / "w.yaml", "sequence_length: 512\n")
    spec = written(tmp_path / "s.yaml", "model: gpt2\ncluster: c.yaml\nworkload: ./w.yaml\n")

    request = to_request(Flags(spec=spec))

    assert request.cluster.nodes == 3
    assert request.workload.sequence_length == 512


def test_data_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    """On the command line they are relative to where the user stands."""
    workload = written(tmp_path / "w.yaml", "data: {train: a.jsonl, validation: /b.jsonl}\n")

    data = asked(workload=workload).workload.data
    flagged = asked(workload=workload, data="c.jsonl").workload.data

    assert data is not None
    assert (data.train, data.validation) == (str(tmp_path / "a.jsonl"), "/b.jsonl")
    assert flagged is not None
    assert flagged.train == "c.jsonl"


def test_a_hostfile_wins_over_the_hosts_of_the_cluster_file(tmp_path: Path) -> None:
    """A detected file names one host; the hostfile names them all."""
    cluster = written(
        tmp_path / "c.yaml", "gpu: v100\nnodes: 1\nhosts: [{address: 10.0.0.9, slots: 8}]\n"
    )
    hostfile = written(tmp_path / "hostfile", "10.0.0.1 slots=8\n10.0.0.2 slots=8\n")

    request = to_request(Flags(model="gpt2", cluster=cluster, hostfile=hostfile))

    assert [host.address for host in request.cluster.hosts] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokens: 1b\nepochs: 2", "`workload.tokens` and `workload.epochs`"),
        ("global_batch_size: 8\nglobal_batch_tokens: 1m", "are both given"),
        ("method: full\nlora: {rank: 8}", "`lora` is given with `method` (=full)"),
        ("method: qlora\nlora: {bits: 16}", "`lora.bits` (=16) must be 4"),
        ("tokens: many", "'many' is not a count"),
        ("sequence_length: 0", "`sequence_length` (=0) must be at least 1"),
    ],
    ids=[
        "tokens and epochs",
        "two batches",
        "lora and full",
        "qlora in 16 bits",
        "no count",
        "no length",
    ],
)
def test_contradictions_in_the_workload_are_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    """The line and both keys are named."""
    workload = written(tmp_path / "w.yaml", text)

    assert message.replace("workload.", "") in refused(**PAIR, workload=workload)


def test_a_cluster_of_its_own_card_and_link(tmp_path: Path) -> None:
    """Inline descriptions need no catalog row; units become base units."""
    path = written(
        tmp_path / "c.yaml",
        "gpu: {name: mine, memory_gib: 10, memory_bandwidth_gb_s: 500, peak_tflops: {bf16: 50}}\n"
        "inter_node: {name: wire, kind: ethernet, bandwidth_gb_s: 2, latency_us: 20}\n"
        "host_memory_gib: 100\ncpu_cores: 12\n"
        "nvme: {path: /mnt/fast, size_gib: 1000, read_gb_s: 6, write_gb_s: 3}\n",
    )

    cluster, _ = cluster_of(read_source(path))

    assert (cluster.gpu.memory_bytes, cluster.gpu.peak_flops) == (10 * GIB, {"bf16": 50e12})
    assert (cluster.inter_node.bytes_per_s, cluster.inter_node.latency_s) == (2e9, 2e-5)
    assert (cluster.host_memory_bytes, cluster.cpu_cores) == (100 * GIB, 12)
    assert cluster.nvme is not None
    assert cluster.nvme.read_bytes_per_s == 6e9


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("interface: 'eth0; reboot'", "interface"),
        ("interface: -eth0", "interface"),
        ("ssh_user: '-oProxyCommand=reboot'", "ssh_user"),
        ("ssh_port: 70000", "ssh_port"),
        ("nvme: {path: relative, size_gib: 1, read_gb_s: 1, write_gb_s: 1}", "nvme.path"),
        ('nvme: {path: "/a\\nb", size_gib: 1, read_gb_s: 1, write_gb_s: 1}', "nvme.path"),
        ("nodes: 100000000000000000000", "nodes"),
    ],
    ids=["command", "option", "user option", "port", "relative", "newline", "absurd"],
)
def test_values_that_end_in_scripts_are_refused(text: str, key: str) -> None:
    """Interface, user, port and path can only be what they say."""
    with pytest.raises(SpecError) as caught:
        cluster_of(parse_source(f"gpu: a100-80gb\n{text}\n", "c.yaml"))

    assert f"c.yaml:2: `{key}`" in str(caught.value.problems[0])


def test_memory_that_cpu_and_gpu_share_is_counted_once() -> None:
    """GB10 has 119.7 GiB for both: what the device is given is not host RAM, too."""
    cluster = asked(gpu="gb10").cluster

    assert cluster.gpu.memory_bytes + cluster.host_memory_bytes <= 119.7 * GIB + 1


def test_a_card_described_in_the_cluster_file_plans_as_its_error_says(tmp_path: Path) -> None:
    """The keys that the error for an unknown card names are those that suffice."""
    said = refused(model="llama-2-7b", gpu="nonsense")
    text = said.split("cluster file: `")[1].split("`")[0]
    link = said.split("` and `")[1].split("`")[0]
    cluster = written(tmp_path / "c.yaml", f"{text}\n{link}\nnodes: 2\ngpus_per_node: 4\n")

    request = to_request(Flags(model="llama-2-7b", cluster=cluster))

    assert (request.cluster.gpu.name, request.cluster.gpus) == ("mine", 8)
    assert request.cluster.intra_node.name == "pcie-4"
