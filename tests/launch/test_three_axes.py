"""Pipeline x tensor x data parallelism on 8 CPU ranks: losses, a killed rank, other ranks, weights.

The reference is one rank with the same samples. A run of 2 stages x 2 tensor ranks x 2 replicas
loses a rank to SIGKILL and goes on with other sizes; every loss is that of the reference.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
import test_parity
from planning import workload
from tiny_job import ds_config, pairs, write_job
from tiny_models import write_kind

from dsforge.checkpoints.export import export
from dsforge.checkpoints.folder import find_checkpoint
from dsforge.checkpoints.inspect import inspect
from dsforge.checkpoints.torch_files.archive import Archive, tensors_in
from dsforge.checkpoints.verify.checkpoint import verify
from dsforge.estimate.cut import stages
from dsforge.estimate.shard import rank_parameters
from dsforge.huggingface.reader import model_from_config
from dsforge.layout import Layout

pytestmark = [pytest.mark.launch, pytest.mark.engine]

STEPS, SAVED = 6, 3
TOLERANCE = 1e-3  # of a loss, the acceptance of this feature; in fp32 they agree to 1e-5
BF16 = {"bf16": {"enabled": True}}
Sizes = tuple[int, int, int]  # replicas, tensor ranks, stages


def sized(sizes: Sizes, stage: int = 1, **more: Any) -> dict[str, Any]:
    """A config of 8 samples a step."""
    data, tensor, parts = sizes
    micro = 1 if data == 8 else 2
    config = ds_config(
        stage,
        train_micro_batch_size_per_gpu=micro,
        gradient_accumulation_steps=8 // (micro * data),
        **more,
    )
    if tensor > 1:
        config["tensor_parallel"] = {"autotp_size": tensor}
    if parts > 1:
        config["pipeline"] = {"stages": parts, "partition": [4 // parts] * parts}
    return config


def count(sizes: Sizes) -> int:
    """Ranks of these sizes."""
    return sizes[0] * sizes[1] * sizes[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a finished run of a kind of model; each is made once."""
    home = tmp_path_factory.mktemp("axes")

    def run(kind: str, sizes: Sizes, stage: int = 1, **more: Any) -> Path:
        model = home / "models" / kind
        if not model.exists():
            write_kind(kind, model)
        folder = home / "-".join(map(str, (kind, *sizes, stage, *more)))
        if not folder.exists():
            config = sized(sizes, stage, **more)
            write_job(folder, model, config, steps=STEPS, checkpoint_every=SAVED)
            ranks.train(folder, count(sizes))
        return folder

    return run


Made = Callable[..., Path]


def losses(folder: Path) -> list[float]:
    """The losses of a run, all steps."""
    found = runs.figures(folder / "output", "loss")
    assert len(found) == STEPS
    return found


def weights(folder: Path) -> dict[str, Any]:
    """Tensors of a folder that transformers loads."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(folder)
    return load_file(folder / "model.safetensors")


def check_weights(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same names and, within a tolerance, the same values."""
    import torch

    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        # AdamW moves a weight by up to lr a step where a gradient is nearly 0: 6 steps of 3e-3.
        torch.testing.assert_close(found[name].float(), tensor.float(), atol=2e-3, rtol=0)


def resumed(run: Path, folder: Path, sizes: Sizes, stage: int = 1, **more: Any) -> Path:
    """The same run, gone on from the middle on other ranks."""
    shutil.copytree(run, folder)
    config = json.dumps(sized(sizes, stage, **more))
    (folder / "ds_config.json").write_text(config, encoding="utf-8")
    back = ["--resume", f"output/checkpoints/global_step{SAVED}", "--overwrite"]
    ranks.train(folder, count(sizes), *back)
    return folder


