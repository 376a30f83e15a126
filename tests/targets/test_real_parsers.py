"""Files for trainers, read by the code of those trainers where it is installed."""

from __future__ import annotations

import ast
import inspect
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from target_cases import TargetCase, cases_of, plan_of, written

pytestmark = pytest.mark.filterwarnings("default")  # those packages warn of each other


def ids(case: TargetCase) -> str:
    """The name of a case."""
    return case.id


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine counts as one with GPUs, and nobody asks the network."""
    if find_spec("transformers") is not None:
        monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")


def shards_alike(case: TargetCase, arguments: Any) -> None:
    """TrainingArguments say what the plan says."""
    strategy = plan_of(case).strategy
    assert arguments.per_device_train_batch_size == strategy.micro_batch_size
    assert arguments.gradient_accumulation_steps == strategy.gradient_accumulation_steps
    assert arguments.bf16
    if strategy.engine.name == "deepspeed":
        from transformers.integrations import HfTrainerDeepSpeedConfig

        config = HfTrainerDeepSpeedConfig(arguments.deepspeed)
        config.mismatches = []
        assert config.config["zero_optimization"]["stage"] == strategy.zero_stage
        return
    assert arguments.fsdp
    assert arguments.fsdp_config["reshard_after_forward"] == (strategy.zero_stage == 3)
    whole = strategy.recompute != "none"
    assert arguments.fsdp_plugin_args["activation_checkpointing"] == whole
    if strategy.gradient_accumulation_steps > 1:
        accelerates = arguments.accelerator_config.gradient_accumulation_kwargs
        assert accelerates == {"sync_each_batch": True}


@pytest.mark.parametrize("case", cases_of("transformers"), ids=ids)
def test_transformers_parses_its_arguments(
    case: TargetCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HfArgumentParser takes every key of the JSON, and the values are those of the plan."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("datasets")
    folder = written(case, tmp_path)
    monkeypatch.chdir(tmp_path)
    job_class = runpy.run_path(str(folder / "train.py"))["Job"]
    parser = transformers.HfArgumentParser((job_class, transformers.TrainingArguments))

    job, arguments = parser.parse_json_file(str(folder / "training_arguments.json"))

    shards_alike(case, arguments)
    plan = plan_of(case)
    assert job.sequence_length == plan.workload.sequence_length
    assert job.lora_rank == (plan.workload.lora.rank if plan.workload.lora else 0)
    assert arguments.max_steps == plan.workload.steps


@pytest.mark.parametrize("case", cases_of("accelerate-fsdp", "accelerate-fsdp1"), ids=ids)
def test_accelerate_loads_its_config(case: TargetCase, tmp_path: Path) -> None:
    """`load_config_from_file` refuses unknown keys; `accelerate launch` makes a plugin of it."""
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    path = str(written(case, tmp_path) / "accelerate.yaml")
    config = load_config_from_file(path)
    arguments = launch_command_parser().parse_args(["--config_file", path, "script.py"])
    arguments, _, _ = _validate_launch_command(arguments)

    strategy = plan_of(case).strategy
    version = 1 if case.program.endswith("1") else 2
    assert int(config.fsdp_config["fsdp_version"]) == version
    assert config.num_processes == strategy.layout.world_size
    assert arguments.use_fsdp
    assert str(arguments.fsdp_version) == str(version)
    if strategy.layout.model_ranks > 1:
        assert arguments.use_parallelism_config
        assert arguments.parallelism_config_tp_size == strategy.layout.tensor_parallel_size
        assert arguments.parallelism_config_cp_size == strategy.layout.context_parallel_size


@pytest.mark.parametrize("case", cases_of("trl"), ids=ids)
def test_trl_parses_its_config(
    case: TargetCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL's own parser of the sft script takes the YAML."""
    pytest.importorskip("trl")
    from trl.scripts.sft import make_parser

    folder = written(case, tmp_path)
    monkeypatch.chdir(tmp_path)
    parser = make_parser()
    found = parser.parse_args_and_config(["--config", str(folder / "sft.yaml")])
    _script, arguments, model, data = found[:4]

    shards_alike(case, arguments)
    work = plan_of(case).workload
    assert arguments.max_length == work.sequence_length
    assert arguments.packing
    assert model.use_peft == (work.method == "lora")
    assert model.load_in_4bit == (work.base == "nf4")
    assert data.datasets[0].data_files


