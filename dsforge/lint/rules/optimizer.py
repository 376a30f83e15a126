"""Rules: the optimizer and the learning-rate schedule."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from dsforge.findings import Hit
from dsforge.lint.checked_file import CheckedFile, quoted, rule, shown
from dsforge.lint.conditions import If
from dsforge.lint.rows import Row, rules
from dsforge.lint.schemas.signatures import OPTIMIZERS, SCHEDULES

OWN = ("adam", "adamw", "adagrad", "lamb", "lion", "muon", "muadam", "muadamw", "musgd")
OLDER = ("onebitadam", "zerooneadam", "onebitlamb")  # DeepSpeed up to 0.19.7
LAST_WITH_OLDER = (0, 19, 7)
TORCH = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "NAdam"),
    *("RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam", "Muon"),
)
TESTED = ("adam", "adamw", "adagrad", "lion", "muon", *OLDER)
NAMES = {
    "learning_rate": "lr",
    "learningrate": "lr",
    "epsilon": "eps",
    "adam_epsilon": "eps",
    "wd": "weight_decay",
    "weightdecay": "weight_decay",
    "adam_betas": "betas",
}
PARAMS = ("optimizer", "params")
SMALLEST_RATE, HIGHEST_RATE = 1e-12, 0.1
ENGINE = "DeepSpeed runtime/engine.py"


@rule(
    "optimizer-unknown",
    "error",
    why="The name is looked up in DeepSpeed's list (in lower case) and then, as written, "
    "in torch.optim; otherwise an assertion stops every rank.",
    evidence=ENGINE + ", _is_supported_optimizer",
)
def optimizer_unknown(file: CheckedFile) -> Iterator[Hit]:
    """An optimizer that neither DeepSpeed nor torch has."""
    name = file.at("optimizer", "type")
    if not isinstance(name, str) or name == "auto":
        return
    older = OLDER if file.release <= LAST_WITH_OLDER else ()
    if name.lower() in (*OWN, *older) or name in TORCH:
        return
    if name.lower() in OLDER:
        message = f"`{shown(name)}` was removed after DeepSpeed 0.19.7"
        yield Hit(("optimizer", "type"), message, "use AdamW, or pin an older DeepSpeed")
        return
    words = {word.lower(): word for word in (*TORCH, "Lamb", "Lion")}
    near = get_close_matches(name.lower()[:60], list(words), n=1, cutoff=0.6)
    fix = f"did you mean `{words[near[0]]}`?" if near else "use AdamW"
    yield Hit(("optimizer", "type"), f"unknown optimizer `{shown(name)}`", fix)


@rule(
    "optimizer-untested",
    "error",
    why="ZeRO accepts only optimizers that it was tested with, unless configured otherwise.",
    evidence=ENGINE + ", _do_optimizer_sanity_check",
)
def optimizer_untested(file: CheckedFile) -> Iterator[Hit]:
    """An optimizer that ZeRO was not tested with."""
    name, allowed = file.word("optimizer", "type"), file.at("zero_allow_untested_optimizer")
    known = name in OWN or name in {word.lower() for word in TORCH}
    if file.stage and known and name not in TESTED and allowed is not True:
        fix = "set `zero_allow_untested_optimizer` to true"
        yield Hit(("optimizer", "type"), f"ZeRO refuses the untested optimizer `{name}`", fix)


@rule(
    "optimizer-param-name",
    "error",
    fixable=True,
    why="The parameters are passed to the optimizer's constructor unchanged: one that it does not "
    "have raises a TypeError on every rank.",
    evidence=ENGINE + ", _configure_basic_optimizer",
)
def optimizer_param_name(file: CheckedFile) -> Iterator[Hit]:
    """A parameter that the optimizer does not have, or has under another name."""
    for key in file.block(*PARAMS):
        right = NAMES.get(key.lower())
        if right is not None and key != right:
            loc = (*PARAMS, key)
            edits = file.document.renamed(loc, right)
            yield Hit(
                loc, f"`{key}` is not a parameter of the optimizer", f"write `{right}`", edits
            )
        elif right is None and _is_strange(file, key):
            known = _parameters_of(file)
            near = get_close_matches(key[:60], known, n=1, cutoff=0.6)
            fix = f"did you mean `{near[0]}`?" if near else "remove it"
            message = f"`{shown(key)}` is not a parameter of {shown(file.at('optimizer', 'type'))}"
            yield Hit((*PARAMS, key), message, fix)


def _parameters_of(file: CheckedFile) -> tuple[str, ...]:
    """Parameters of the optimizer; empty where they are not known."""
    return OPTIMIZERS.get(file.word("optimizer", "type"), ())


def _is_strange(file: CheckedFile, key: str) -> bool:
    """Whether the optimizer is known and has no such parameter; a remark is none either."""
    known = _parameters_of(file)
    return bool(known) and key not in known and key != "max_grad_norm"


@rule(
    "optimizer-betas",
    "error",
    why="Adam's betas are two numbers from 0 to below 1; anything else stops the first "
    "step, or makes it diverge.",
    evidence="torch.optim.Adam.__init__; Kingma and Ba 2015",
)
def optimizer_betas(file: CheckedFile) -> Iterator[Hit]:
    """Betas that are not two numbers below 1."""
    betas = file.at(*PARAMS, "betas")
    if betas is None or betas == "auto":
        return
    right = isinstance(betas, list) and len(betas) == 2  # noqa: PLR2004 - a pair
    if not right or not all(_is_share(beta) for beta in betas):
        yield Hit((*PARAMS, "betas"), f"`betas` (={shown(betas)}) must be two numbers in [0, 1)")


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1


@rule(
    "scheduler-unknown",
    "error",
    why="The name is looked up among the schedules of DeepSpeed and torch, as written.",
    evidence=ENGINE + ", _scheduler_from_config",
)
def scheduler_unknown(file: CheckedFile) -> Iterator[Hit]:
    """A schedule that neither DeepSpeed nor torch has."""
    name = file.at("scheduler", "type")
    if not isinstance(name, str) or name in (*SCHEDULES, "auto") or name.endswith("LR"):
        return
    near = get_close_matches(name.lower()[:60], [s.lower() for s in SCHEDULES], n=1, cutoff=0.6)
    right = next((s for s in SCHEDULES if near and s.lower() == near[0]), "")
    edits = file.document.replaced(("scheduler", "type"), right) if right else ()
    fix = f"did you mean `{right}`?" if right else f"use {', '.join(SCHEDULES)}"
    yield Hit(("scheduler", "type"), f"unknown schedule `{shown(name)}`", fix, edits)


@rule(
    "scheduler-warmup",
    "error",
    why="With a warm-up as long as the run the learning rate never decays, and a warm-up "
    "of 0 or 10.0 steps is refused since 0.19.6.",
    evidence="DeepSpeed runtime/lr_schedules.py, WarmupLR.__init__, WarmupDecayLR.__init__",
)
def scheduler_warmup(file: CheckedFile) -> Iterator[Hit]:
    """A warm-up as long as the run, or from a high to a low rate."""
    params = ("scheduler", "params")
    warmup = file.number(*params, "warmup_num_steps")
    total = file.number(*params, "total_num_steps")
    written = file.at(*params, "warmup_num_steps")
    checks = file.release >= CHECKS_WARMUP and written not in (None, "auto")
    if checks and not (isinstance(written, int) and written > 0):
        message = f"`warmup_num_steps` (={quoted(written)}) must be a whole number above 0"
        yield Hit((*params, "warmup_num_steps"), message)
    if warmup is not None and total is not None and warmup >= total:
        message = f"`warmup_num_steps` (={warmup:g}) must be below `total_num_steps` (={total:g})"
        yield Hit((*params, "warmup_num_steps"), message)
    low, high = file.number(*params, "warmup_min_lr"), file.number(*params, "warmup_max_lr")
    if low is not None and high is not None and low > high:
        message = f"`warmup_min_lr` (={low:g}) must not be above `warmup_max_lr` (={high:g})"
        yield Hit((*params, "warmup_min_lr"), message)


@rule(
    "scheduler-rate",
    "warning",
    why="The schedule sets the learning rate in every step, so the optimizer's own value "
    "is never used, and people tune the wrong one.",
    evidence="DeepSpeed runtime/lr_schedules.py, WarmupLR.__init__",
)
def scheduler_rate(file: CheckedFile) -> Iterator[Hit]:
    """A schedule that overrides the optimizer's learning rate."""
    rate, peak = file.number(*PARAMS, "lr"), file.number("scheduler", "params", "warmup_max_lr")
    if rate is not None and peak is not None and rate != peak:
        message = f"`lr` (={rate:g}) is overridden by `warmup_max_lr` (={peak:g})"
        yield Hit((*PARAMS, "lr"), message, "write the same value in both")