def test_a_killed_run_goes_on_with_other_sizes(made: Made, tmp_path: Path) -> None:
    """2 x 2 x 2 ranks lose one after a save; 2 stages of 4 replicas and 4 replicas go on."""
    kind, sizes = "qwen3", (2, 2, 2)
    undisturbed = losses(made(kind, sizes))
    assert undisturbed == pytest.approx(losses(made(kind, (1, 1, 1))), abs=TOLERANCE)
    model = made(kind, sizes).parent / "models" / kind
    broken = tmp_path / "broken"
    write_job(broken, model, sized(sizes), steps=STEPS, checkpoint_every=SAVED, keep_checkpoints=3)
    processes = ranks.begun(broken, count(sizes))
    try:
        runs.wait_for_lines(broken, SAVED + 1, lambda: processes[0].exitcode)
        os.kill(processes[5].pid or 0, signal.SIGKILL)
    finally:
        for process in processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()
    assert processes[5].exitcode == -signal.SIGKILL

    for name, others in (("stages", (4, 1, 2)), ("replicas", (4, 1, 1))):
        again = resumed(broken, tmp_path / name, others)
        assert losses(again) == pytest.approx(undisturbed, abs=TOLERANCE)


def test_final_weights_are_those_of_one_rank(made: Made, tmp_path: Path) -> None:
    """The export of the run, and that of its checkpoint, load in transformers."""
    run, alone = made("llama", (2, 2, 2)), made("llama", (1, 1, 1))
    assert losses(run) == pytest.approx(losses(alone), abs=TOLERANCE)
    expected = weights(alone / "output/model")
    check_weights(weights(run / "output/model"), expected)

    folder = run / f"output/checkpoints/global_step{STEPS}"
    export(find_checkpoint(folder), tmp_path / "exported", model=run / "output/model")
    from_checkpoint = weights(tmp_path / "exported")
    assert all((from_checkpoint[n] == t).all() for n, t in weights(run / "output/model").items())


def test_ckpt_understands_the_folder(made: Made) -> None:
    """Whole parameters by the names of transformers, and a missing rank is found."""
    run = made("llama", (2, 2, 2))
    folder = run / f"output/checkpoints/global_step{STEPS}"
    described = inspect(folder)
    expected = weights(run / "output/model")

    assert verify(folder, values=True) == []
    assert {t.name: t.shape for t in described.tensors} == {
        name: tuple(tensor.shape) for name, tensor in expected.items()
    }
    assert (described.zero_stage, described.world_size, described.step) == (1, 8, STEPS)
    assert described.states == ("exp_avg", "exp_avg_sq", "fp32")


