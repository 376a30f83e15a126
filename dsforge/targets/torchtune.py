"""torchtune: the YAML of its distributed recipes for full training, LoRA and QLoRA."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.plan import Plan
from dsforge.render.deepspeed import ADAM_BETAS, ADAM_EPSILON
from dsforge.render.launch import Script
from dsforge.specs import AdapterTarget, LoraSpec, Optimizer
from dsforge.targets.run import Run, beyond, run_of
from dsforge.targets.target import Target, TargetFile

NAME = "torchtune"


class Builder(NamedTuple):
    """A model of torchtune: its module, builder, tokenizer, and the kind of its checkpoints."""

    module: str
    name: str
    tokenizer: str
    kind: str


# By kind, layers and hidden size (torchtune 0.6.1, models/*/_model_builders.py).
BUILDERS: dict[tuple[str, int, int], Builder] = {
    ("llama", 32, 4096): Builder("llama3_1", "llama3_1_8b", "llama3", "LLAMA3"),
    ("llama", 80, 8192): Builder("llama3_1", "llama3_1_70b", "llama3", "LLAMA3"),
    ("llama", 126, 16384): Builder("llama3_1", "llama3_1_405b", "llama3", "LLAMA3"),
    ("llama", 16, 2048): Builder("llama3_2", "llama3_2_1b", "llama3", "LLAMA3_2"),
    ("llama", 28, 3072): Builder("llama3_2", "llama3_2_3b", "llama3", "LLAMA3_2"),
    ("mistral", 32, 4096): Builder("mistral", "mistral_7b", "mistral", "MISTRAL"),
    ("qwen2", 24, 896): Builder("qwen2_5", "qwen2_5_0_5b", "qwen2_5", "QWEN2"),
    ("qwen2", 28, 1536): Builder("qwen2_5", "qwen2_5_1_5b_base", "qwen2_5", "QWEN2"),
    ("qwen2", 28, 3584): Builder("qwen2_5", "qwen2_5_7b_base", "qwen2_5", "QWEN2"),
    ("qwen2", 64, 5120): Builder("qwen2_5", "qwen2_5_32b_base", "qwen2_5", "QWEN2"),
    ("qwen2", 80, 8192): Builder("qwen2_5", "qwen2_5_72b_base", "qwen2_5", "QWEN2"),
    ("gemma", 18, 2048): Builder("gemma", "gemma_2b", "gemma", "GEMMA"),
    ("gemma", 28, 3072): Builder("gemma", "gemma_7b", "gemma", "GEMMA"),
    ("gemma2", 26, 2304): Builder("gemma2", "gemma2_2b", "gemma", "GEMMA2"),
    ("gemma2", 42, 3584): Builder("gemma2", "gemma2_9b", "gemma", "GEMMA2"),
    ("phi3", 32, 3072): Builder("phi3", "phi3_mini", "phi3_mini", "PHI3_MINI"),
}
UNKNOWN = Builder("MODULE", "MODEL", "TOKENIZER", "KIND")
FILE_BYTES = 5_000_000_000  # of the files in which published weights are stored
LLAMA_2_WORDS = 32_000  # its vocabulary; later ones of the same shape have 128,256
LLAMA_2: dict[int, Builder] = {
    32: Builder("llama2", "llama2_7b", "llama2", "LLAMA2"),
    40: Builder("llama2", "llama2_13b", "llama2", "LLAMA2"),
    80: Builder("llama2", "llama2_70b", "llama2", "LLAMA2"),
}
OPTIMIZERS: dict[Optimizer, str] = {
    "adamw": "torch.optim.AdamW",
    "adamw_8bit": "bitsandbytes.optim.AdamW8bit",
    "paged_adamw_8bit": "bitsandbytes.optim.PagedAdamW8bit",
    "sgd": "torch.optim.SGD",
}
ATTENTION: dict[AdapterTarget, str] = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "output_proj",
}


class TokenizerFiles(NamedTuple):
    """Files of a tokenizer in the folder of the model."""

    path: str
    merges: str = ""


SENTENCEPIECE = TokenizerFiles("/tokenizer.model")
TOKENIZERS: dict[str, TokenizerFiles] = {
    "QWEN2": TokenizerFiles("/vocab.json", "/merges.txt"),
    "LLAMA3": TokenizerFiles("/original/tokenizer.model"),
    "LLAMA3_2": TokenizerFiles("/original/tokenizer.model"),
}


class LoraValues(NamedTuple):
    """Adapters as torchtune's builders take them."""

    modules: tuple[str, ...]
    on_mlp: bool
    rank: int
    alpha: float
    dropout: float