CHECKS_WARMUP = (0, 19, 6)


@rule(
    "scheduler-param-name",
    "error",
    why="The parameters are passed to the schedule's constructor unchanged: one that it does not "
    "have raises a TypeError on every rank.",
    evidence="DeepSpeed runtime/lr_schedules.py, the constructors",
)
def scheduler_param_name(file: CheckedFile) -> Iterator[Hit]:
    """A parameter that the schedule does not have."""
    name = file.at("scheduler", "type")
    known = SCHEDULES.get(name) if isinstance(name, str) else None
    if known is None:
        return
    for key in file.block("scheduler", "params"):
        if key not in (*known, "last_batch_iteration"):
            near = get_close_matches(key[:60], known, n=1, cutoff=0.6)
            fix = f"did you mean `{near[0]}`?" if near else f"use {', '.join(known)}"
            message = f"`{shown(key)}` is not a parameter of {name}"
            yield Hit(("scheduler", "params", key), message, fix)


NUMBERS = (("gradient_clipping",), ("gradient_predivide_factor",), ("steps_per_print",))
OF_OPTIMIZERS = (  # parameters that are numbers
    *("lr", "eps", "weight_decay", "momentum", "dampening", "alpha", "lr_decay", "max_coeff"),
    *("min_coeff", "momentum_decay", "initial_accumulator_value"),
)
OF_WORDS = ("warmup_type", "cycle_momentum", "lr_range_test_staircase")


