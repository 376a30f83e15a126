"""Workload: file and flags -> Workload, with a reason for every value chosen here.

The defaults follow practice: fine-tuning takes small batches and small learning rates, training
from scratch about half a million tokens a step. Which of the two it is, is read from what was
given: adapters, data or epochs mean fine-tuning, and so does silence; a token budget without data
means training from scratch, unless the model is named as one that was tuned (`-instruct`, `-chat`).
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge import catalog
from dsforge.errors import Problem, SpecError
from dsforge.estimate.params import parameter_counts
from dsforge.plan import Reason, is_tuned
from dsforge.reading.files import WorkloadFile
from dsforge.reading.problems import validated
from dsforge.reading.samples import training_rows
from dsforge.reading.source import Source
from dsforge.specs import (
    QLORA_BITS,
    ClusterSpec,
    LoraSpec,
    Method,
    ModelSpec,
    Optimizer,
    Precision,
    Workload,
)
from dsforge.units import some

USUAL_SEQUENCE = 4096
FINE_TUNING_SAMPLES = 64
# Fewer steps in an epoch leave the optimizer little to average over: LIMA (Zhou et al. 2023,
# section 3) trains on 1,000 rows in batches of 32, 31 steps an epoch.
EPOCH_STEPS = 30
SMALL_DATA_EPOCHS = 3.0  # transformers' TrainingArguments.num_train_epochs
SMALL_DATA_ROWS = 100_000  # Alpaca's 52,000 rows are passed three times (Taori et al. 2023)
PRETRAINING_TOKENS = 500_000  # GPT-3 (Brown et al. 2020, table 2.1): 0.5 M tokens up to 1.3 B
LITTLE = 0.1  # share by which a batch given in tokens may move so that every GPU gets its part
LORA_RATE, FINE_TUNING_RATE = 2e-4, 2e-5
ADAPTED = ("lora", "qlora")  # spellings of `method`; the latter sets `lora.bits` to 4
PREFERENCE_RATE, ADAPTED_FACTOR = 5e-7, 10  # full weights; adapters
PREFERENCE_SOURCE = "Tunstall et al. 2023; its recipe for adapters"
LION_FACTOR = 0.3  # Chen et al. 2023, section 5: a third to a tenth of AdamW's rate

FITTED = ("default-precision", "default-global-batch", "batch-from-tokens")  # rules of reasons
Reading = tuple[Workload, tuple[Reason, ...]]


def workload_file(source: Source) -> WorkloadFile:
    """The workload as written, without contradictions. Raises SpecError with all problems."""
    file = validated(WorkloadFile, source)
    contradictions = (
        ("global_batch_size", "global_batch_tokens", file.global_batch_size),
        ("tokens", "epochs", file.tokens),
    )
    problems = [
        Problem(
            "one-of-two",
            f"`{one}` and `{other}` are both given",
            "they set the same quantity: remove one",
            source.place((other,)),
        )
        for one, other, value in contradictions
        if value is not None and getattr(file, other) is not None
    ]
    if file.lora is not None and file.method == "full":
        message, hint = (
            "`lora` is given with `method` (=full)",
            "use `method: lora`, or leave it out",
        )
        problems.append(Problem("lora-with-full", message, hint, source.place(("lora",))))
    if file.method == "qlora" and _says_other_bits(file.lora):
        message, hint = (
            "`lora.bits` (=16) must be 4 with `method` (=qlora)",
            "use `method: lora`, or leave `bits` out",
        )
        problems.append(Problem("qlora-bits", message, hint, source.place(("lora", "bits"))))
    problems += _of_preference(file, source)
    if problems:
        raise SpecError(tuple(problems))
    return file


def _of_preference(file: WorkloadFile, source: Source) -> list[Problem]:
    """A reference that the loss or the method does not have."""
    place, found = source.place(("reference",)), file.reference
    adapts = file.method in ADAPTED or (file.method is None and file.lora is not None)
    if found is not None and file.preference != "dpo":
        message = f"`reference` (={found}) requires `preference` dpo"
        return [Problem("reference-without-dpo", message, "set it, or leave out one", place)]
    if found == "adapters_off" and not adapts:
        message = "`reference` (=adapters_off) requires `method` lora or qlora"
        hint = "use `method: lora`, or `reference: model`"
        return [Problem("reference-without-adapters", message, hint, place)]
    return []


def _says_other_bits(lora: LoraSpec | None) -> bool:
    """Whether the file itself asks for adapters on matrices in 16 bits."""
    if lora is None or "bits" not in lora.model_fields_set:
        return False
    return lora.frozen_format is None


class Fitted(NamedTuple):
    """What of a workload follows the machines, where nobody gave it."""

    precision: Precision
    global_batch_size: int
    reasons: tuple[Reason, ...]


def fitted(
    file: WorkloadFile, cluster: ClusterSpec, sequence_length: int, *, tuned: bool, micro: int = 1
) -> Fitted:
    """Precision and batch for a cluster, with the reasons that `FITTED` names.

    `tuned`: the model is named as one that was tuned.
    """
    draft = _Draft(file, tuned=tuned)
    samples = file.global_batch_size or draft.global_batch_size(sequence_length, cluster, micro)
    precision = file.precision or draft.precision(cluster)
    return Fitted(precision, samples, tuple(draft.reasons))


def workload_of(
    file: WorkloadFile, model: ModelSpec, cluster: ClusterSpec, *, micro: int = 1
) -> Reading:
    """The workload for a model on a cluster, and what reading chose.

    `micro` is the micro batch that was asked for: a global batch that is chosen here is one of it.
    """
    draft = _Draft(file, tuned=is_tuned(model))
    sequence_length = file.sequence_length or draft.sequence_length(model)
    method = draft.method()
    optimizer = file.optimizer or draft.optimizer()
    each = sequence_length * (2 if file.preference else 1)
    workload = Workload(
        sequence_length=sequence_length,
        global_batch_size=file.global_batch_size or draft.global_batch_size(each, cluster, micro),
        precision=file.precision or draft.precision(cluster),
        optimizer=optimizer,
        learning_rate=file.learning_rate or draft.learning_rate(method, optimizer, model),
        weight_decay=draft.weight_decay(model) if file.weight_decay is None else file.weight_decay,
        gradient_clipping=file.gradient_clipping,
        method=method,
        lora=draft.lora(method),
        preference=file.preference,
        reference=file.reference,
        document_length=file.document_length,
        image_tokens=file.image_tokens,
        vision_training=file.vision_training,
        tokens=file.tokens,
        epochs=draft.epochs(),
        samples=draft.rows(),
        data=file.data,
        seed=file.seed,
    )
    return workload, tuple(draft.reasons)


class _Draft:
    """A workload that is being completed; each choice leaves a reason."""

    def __init__(self, file: WorkloadFile, *, tuned: bool) -> None:
        self.file = file
        self.tuned = tuned
        self.reasons: list[Reason] = []
        self._counted: tuple[int | None] | None = None

    @property
    def from_scratch(self) -> bool:
        """Whether a token budget without data, adapters or epochs was given, for no tuned model."""
        file = self.file
        given = self.tuned or file.data or file.lora or file.epochs or file.method in ADAPTED
        return file.tokens is not None and not given

    def _choose(self, rule: str, message: str) -> None:
        self.reasons.append(Reason(rule=rule, message=message))

    def sequence_length(self, model: ModelSpec) -> int:
        """Tokens per sample: 4096, or the longest that the model takes."""
        length = min(USUAL_SEQUENCE, model.max_position_embeddings)
        why = "the maximum of the model" if length < USUAL_SEQUENCE else "the default"
        self._choose("default-sequence-length", f"`sequence_length` is {length} tokens, {why}")
        return length

    def method(self) -> Method:
        """Full training, unless adapters are described."""
        if self.file.method is not None:
            return "lora" if self.file.method in ADAPTED else "full"
        method: Method = "lora" if self.file.lora else "full"
        why = "adapters are described" if self.file.lora else "the default"
        self._choose("default-method", f"`method` is {method}: {why}")
        return method

    def lora(self, method: Method) -> LoraSpec | None:
        """Adapters where the method needs them."""
        if method == "full":
            return None
        lora = self.file.lora
        if lora is None:
            lora = LoraSpec()
            self._choose("default-lora", f"adapters of rank {lora.rank} with alpha {lora.alpha:g}")
        if self.file.method == "qlora" and lora.frozen_format is None:
            return lora.model_copy(update={"bits": QLORA_BITS})
        return lora

    def rows(self) -> int | None:
        """Training rows of the data, unless a token budget is the length of the run."""
        if self.file.data is None or self.file.tokens is not None:
            return None
        if self._counted is None:
            rows, reason = training_rows(self.file.data)
            self._counted = (rows,)
            self.reasons.append(reason)
        return self._counted[0]

    def epochs(self) -> float | None:
        """Passes over the data; three over small data, as transformers' trainer makes."""
        rows = self.rows()
        if self.file.epochs is not None or rows is None:
            return self.file.epochs
        epochs = SMALL_DATA_EPOCHS if rows <= SMALL_DATA_ROWS else 1.0
        what = "up to" if rows <= SMALL_DATA_ROWS else "beyond"
        message = f"`epochs` is {epochs:g}, the default for {what} {SMALL_DATA_ROWS:,} rows"
        self._choose("default-epochs", message)
        return epochs

    def optimizer(self) -> Optimizer:
        """AdamW."""
        self._choose("default-optimizer", "`optimizer` is adamw, the default")
        return "adamw"

    def precision(self, cluster: ClusterSpec) -> Precision:
        """bf16 where the card has it: fp16 overflows above 65504 and needs loss scaling."""
        card = cluster.gpu
        if "bf16" in card.peak_flops:
            self._choose("default-precision", f"`precision` is bf16: {card.name} supports it")
            return "bf16"
        if "fp16" in card.peak_flops:
            why = "has no bf16; loss scaling guards against overflow above 65504"
            self._choose("default-precision", f"`precision` is fp16: {card.name} {why}")
            return "fp16"
        why = "has neither bf16 nor fp16"
        self._choose("default-precision", f"`precision` is fp32: {card.name} {why}")
        return "fp32"

    def learning_rate(self, method: Method, optimizer: Optimizer, model: ModelSpec) -> float:
        """The usual rate of the method, from scratch that of the size; smaller for Lion."""
        kind, rate = "full fine-tuning", FINE_TUNING_RATE
        if self.file.preference is not None:
            kind, rate = f"{self.file.preference} ({PREFERENCE_SOURCE})", PREFERENCE_RATE
            rate = float(f"{rate * ADAPTED_FACTOR:.6g}") if method == "lora" else rate
        elif method == "lora":
            kind, rate = "LoRA", LORA_RATE
        elif self.from_scratch:
            recipe = catalog.pretraining(parameter_counts(model).active)
            kind, rate = f"training from scratch ({recipe.source})", recipe.learning_rate
        if optimizer == "lion":
            kind, rate = f"{kind} with Lion", round(rate * LION_FACTOR, 10)
        self._choose("default-learning-rate", f"`learning_rate` is {rate:g}, usual for {kind}")
        return rate

    def weight_decay(self, model: ModelSpec) -> float:
        """That of published runs from scratch; none in fine-tuning, where it pulls to zero."""
        if not self.from_scratch:
            return 0.0
        recipe = catalog.pretraining(parameter_counts(model).active)
        message = f"`weight_decay` is {recipe.weight_decay:g}, usual for training from scratch"
        self._choose("default-weight-decay", message)
        return recipe.weight_decay

    def global_batch_size(self, sequence_length: int, cluster: ClusterSpec, micro: int) -> int:
        """Samples per step: by tokens, or by practice and whole micro batches for each GPU."""
        tokens, each = self.file.global_batch_tokens, cluster.gpus * micro
        if tokens is not None:
            samples = _near_multiple(max(1, round(tokens / sequence_length)), each)
            message = f"`global_batch_size` is {samples} samples of {sequence_length} tokens"
            self._choose("batch-from-tokens", f"{message} for the {tokens} tokens requested")
            return samples
        wanted, why = FINE_TUNING_SAMPLES, "the default for fine-tuning"
        if self.from_scratch:
            wanted = max(1, PRETRAINING_TOKENS // sequence_length)
            why = f"about {PRETRAINING_TOKENS} tokens, usual for training from scratch"
        rows = self.rows()
        if rows is not None and rows < wanted * EPOCH_STEPS:
            wanted = 1 << (max(1, rows // EPOCH_STEPS).bit_length() - 1)
            why = f"an epoch of {rows:,} rows has about {EPOCH_STEPS} steps or more"
        samples = -(-wanted // each) * each
        what = some(cluster.gpus, "GPU") + (f" x micro batch {micro}" if micro > 1 else "")
        more = f", rounded up to a multiple of {what}" if samples != wanted else ""
        self._choose("default-global-batch", f"`global_batch_size` is {samples}: {why}{more}")
        return samples


def _near_multiple(samples: int, gpus: int) -> int:
    """The multiple of the GPUs next to a batch where it moves it little, else the batch."""
    multiple = round(samples / gpus) * gpus
    return multiple if abs(multiple - samples) <= LITTLE * samples else samples