@pytest.mark.parametrize("case", cases_of("axolotl"), ids=ids)
def test_axolotl_validates_its_config(
    case: TargetCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Axolotl's pydantic schema accepts the YAML, validators included."""
    pytest.importorskip("axolotl")
    import yaml
    from axolotl.utils.schemas.config import AxolotlInputConfig

    folder = written(case, tmp_path)
    monkeypatch.chdir(tmp_path)
    values = yaml.safe_load((folder / "axolotl.yaml").read_text())
    config = AxolotlInputConfig(**values)

    strategy = plan_of(case).strategy
    unknown = set(values) - set(AxolotlInputConfig.model_fields)
    assert unknown == set()
    assert config.micro_batch_size == strategy.micro_batch_size
    assert config.sequence_len == plan_of(case).workload.sequence_length
    assert isinstance(config.adam_epsilon, float)
    if strategy.engine.name == "fsdp":
        assert config.fsdp_config.reshard_after_forward == (strategy.zero_stage == 3)
        assert config.tensor_parallel_size == strategy.layout.tensor_parallel_size


@pytest.mark.parametrize("case", cases_of("llama-factory"), ids=ids)
def test_llama_factory_parses_its_arguments(
    case: TargetCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every key belongs to one of LLaMA-Factory's dataclasses, whose parser takes the values."""
    pytest.importorskip("llamafactory")
    import yaml
    from llamafactory.hparams import parser

    folder = written(case, tmp_path)
    monkeypatch.chdir(tmp_path)
    values = yaml.safe_load((folder / "train.yaml").read_text())
    found = parser._parse_train_args(values)

    model, data, arguments, tuning = found[:4]
    shards_alike(case, arguments)
    work = plan_of(case).workload
    assert data.cutoff_len == work.sequence_length - 1  # packing leaves one place for padding
    assert tuning.finetuning_type == work.method
    assert model.quantization_bit == (4 if work.base == "nf4" else None)


@pytest.mark.parametrize("case", cases_of("torchtitan"), ids=ids)
def test_torchtitan_builds_its_config(
    case: TargetCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ConfigManager finds the config function and validates it; ParallelDims takes the sizes."""
    pytest.importorskip("tyro")
    pytest.importorskip("torchtitan")
    pytest.importorskip("triton")
    from torchtitan.config import ConfigManager

    folder = written(case, tmp_path)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "planned", raising=False)
    config = ConfigManager().parse_args(["--module", "planned", "--config", "planned"])

    layout, sizes = plan_of(case).strategy.layout, config.parallelism
    assert sizes.data_parallel_shard_degree == layout.data_parallel_size
    assert sizes.tensor_parallel_degree == layout.tensor_parallel_size
    assert sizes.pipeline_parallel_degree == layout.pipeline_parallel_size
    assert sizes.context_parallel_degree == layout.context_parallel_size
    assert config.training.seq_len == plan_of(case).workload.sequence_length
    assert config.training.global_batch_size == plan_of(case).strategy.global_batch_size


@pytest.mark.parametrize("case", cases_of("torchtune"), ids=ids)
def test_torchtune_instantiates_what_it_names(case: TargetCase, tmp_path: Path) -> None:
    """Every `_component_` is there and takes the arguments; keys are read by the recipe."""
    pytest.importorskip("omegaconf")
    pytest.importorskip("torchtune", exc_type=ImportError)  # not with every torch
    from omegaconf import DictConfig, OmegaConf
    from torchtune.config._utils import _get_component_from_path

    path = written(case, tmp_path) / "recipe.yaml"
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)

    for key in config:
        if isinstance(config[key], DictConfig) and "_component_" in config[key]:
            values = dict(config[key])
            component = values.pop("_component_")
            if component.startswith("bitsandbytes"):
                continue
            found = _get_component_from_path(component)
            names = inspect.signature(found).parameters
            takes_all = any(each.kind == each.VAR_KEYWORD for each in names.values())
            assert takes_all or set(values) <= set(names), component
    assert isinstance(config.optimizer.lr, float)


@pytest.mark.parametrize("case", cases_of("ms-swift"), ids=ids)
def test_ms_swift_parses_its_arguments(
    case: TargetCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ms-swift's YAML reader and its dataclasses take every key."""
    pytest.importorskip("swift")
    from dataclasses import fields

    from swift.cli.main import parse_yaml_args
    from transformers import HfArgumentParser

    folder = written(case, tmp_path)
    monkeypatch.chdir(tmp_path)
    megatron = plan_of(case).strategy.back_end == "megatron"
    if megatron:
        pytest.importorskip("mcore_bridge")
        from swift.megatron.arguments import MegatronSftArguments as Arguments
    else:
        from swift.arguments import SftArguments as Arguments
    words = [str(next(folder.glob("*.yaml")))]
    parse_yaml_args(words)
    keys = {word[2:] for word in words if word.startswith("--")}

    assert keys <= {field.name for field in fields(Arguments)}
    monkeypatch.setattr(Arguments, "__post_init__", lambda self: None)
    found = HfArgumentParser([Arguments]).parse_args_into_dataclasses(words)[0]
    assert found.max_length == plan_of(case).workload.sequence_length


@pytest.mark.parametrize("case", cases_of("lightning"), ids=ids)
def test_lightning_takes_the_strategy(
    case: TargetCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strategy of the script can be made, and the Trainer has every argument."""
    lightning = pytest.importorskip("lightning")
    pytest.importorskip("datasets")
    folder = written(case, tmp_path)
    monkeypatch.chdir(tmp_path)
    script = runpy.run_path(str(folder / "train.py"))

    made = script["strategy"]()
    kind = type(made).__name__
    strategy = plan_of(case).strategy
    tensor = strategy.layout.tensor_parallel_size > 1
    expected = {"deepspeed": "DeepSpeedStrategy", "fsdp": "FSDPStrategy"}[strategy.engine.name]
    assert kind == ("ModelParallelStrategy" if tensor else expected)
    known = inspect.signature(lightning.Trainer.__init__).parameters
    assert keywords(folder / "train.py", "Trainer") <= set(known)


@pytest.mark.parametrize("case", cases_of("colossalai"), ids=ids)
def test_colossalai_has_the_plugin(case: TargetCase, tmp_path: Path) -> None:
    """The plugin exists and has every argument that the script gives it."""
    plugins = pytest.importorskip("colossalai.booster.plugin")
    path = written(case, tmp_path) / "train.py"
    name = next(word for word in path.read_text().split() if word.endswith("Plugin"))

    known = inspect.signature(getattr(plugins, name).__init__).parameters

    assert keywords(path, name) <= set(known)


def keywords(path: Path, function: str) -> set[str]:
    """Names of the keyword arguments of the calls of a function in a script."""
    return {
        str(keyword.arg)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", "") == function or getattr(node.func, "attr", "") == function)
        for keyword in node.keywords
    }