@rule(
    "number-as-text",
    "error",
    why="The text is not converted here: arithmetic with it raises a TypeError.",
    evidence="torch.optim.Optimizer, DeepSpeed runtime/lr_schedules.py and runtime/engine.py "
    "compute with the value",
)
def number_as_text(file: CheckedFile) -> Iterator[Hit]:
    """A number in quotes where nothing converts it."""
    for loc in _of_numbers(file):
        value = file.at(*loc)
        if isinstance(value, str) and value != "auto":
            message = f"`{loc[-1]}` (={quoted(value)}) is text, not a number"
            yield Hit(loc, message, "write it without quotes")


def _of_numbers(file: CheckedFile) -> Iterator[tuple[str, ...]]:
    """The places of numbers that nothing checks."""
    yield from NUMBERS
    yield from ((*PARAMS, key) for key in file.block(*PARAMS) if key in OF_OPTIMIZERS)
    name = file.at("scheduler", "type")
    known = SCHEDULES.get(name, ()) if isinstance(name, str) else ()
    params = ("scheduler", "params")
    warmup = () if file.release < CHECKS_WARMUP else ("warmup_num_steps",)  # said by another rule
    for key in file.block(*params):
        if key in known and key not in (*OF_WORDS, *warmup):
            yield (*params, key)


