"""One rank of a tiny training run with one planted fault; `provoke.py` starts it.

usage: python victim.py FAULT          (alone, or through a launcher)
"""

from __future__ import annotations

import builtins
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

CONFIG: dict[str, Any] = {
    "train_batch_size": 4,
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
    "steps_per_print": 1,
}


class Tiny(torch.nn.Module):
    """An embedding of 32 tokens, one hidden layer, 32 classes."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(32, width)
        self.hidden = torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, 32)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of a batch."""
        logits = self.head(torch.relu(self.hidden(self.embedding(tokens))))
        return torch.nn.functional.cross_entropy(logits.view(-1, 32), labels.view(-1))


def rank() -> int:
    """The number of this process in the job."""
    return int(os.environ.get("RANK", "0"))


def train(
    *,
    config: Any = None,
    tokens: int = 32,
    labels: int = 32,
    steps: int = 4,
    each_step: Callable[[Any, int], None] = lambda _engine, _step: None,
    timeout_s: float = 60,
    **more: Any,
) -> Any:
    """The engine after a few steps on random tokens."""
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo", timeout=timedelta(seconds=timeout_s))
    model = more.pop("model", None) or Tiny()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config or CONFIG, **more
    )
    torch.manual_seed(rank())
    for step in range(steps):
        each_step(engine, step)
        batch = torch.randint(tokens, (2, 8)), torch.randint(labels, (2, 8))
        loss = engine(*batch)
        engine.backward(loss)
        engine.step()
        if rank() == 0:
            print(f"step {step + 1}/{steps} loss {float(loss):.4f}", flush=True)
    return engine


def with_settings(**settings: Any) -> dict[str, Any]:
    """The plain config with settings on top."""
    return {**CONFIG, **settings}


def zero(**settings: Any) -> dict[str, Any]:
    """The plain config with another ZeRO block."""
    return with_settings(zero_optimization=settings)


def only_on(number: int, act: Callable[[], None]) -> Callable[[Any, int], None]:
    """Something that one rank does before its third step."""

    def each_step(_engine: Any, step: int) -> None:
        if rank() == number and step == 2:
            act()

    return each_step


def fail_alone() -> None:
    """A mistake in the user's own code."""
    row: dict[str, str] = {}
    print(row["completion"])


def save() -> None:
    """A checkpoint of this world size."""
    train(config=for_world(), steps=1).save_checkpoint("checkpoint")


def load(**settings: Any) -> None:
    """The checkpoint of another run."""
    train(config=for_world(**settings), steps=1).load_checkpoint("checkpoint")


def for_world(**settings: Any) -> dict[str, Any]:
    """A config whose batch fits any world size."""
    return with_settings(train_batch_size=2 * world(), **settings)


def leave_early() -> None:
    """One rank goes home while the other waits for it."""
    engine = train(steps=1)
    if rank() == 0:
        engine.save_checkpoint("checkpoint")


def world() -> int:
    """Ranks of the job."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def address_space() -> None:
    """Take more memory than the process may have."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
    torch.zeros(8 * 2**30)


def cpu_adam() -> None:
    """An optimizer in host memory, whose op has to be built."""
    offload = {"device": "cpu"}
    adam = {"type": "AdamW", "params": {"lr": 1e-3}}
    settings = zero(stage=2, offload_optimizer=offload) | {"optimizer": adam}
    train(config=settings | {"train_batch_size": 2 * world()})


def client_optimizer() -> None:
    """An optimizer of torch with CPU offload."""
    settings = zero(stage=2, offload_optimizer={"device": "cpu"})
    settings.pop("optimizer")
    model = Tiny()
    train(config=settings, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))


def nvme() -> None:
    """Parameters on disk."""
    place = {"device": "nvme", "nvme_path": "nvme", "buffer_size": 4096, "buffer_count": 5}
    block = {"stage": 3, "offload_param": place, "stage3_param_persistence_threshold": 0}
    train(config=for_world(zero_optimization=block))


def diverge() -> None:
    """A learning rate from which no model comes back."""
    adam = {"type": "AdamW", "params": {"lr": 1e30, "torch_adam": True}}
    train(config=with_settings(optimizer=adam), steps=5)


def no_sync() -> None:
    """Accumulation by hand under ZeRO-2."""
    engine = train(steps=1)
    with engine.no_sync():
        pass


def fall_back() -> None:
    """Train without something that is nice to have, and say so at length, as many programs do."""
    for name in ("flash_attn", "triton_kernels_of_tomorrow"):
        try:
            importlib.import_module(name)
        except ImportError:
            logging.exception("%s cannot be imported; going on without it", name)
    try:
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError) as error:
        logging.warning("no GPU (%s): training on the CPU", error)
    train(steps=6)


def show_samples() -> None:
    """Train, and show answers of a model that was tuned on the documentation of exceptions."""
    kinds = [kind for kind in vars(builtins).values() if isinstance(kind, type)]

    def each_step(_engine: Any, step: int) -> None:
        for kind in kinds[step::7]:
            print(f"sample: What does {kind.__name__} mean? -> {(kind.__doc__ or '')[:90]!r}")

    train(steps=6, each_step=each_step)