def test_what_gen_writes_for_three_axes_trains(made: Made, tmp_path: Path) -> None:
    """One YAML: `gen` writes both keys, and the folder trains as it is."""
    model = made("llama", (1, 1, 1)).parent / "models/llama"
    rows = "".join(json.dumps(row) + "\n" for row in pairs(64))
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    spec = {
        "model": str(model),
        "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": "cpu", "cpu_cores": 8},
        "workload": {
            "sequence_length": 96,
            "global_batch_size": 8,
            "tokens": 96 * 8 * STEPS,
            "learning_rate": 3e-3,
            "data": {"train": str(tmp_path / "rows.jsonl")},
            "precision": "fp32",
        },
        "strategy": {"zero_stage": 1, "tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    }
    (tmp_path / "spec.yaml").write_text(json.dumps(spec), encoding="utf-8")
    gen = [str(runs.BIN / "dsforge"), "gen", "--spec", "spec.yaml", "--out", "run"]
    subprocess.run(gen, cwd=tmp_path, check=True, timeout=60)
    run = tmp_path / "run"
    config = json.loads((run / "deepspeed/ds_config.json").read_text(encoding="utf-8"))
    ranks.train(run, 8)

    assert config["tensor_parallel"] == {"autotp_size": 2}
    assert config["pipeline"] == {"stages": 2, "partition": [2, 2]}
    found = losses(run)
    assert found[-1] < found[0] - 0.2
    assert weights(run / "output/model").keys() == weights(model).keys()


def test_deepspeed_merges_the_ranks_of_all_stages(made: Made, tmp_path: Path) -> None:
    """Its converter asks the first stage how the matrices of every stage are sharded."""
    import torch

    from dsforge.train.checkpoints.universal_conversion import convert

    run = made("llama", (2, 2, 2))
    folder = run / f"output/checkpoints/global_step{STEPS}"
    out = convert(find_checkpoint(folder), tmp_path / "universal")
    exported = weights(run / "output/model")
    files = list(out.glob("zero/*/fp32.pt"))
    found = [torch.load(file, weights_only=True)["param"] for file in files]
    shapes = sorted(tuple(tensor.shape) for tensor in exported.values())

    assert verify(out) == []
    assert sorted(tuple(tensor.shape) for tensor in found) == shapes
    for tensor in found:  # a pipeline numbers its pieces
        near = [one for one in exported.values() if one.shape == tensor.shape]
        assert any(torch.equal(one, tensor.to(one.dtype)) for one in near)


def test_a_missing_tensor_rank_is_found(made: Made, tmp_path: Path) -> None:
    """`verify` names it, and a resume on other ranks is refused."""
    run = made("llama", (2, 2, 2))
    saved = run / f"output/checkpoints/global_step{STEPS}"
    folder = shutil.copytree(saved, tmp_path / saved.name)
    for file in folder.glob("*mp_rank_03*"):
        file.unlink()

    found = verify(folder)
    assert [finding.rule for finding in found] == ["parts-lacking"]
    assert re.search(r"the parts of `\S+` hold \d+ of \d+ along [01]", found[0].message)


def test_replicated_weights_are_equal_on_tensor_ranks(made: Made) -> None:
    """Norms, and the norms of heads, whose gradient each tensor rank has a part of."""
    import torch

    run = made("qwen3", (2, 2, 2))
    folder = run / f"output/checkpoints/global_step{STEPS}"
    compared = 0
    for file in folder.glob("layer_*-model_00-model_states.pt"):
        first = torch.load(file, weights_only=True)
        other = torch.load(str(file).replace("model_00", "model_01"), weights_only=True)
        for name, tensor in first.items():
            if "norm" in name:
                compared += 1
                assert torch.equal(tensor, other[name]), name
    assert compared == 4 * 4 + 1  # two norms and two of heads a layer, the last norm


def test_ranks_hold_what_the_estimate_says(made: Made) -> None:
    """Weights and optimizer states of each of the 8 ranks, to the last element."""
    sizes = (2, 2, 2)
    for kind in ("llama", "qwen3"):
        run = made(kind, sizes)
        folder = run / f"output/checkpoints/global_step{STEPS}"
        config = json.loads((run / "output/model/config.json").read_text(encoding="utf-8"))
        model = model_from_config(config, kind)
        layout = Layout(data_parallel_size=2, tensor_parallel_size=2, pipeline_parallel_size=2)
        for rank in range(layout.world_size):
            at = layout.coordinates(rank)
            stage = stages(model, 2)[at.pipeline]
            held = rank_parameters(model, workload(), layout, stage, copies_ends=True)
            number = at.pipeline * layout.tensor_parallel_size + at.tensor
            file = folder / f"zero_pp_rank_{at.data}_mp_rank_{number:02d}_optim_states.pt"
            own = [t.elements for n, t in tensors_in(Archive(file).value) if n.endswith("exp_avg")]

            assert sum(own) == pytest.approx(held.total / 2, abs=2), (kind, rank)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("kind", test_parity.TENSORS)
@pytest.mark.parametrize("precision", [{}, BF16], ids=["fp32", "bf16"])
def test_kinds(kind: str, stage: int, precision: dict[str, Any], made: Made) -> None:
    """Every kind with a plan and stages, under both ZeRO stages of the pipeline engine."""
    found = losses(made(kind, (1, 2, 2), stage, **precision))
    tolerance = 2e-2 if precision else TOLERANCE

    assert found == pytest.approx(losses(made(kind, (1, 1, 1), **precision)), abs=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt_neox", "mistral"])
def test_packs_recomputation_and_validation(kind: str, made: Made, tmp_path: Path) -> None:
    """Positions of packs reach every stage, sharded layers are recomputed, validation agrees."""
    job = {"packing": True, "sequence_length": 192, "gradient_checkpointing": True, "steps": STEPS}
    job["data"] = {"train": "data.jsonl", "validation_fraction": 0.2}
    model = made(kind, (1, 1, 1)).parent / "models" / kind
    outputs = []
    for sizes in ((1, 1, 1), (1, 2, 2)):
        folder = tmp_path / str(count(sizes))
        write_job(folder, model, sized(sizes), **job)
        ranks.train(folder, count(sizes))
        outputs.append(folder / "output")

    for figure in ("loss", "validation_loss", "gradient_norm"):
        alone, found = (runs.figures(output, figure) for output in outputs)
        assert found == pytest.approx(alone, abs=TOLERANCE), figure
        assert found


@pytest.mark.slow
def test_tensor_ranks_stay_in_step_under_dropout(made: Made, tmp_path: Path) -> None:
    """GPT-NeoX drops hidden states and attention scores: copies stay equal to the last bit."""
    import torch

    kind = "gpt_neox"
    model = shutil.copytree(made(kind, (1, 1, 1)).parent / "models" / kind, tmp_path / "model")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config |= {"hidden_dropout": 0.2, "attention_dropout": 0.2}
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    sizes, folder = (1, 2, 2), tmp_path / "run"
    job = {"steps": STEPS, "attention": "eager", "gradient_checkpointing": True}
    write_job(folder, model, sized(sizes), **job)
    ranks.train(folder, count(sizes))
    saved = folder / f"output/checkpoints/global_step{STEPS}"
    for file in saved.glob("layer_*-model_00-model_states.pt"):
        first = torch.load(file, weights_only=True)
        other = torch.load(str(file).replace("model_00", "model_01"), weights_only=True)
        for name in first:
            if "norm" in name or name.endswith(("dense.bias", "4h_to_h.bias")):
                assert torch.equal(first[name], other[name]), name
    assert losses(folder) != losses(made(kind, (1, 1, 1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "went_on"),
    [
        (((2, 1, 1), 3), ((2, 2, 2), 1)),
        (((2, 1, 2), 1), ((1, 2, 1), 2)),
        (((2, 2, 1), 2), ((1, 1, 2), 1)),
        (((1, 2, 2), 1), ((2, 1, 1), 3)),
        (((1, 2, 2), 1), ((1, 2, 2), 0)),
        (((1, 2, 1), 0), ((2, 1, 2), 1)),
        (((2, 1, 1), 0), ((1, 2, 2), 0)),
    ],
)
@pytest.mark.parametrize("precision", [{}, BF16], ids=["fp32", "bf16"])
def test_any_sizes_go_on_from_any(
    begun: tuple[Sizes, int],
    went_on: tuple[Sizes, int],
    precision: dict[str, Any],
    made: Made,
    tmp_path: Path,
) -> None:
    """Tensor ranks, stages, replicas and ZeRO stages change; the losses do not."""
    run = made("qwen2", *begun, **precision)
    again = resumed(run, tmp_path / "again", *went_on, **precision)

    assert losses(again) == pytest.approx(losses(run), abs=2e-2 if precision else TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("precision", [{}, BF16], ids=["fp32", "bf16"])
def test_without_zero_a_pipeline_resumes_on_its_own_ranks(
    kind: str, precision: dict[str, Any], made: Made, tmp_path: Path
) -> None:
    """Tied weights are in the files of layers, too: no optimizer has a copy of them."""
    run = made(kind, (1, 2, 2), 0, **precision)
    again = resumed(run, tmp_path / "again", (1, 2, 2), 0, **precision)

    assert losses(again) == losses(run)