ROWS = rules(
    Row(
        "optimizer-type-missing",
        "error",
        If("optimizer.type", "absent"),
        "`optimizer` has no `type`: the block is ignored",
        "AdamW",
        title="An optimizer block without a type.",
        why="Without a type the block is ignored, learning rate included, and the engine "
        "expects an optimizer from the program.",
        evidence="DeepSpeed runtime/config.py, get_optimizer_name",
        when=(If("optimizer", "block"),),
        at="optimizer",
    ),
    Row(
        "optimizer-grad-norm",
        "error",
        If("optimizer.params.max_grad_norm", "present"),
        "`{key}` is refused here",
        "use `gradient_clipping` at the top level",
        title="`max_grad_norm` among the optimizer's parameters.",
        why="DeepSpeed clips at the top level and refuses this key in the optimizer's parameters.",
        evidence=ENGINE + ", _configure_basic_optimizer",
    ),
    Row(
        "learning-rate",
        "warning",
        If(
            "optimizer.params.lr scheduler.params.warmup_max_lr",
            "outside",
            (SMALLEST_RATE, HIGHEST_RATE),
        ),
        "learning rate `{key}` (={number:g}) is out of the usual range",
        title="A learning rate of zero, or far too high.",
        why="Fine-tuning uses 1e-6 to 1e-3. A rate of 0 trains nothing; a rate above 0.1 "
        "diverges with Adam and similar optimizers.",
        evidence="deepspeedai/DeepSpeedExamples#418 (scale falls to its floor as the loss "
        "diverges)",
        when=(If("optimizer.type", "not among", ("sgd", "asgd", "lbfgs")),),
    ),
    Row(
        "weight-decay",
        "warning",
        If("optimizer.params.weight_decay", "outside", (0, 1)),
        "`{key}` (={number:g}) must be between 0 and 1",
        title="Weight decay out of range.",
        why="Decay is a fraction per step times the learning rate; a value above 1 shrinks "
        "weights faster than they learn.",
        evidence="Loshchilov and Hutter 2019 (0.01 to 0.1)",
    ),
    Row(
        "scheduler-total",
        "warning",
        If("scheduler.type", "in", ("warmupdecaylr", "warmupcosinelr")),
        "`{value}` requires `total_num_steps`",
        "set it in `params`",
        title="A decaying schedule without its length.",
        why="These schedules decay over `total_num_steps`; it has no default, so the call "
        "fails on every rank, unless the program that loads the file puts it in.",
        evidence="DeepSpeed runtime/lr_schedules.py, WarmupDecayLR and WarmupCosineLR",
        when=(If("scheduler.params.total_num_steps", "missing"),),
        at="scheduler",
    ),
    Row(
        "scheduler-alone",
        "info",
        If("scheduler", "block"),
        "`scheduler` without `optimizer`: the program must pass one",
        title="A schedule without an optimizer.",
        why="A schedule needs an optimizer that DeepSpeed creates; transformers refuses to "
        "combine it with one from the program.",
        evidence="transformers integrations/deepspeed.py, deepspeed_optim_sched",
        when=(If("optimizer", "no block"),),
    ),
    Row(
        "lamb-static-scale",
        "error",
        If("fp16.loss_scale", "not 0"),
        "LAMB requires dynamic loss scaling",
        "use 0",
        title="LAMB with a fixed loss scale.",
        why="DeepSpeed's LAMB optimizer requires dynamic loss scaling.",
        evidence=ENGINE + ", _do_sanity_check",
        when=(If("optimizer.type", "is", "lamb"),),
    ),
    Row(
        "muon-reduce-scatter",
        "error",
        If("optimizer.type", "is", "muon"),
        "Muon requires `reduce_scatter` false",
        "set it to false",
        title="Muon with reduce-scatter.",
        why="Muon needs complete gradient matrices; reduce-scatter shards them.",
        evidence="DeepSpeed runtime/zero/stage3.py, DeepSpeedZeroOptimizer_Stage3.__init__",
        when=(
            If("@stage", "above", 0),
            If("zero_optimization.reduce_scatter", "not off"),
        ),
    ),
)