def trainer() -> None:
    """A few steps of the Hugging Face Trainer."""
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    block = {"stage": 2, "overlap_comm": True}
    config = {"zero_optimization": block, "train_micro_batch_size_per_gpu": "auto"}
    arguments = TrainingArguments(
        "out", max_steps=4, logging_steps=1, use_cpu=True, deepspeed=config, report_to=[]
    )
    rows = [{"input_ids": [5, 6, 7, row + 8], "labels": [5, 6, 7, row + 8]} for row in range(64)]
    Trainer(AutoModelForCausalLM.from_pretrained("model"), arguments, train_dataset=rows).train()


def pipeline(stage: int = 2, steps: int = 0) -> None:
    """Pipeline stages: with ZeRO-2 they are refused."""
    import deepspeed
    from deepspeed.pipe import PipelineModule

    deepspeed.init_distributed(dist_backend="gloo")
    layers = [torch.nn.Linear(8, 8) for _ in range(4)]
    module = PipelineModule(layers, num_stages=2, loss_fn=torch.nn.MSELoss())
    settings = {"train_batch_size": 2, "train_micro_batch_size_per_gpu": 2}
    engine, *_ = deepspeed.initialize(
        model=module,
        model_parameters=module.parameters(),
        config=zero(stage=stage) | settings,
    )
    for _ in range(steps):
        engine.train_batch(iter([(torch.ones(2, 8), torch.zeros(2, 8))]))


def partitioned_access() -> None:
    """A ZeRO-3 parameter used outside of its module."""
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    with deepspeed.zero.Init():
        model = Tiny()
    torch.nn.functional.embedding(torch.zeros(1, dtype=torch.long), model.embedding.weight)


def unused_parameters() -> None:
    """A module that torch's own data parallelism never reaches."""
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.ModuleList([Tiny(), Tiny()])[0])
    wrapped = torch.nn.parallel.DistributedDataParallel(Both())
    for _ in range(2):
        wrapped(torch.zeros(1, 8)).sum().backward()
    del model


class Both(torch.nn.Module):
    """Two layers of which one is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """What the first layer makes of them."""
        return self.used(values)


def stall() -> None:
    """A collective that the last rank comes to too late."""
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=5))
    if rank() == world() - 1:
        time.sleep(30)
    torch.distributed.all_reduce(torch.ones(2**20))


def crash() -> None:
    """Read from address zero."""
    import ctypes

    ctypes.string_at(0)


def wait_for_signal() -> None:
    """Tell the launcher to end, as a scheduler does."""
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(30)


FAULTS: dict[str, Callable[[], Any]] = {
    "healthy": lambda: train(steps=6),
    "healthy-zero3": lambda: train(config=zero(stage=3), steps=6),
    "healthy-pipeline": lambda: pipeline(stage=1, steps=3),
    "healthy-fallback": fall_back,
    "healthy-samples": show_samples,
    "healthy-trainer": trainer,
    "batch-arithmetic": lambda: train(config=with_settings(gradient_accumulation_steps=4)),
    "batch-zero": lambda: train(
        config=with_settings(train_batch_size=1, train_micro_batch_size_per_gpu=None)
    ),
    "batch-division": lambda: train(config=with_settings(train_micro_batch_size_per_gpu=0)),
    "unknown-key": lambda: train(config=zero(stage=2, overlap_com=True)),
    "fractional": lambda: train(config=zero(stage=3, stage3_prefetch_bucket_size=15099494.4)),
    "two-precisions": lambda: train(
        config=with_settings(fp16={"enabled": True}, bf16={"enabled": True})
    ),
    "config-json": lambda: train(config="ds_config.json"),
    "client-optimizer": client_optimizer,
    "pipeline": pipeline,
    "no-sync": no_sync,
    "kill": lambda: train(each_step=only_on(1, lambda: os.kill(os.getpid(), signal.SIGKILL))),
    "address-space": address_space,
    "stall": stall,
    "alone": lambda: train(each_step=only_on(1, fail_alone)),
    "vocabulary": lambda: train(tokens=64),
    "labels": lambda: train(labels=64),
    "fp16": lambda: train(config=with_settings(fp16={"enabled": True})),
    "untested": lambda: train(
        config=with_settings(optimizer={"type": "SGD", "params": {"lr": 0.1}})
    ),
    "diverge": diverge,
    "save": save,
    "load": load,
    "universal": lambda: load(checkpoint={"load_universal": True}),
    "leave-early": leave_early,
    "cpu-adam": cpu_adam,
    "nvme": nvme,
    "partitioned": partitioned_access,
    "unused": unused_parameters,
    "crash": lambda: train(each_step=only_on(1, crash)),
    "sigterm": lambda: train(each_step=only_on(0, wait_for_signal)),
}

if __name__ == "__main__":
    named = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    FAULTS[named[0]]()
