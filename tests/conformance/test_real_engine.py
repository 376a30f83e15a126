"""Every generated ds_config of every pair starts the unmodified engine, without a complaint.

The engine runs as rank 0 of the pair's world size with a tiny model of the same architecture. On a
machine without a GPU it builds its CPU versions of Adam at first use, once per user.
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pairs
import pytest
from sampled import each

from dsforge.artifacts import Artifact
from dsforge.huggingface import config_from_model, tiny
from dsforge.plan import Plan
from dsforge.render import render
from dsforge.specs import ModelSpec

deepspeed = pytest.importorskip("deepspeed")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1200),
    # torch renames functions of its own that DeepSpeed and torch.compile still call.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]

# What the engine says about this machine, about torch or about ZeRO with torch's own optimizers:
# none of it is about a key of the config.
EXPECTED = (
    "Setting accelerator to CPU",
    "using ZeRO with an untested optimizer",
    "is not available",
    "may not work on AMD CPUs",
)


class Complaints(logging.Handler):
    """Everything that DeepSpeed logs from WARNING on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message unless it is expected."""
        message = record.getMessage()
        if not any(part in message for part in EXPECTED):
            self.messages.append(message)


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    """The warnings and errors of DeepSpeed's logger during the test."""
    from deepspeed.utils import logger

    handler = Complaints()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def tiny_model(model: ModelSpec) -> torch.nn.Module:
    """A model of the same architecture with random weights, in fp32 as `from_config` makes it."""
    values = config_from_model(tiny(model))
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.fixture(autouse=True)
def fp16_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair's cards have fp16, whatever this machine's CPU says."""
    from deepspeed.accelerator import get_accelerator

    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)


def generated(name: str, folder: Path) -> tuple[Plan, list[Artifact], list[Artifact]]:
    """The plan of a pair, its ds_configs without NVMe and those with it."""
    plan = pairs.plan_of(name, folder)
    configs = [a for a in render(plan) if a.path.startswith("deepspeed/")]
    configs = [a for a in configs if a.path.endswith(".json")]
    on_disk = [config for config in configs if '"nvme"' in config.text]
    return plan, [config for config in configs if config not in on_disk], on_disk


def start(plan: Plan, artifact: Artifact) -> tuple[int, int]:
    """ZeRO stage and global batch of the engine that a ds_config starts at its real world size.

    Where stages share the model, that of one stage: the ranks that share the batch.
    """
    from dsforge.rehearse.fake_ranks import rank_of

    settings = json.loads(artifact.text)
    each = settings["train_micro_batch_size_per_gpu"] * settings["gradient_accumulation_steps"]
    ranks, left = divmod(settings["train_batch_size"], each)
    assert not left
    assert plan.cluster.gpus % ranks == 0
    with rank_of(ranks):
        model = tiny_model(plan.model)
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=json.loads(artifact.text)
        )
        found = engine.zero_optimization_stage(), engine.train_batch_size()
        engine.destroy()
    del engine, model
    gc.collect()
    return found


def wanted(artifact: Artifact) -> tuple[int, int]:
    """ZeRO stage and global batch that a ds_config asks for."""
    settings = json.loads(artifact.text)
    return settings["zero_optimization"]["stage"], settings["train_batch_size"]


@pytest.mark.parametrize("name", each(9, pairs.PAIRS))
def test_every_generated_config_starts_the_engine(
    name: str, tmp_path: Path, complaints: Complaints
) -> None:
    """The engine takes each ds_config at the real world size and agrees on the batch."""
    plan, configs, _ = generated(name, tmp_path)

    assert len(configs) > 1
    for artifact in configs:
        assert start(plan, artifact) == wanted(artifact), artifact.path
        assert complaints.messages == [], artifact.path


@pytest.mark.slow  # building async_io takes minutes
@pytest.mark.parametrize("name", [name for name in pairs.PAIRS if "nvme" in name])
def test_every_config_with_a_disk_starts_the_engine(
    name: str, tmp_path: Path, complaints: Complaints
) -> None:
    """The engine takes the NVMe variant too, with its aio block."""
    plan, _, configs = generated(name, tmp_path)

    assert configs
    for artifact in configs:
        assert start(plan, artifact) == wanted(artifact), artifact.path
        assert complaints.messages == [], artifact.path