class TuneContext(NamedTuple):
    """Fields of for/torchtune/recipe.yaml.j2."""

    builder: Builder
    tokenizer: TokenizerFiles
    builder_name: str  # with `lora_` or `qlora_`
    known: bool
    model: str
    files: str  # number of files of the weights, five digits
    data: str
    kind: str
    holds_messages: bool
    holds_prompts: bool
    placeholder_data: bool
    sequence_length: int
    lora: LoraValues | None
    batch_size: int
    gradient_accumulation_steps: int
    epochs: int
    max_steps: int | None
    optimizer: str
    learning_rate: float
    weight_decay: float
    betas: tuple[float, float] | None
    epsilon: float
    clip: float | None
    warmup_steps: int
    checkpointing: bool
    offload: bool
    tensor_parallel_size: int | None  # none: no tensor parallelism
    device: str
    on_cuda: bool
    seed: int
    output: str


class TuneStart(NamedTuple):
    """Fields of for/torchtune/run.sh.j2."""

    script: Script
    recipe: str


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The YAML of the recipe, and what starts its ranks."""
    run = run_of(plan)
    recipe = "full_finetune_distributed" if run.lora is None else "lora_finetune_distributed"
    start = TuneStart(run.script, recipe)
    return (
        TargetFile("recipe.yaml", _context(run)),
        TargetFile("run.sh", start, executable=True),
    )


def _context(run: Run) -> TuneContext:
    """The recipe; its batch size is that of a rank's forward."""
    builder, work, setup, job = _builder(run.plan), run.workload, run.setup, run.job
    adapted = {"none": "", "lora": "lora_", "qlora": "qlora_"}[setup.adapter]
    return TuneContext(
        builder=builder,
        tokenizer=TOKENIZERS.get(builder.kind, SENTENCEPIECE),
        builder_name=f"{adapted}{builder.name}",
        known=builder != UNKNOWN,
        model=job.model,
        files=f"{-(-2 * run.plan.parameters // FILE_BYTES):05}",
        data=run.data,
        kind=run.data_format,
        holds_messages=job.data.shape == "messages",
        holds_prompts=job.data.shape == "prompt",
        placeholder_data=run.places[0],
        sequence_length=job.sequence_length,
        lora=_adapters(run.lora),
        batch_size=run.strategy.micro_batch_size,
        gradient_accumulation_steps=run.strategy.gradient_accumulation_steps,
        epochs=max(1, round(job.epochs)),
        max_steps=job.steps,
        optimizer=OPTIMIZERS[work.optimizer],
        learning_rate=work.learning_rate,
        weight_decay=work.weight_decay,
        betas=None if work.optimizer == "sgd" else ADAM_BETAS,
        epsilon=ADAM_EPSILON,
        clip=work.gradient_clipping or None,
        warmup_steps=job.warmup_steps,
        checkpointing=setup.recompute != "none",
        offload=setup.offload_parameters == "cpu",
        tensor_parallel_size=None
        if setup.tensor_parallel_size == 1
        else setup.tensor_parallel_size,
        device="cpu" if run.plan.cluster.gpu.is_cpu else "cuda",
        on_cuda=not run.plan.cluster.gpu.is_cpu,
        seed=work.seed,
        output=job.output,
    )


def _builder(plan: Plan) -> Builder:
    """The builder of the plan's model; placeholders where torchtune has none of its size."""
    model = plan.model
    if model.model_type in (None, "llama") and model.vocab_size == LLAMA_2_WORDS:
        return LLAMA_2.get(model.layers, UNKNOWN)
    return BUILDERS.get((model.model_type or "llama", model.layers, model.hidden_size), UNKNOWN)


def _adapters(lora: LoraSpec | None) -> LoraValues | None:
    """Matrices of attention by name, those of the MLP all or none."""
    if lora is None:
        return None
    return LoraValues(
        modules=tuple(name for target, name in ATTENTION.items() if target in lora.targets),
        on_mlp=bool({"gate", "up", "down"} & set(lora.targets)),
        rank=lora.rank,
        alpha=lora.alpha,
        dropout=lora.dropout,
    )


TARGET = Target(
    name=NAME,
    label="torchtune",
    kind="trainer",
    summary="YAML of the distributed recipes: full training, LoRA, QLoRA",
    files=files,
    lost=lambda setup: beyond(NAME, setup),
    source="torchtune recipes/full_finetune_distributed.py, lora_finetune_distributed.py",
    proof="published schema",
    proved_by="tests/targets/test_trainer_fields.py: builders and datasets of torchtune "
    "0.6.1, which torch 2.13 does not import",
)
