"""The values of a ds_config: batch, precision, optimizer, sharding, offload."""

from __future__ import annotations

import json
from typing import Any

import plans
import pytest

from dsforge.errors import RenderError
from dsforge.layout import Layout
from dsforge.plan import Plan
from dsforge.render import render
from dsforge.render.bundles import bundles
from dsforge.render.deepspeed import zero_template
from dsforge.strategy import Strategy


def configs(plan: Plan) -> dict[str, Any]:
    """Every rendered JSON of the deepspeed folder by file name."""
    found = [a for a in render(plan) if a.path.startswith("deepspeed/")]
    found = [a for a in found if a.path.endswith(".json")]
    return {a.path.removeprefix("deepspeed/"): json.loads(a.text) for a in found}


def chosen(**changed: Any) -> Any:
    """ds_config.json of a changed plan."""
    return configs(plans.plan(**changed))["ds_config.json"]


def test_every_variant_and_the_choice_are_written() -> None:
    """The tree of the run folder."""
    assert set(configs(plans.plan())) == {
        "ds_config.json",
        *(f"{name}.json" for name in plans.ZERO),
    }


def test_an_illegal_variant_is_not_written() -> None:
    """Without a disk there is no file for NVMe."""
    assert "zero3_nvme.json" not in configs(plans.plan(on=plans.cluster(nvme=None)))


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_batch_sizes_agree(tensor: int) -> None:
    """train_batch_size is micro x accumulation x data-parallel size."""
    config = chosen(tensor_parallel_size=tensor, micro_batch_size=3, gradient_accumulation_steps=5)

    assert config["train_batch_size"] == 3 * 5 * (16 // tensor)
    assert config["train_micro_batch_size_per_gpu"] == 3
    assert config["gradient_accumulation_steps"] == 5
    assert config.get("tensor_parallel") == ({"autotp_size": tensor} if tensor > 1 else None)


def test_a_plan_with_stages_says_so_to_the_engine() -> None:
    """Without the block, ranks of a pipeline would each train the whole model."""
    layout = Layout(data_parallel_size=8, pipeline_parallel_size=2)
    how = plans.deepspeed_strategy(plans.cluster(), zero_stage=1)
    config = chosen(choice=how.model_copy(update={"layout": layout}))

    assert config["pipeline"] == {"stages": 2, "partition": [16, 16]}
    assert "pipeline" not in chosen()


@pytest.mark.parametrize(
    ("precision", "blocks"),
    [("bf16", {"bf16"}), ("fp16", {"fp16"}), ("fp32", set()), ("fp8", {"bf16"})],
)
def test_precision(precision: str, blocks: set[str]) -> None:
    """One block or none; fp8 is Megatron's, DeepSpeed then computes in bf16."""
    config = chosen(work=plans.workload(precision=precision))

    assert {"bf16", "fp16"} & set(config) == blocks
    assert all(config[block]["enabled"] is True for block in blocks)


def test_the_fp16_scaler_can_recover() -> None:
    """Dynamic, starting low enough that the first steps are not all skipped."""
    scaler = chosen(work=plans.workload(precision="fp16"))["fp16"]

    assert scaler["loss_scale"] == 0
    assert scaler["initial_scale_power"] <= 16
    assert scaler["min_loss_scale"] >= 1


@pytest.mark.parametrize(
    ("optimizer", "name", "keys"),
    [
        ("adamw", "AdamW", {"lr", "betas", "eps", "weight_decay"}),
        ("lion", "Lion", {"lr", "betas", "weight_decay"}),
        ("muon", "Muon", {"lr", "betas", "eps", "momentum", "weight_decay"}),
        ("sgd", "SGD", {"lr", "momentum", "weight_decay"}),
        ("adafactor", "Adafactor", {"lr", "weight_decay"}),
    ],
)
def test_optimizers(optimizer: str, name: str, keys: set[str]) -> None:
    """Each with its own parameters and no other; torch's own need ZeRO's consent."""
    config = chosen(work=plans.workload(optimizer=optimizer))

    assert config["optimizer"]["type"] == name
    assert set(config["optimizer"]["params"]) == keys
    assert config["optimizer"]["params"]["lr"] == 2e-5
    assert config.get("zero_allow_untested_optimizer", False) == (name in {"SGD", "Adafactor"})


def test_cpu_ranks_take_torchs_adam() -> None:
    """It needs no compiler; a GPU cluster keeps DeepSpeed's own, offloaded or not."""
    on_cpu = configs(plans.plan(on=plans.cpu_cluster()))
    on_gpu = configs(plans.plan())

    assert all(c["optimizer"]["params"]["torch_adam"] is True for c in on_cpu.values())
    assert not any("torch_adam" in c["optimizer"]["params"] for c in on_gpu.values())


def test_sizes_come_from_the_plan_as_integers() -> None:
    """Every size of the ZeRO block is the plan's; the engine refuses fractions."""
    block = configs(plans.plan())["zero3.json"]["zero_optimization"]
    sizes = {key: block[key] for key in block if key.endswith(("_size", "threshold", "parameters"))}

    assert sizes == {
        "reduce_bucket_size": plans.BUCKETS.reduce_bucket_size,
        "stage3_prefetch_bucket_size": plans.BUCKETS.prefetch_bucket_size,
        "stage3_param_persistence_threshold": plans.BUCKETS.persistence_threshold,
        "stage3_max_live_parameters": plans.BUCKETS.max_live_parameters,
        "sub_group_size": plans.BUCKETS.sub_group_size,
    }
    assert all(isinstance(size, int) for size in sizes.values())


def test_zero_3_can_save_whole_weights() -> None:
    """Without this key a ZeRO-3 run ends with empty tensors."""
    for name, config in configs(plans.plan()).items():
        whole = config["zero_optimization"].get("stage3_gather_16bit_weights_on_model_save", False)

        assert whole == name.startswith("zero3")


@pytest.mark.parametrize(
    ("file", "optimizer", "parameters"),
    [
        ("zero2.json", None, None),
        ("zero2_offload.json", "cpu", None),
        ("zero3_offload.json", "cpu", "cpu"),
        ("zero3_nvme.json", "nvme", "nvme"),
    ],
)
def test_offload_blocks(file: str, optimizer: str | None, parameters: str | None) -> None:
    """What is moved stands there, with its device; what is not has no block."""
    block = configs(plans.plan())[file]["zero_optimization"]

    assert block.get("offload_optimizer", {}).get("device") == optimizer
    assert block.get("offload_param", {}).get("device") == parameters


def test_nvme_settings() -> None:
    """Path, buffers and queue of the disk are the plan's."""
    config = configs(plans.plan())["zero3_nvme.json"]
    block = config["zero_optimization"]

    assert block["offload_optimizer"]["nvme_path"] == plans.NVME.path
    assert block["offload_param"]["buffer_size"] == plans.AIO.parameter_buffer_size
    assert config["aio"]["queue_depth"] == plans.AIO.queue_depth


def test_the_loop_owns_schedule_and_checkpointing() -> None:
    """Neither block is in any file."""
    for config in configs(plans.plan()).values():
        assert not {"scheduler", "activation_checkpointing"} & set(config)


def strategy(stage: int, optimizer: str, parameters: str) -> Strategy:
    """A strategy with this way of sharding."""
    return Strategy(
        layout=Layout(),
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        zero_stage=stage,
        offload_optimizer=optimizer,
        offload_parameters=parameters,
    )


@pytest.mark.parametrize(
    ("stage", "optimizer", "parameters", "name"),
    [
        (0, "none", "none", "zero0"),
        (1, "none", "none", "zero1"),
        (1, "cpu", "none", "zero1_offload"),
        (2, "cpu", "none", "zero2_offload"),
        (3, "none", "none", "zero3"),
        (3, "cpu", "none", "zero3_offload"),
        (3, "none", "cpu", "zero3_offload"),
        (3, "cpu", "nvme", "zero3_nvme"),
        (3, "nvme", "none", "zero3_nvme"),
    ],
)
def test_each_way_of_sharding_has_its_template(
    stage: int, optimizer: str, parameters: str, name: str
) -> None:
    """A person finds the template by its name, and it renders."""
    picked = strategy(stage, optimizer, parameters)
    config = chosen(choice=picked)

    assert zero_template(picked) == f"deepspeed/{name}.json.j2"
    assert config["zero_optimization"]["stage"] == stage
    assert ("offload_optimizer" in config["zero_optimization"]) == (optimizer != "none")
    assert ("offload_param" in config["zero_optimization"]) == (parameters != "none")


@pytest.mark.parametrize(
    ("stage", "optimizer", "parameters"),
    [(0, "cpu", "none"), (1, "nvme", "none"), (2, "none", "cpu"), (2, "nvme", "none")],
)
def test_what_deepspeed_ignores_in_silence_is_refused(
    stage: int, optimizer: str, parameters: str
) -> None:
    """Below stage 3 the engine takes such a block and does nothing with it."""
    with pytest.raises(RenderError, match="offload"):
        zero_template(strategy(stage, optimizer, parameters))


def test_under_megatron_the_fastest_fitting_variant_is_the_ds_config() -> None:
    """ds_config.json then holds what one would use without Megatron; none where nothing fits."""
    on = plans.cluster()
    plan = plans.plan(on=on, choice=plans.megatron_strategy(on))
    slow, fast = plans.priced(plan.variants[0].priced.strategy), plan.variants[2].priced
    fast = plans.priced(fast.strategy, step_s=1.0)
    unfit = plans.priced(plan.variants[1].priced.strategy, step_s=0.1, fits=False)
    variants = [
        plan.variants[0].model_copy(update={"priced": slow}),
        plan.variants[1].model_copy(update={"priced": unfit}),
        plan.variants[2].model_copy(update={"priced": fast}),
    ]
    written = plan.model_copy(update={"variants": tuple(variants)})
    config = configs(written)["ds_config.json"]

    assert [bundle.priced for bundle in bundles(written)] == [plan.choice, fast]
    assert config["zero_optimization"]["stage"] == fast.strategy.zero_stage == 3
    alone = plan.model_copy(update={"variants": (variants[1],)})
    assert set(configs(alone)) == {"zero2.json"}


@pytest.mark.parametrize(("optimizer", "allowed"), [("adamw", True), ("muon", False)])
def test_muon_gets_whole_gradients(optimizer: str, allowed: bool) -> None:
    """The engine refuses Muon together with reduce_scatter."""
    config = chosen(work=plans.workload(optimizer=optimizer))

    assert config["zero_optimization"]["reduce_scatter"] is allowed
