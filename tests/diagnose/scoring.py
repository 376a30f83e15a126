"""How good diagnosis is on failures of public threads.

`python tests/diagnose/scoring.py` writes `docs/diagnosis.md`. The failures come in batches, each
written down at once and answered before any rule was changed for it (`first_answers`); those with
`rules: later` before there was a rule that knows them. `healthy.yaml` are logs of runs that ended
well and texts that are no logs, `harmless.yaml` lines of healthy programs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dsforge.diagnose import diagnose_text
from dsforge.diagnose.report import CONFIDENT
from dsforge.diagnose.rulebook import rulebook
from dsforge.reading.tree import LOADER

HERE = Path(__file__).resolve().parent
THREADS = HERE / "threads"
PAGE = HERE.parents[1] / "docs" / "diagnosis.md"
BATCHES = tuple(
    "before after third fourth fifth sixth seventh eighth ninth tenth eleventh thirteenth "
    "fourteenth twelfth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth "
    "twentyfirst twentysecond twentythird twentyfifth sealed twentysixth "
    "twentyseventh twentyeighth twentyninth thirtieth thirtyfirst thirtysecond "
    "thirtythird thirtyfourth thirtyfifth thirtysixth thirtyseventh thirtyeighth "
    "thirtyninth fortieth fortyfirst fortysecond fortythird "
    "fortyfourth fortyfifth fortysixth fortyseventh fortyeighth".split()
)
KEPT = ("seventh_kept",)  # no rule was written from these before `tenth`
PARTS = range(20)  # of the failures; one is changed and read again at every commit, others slow
UNKNOWN = "unknown"  # the label of a failure that no rule is meant to know
PAGE_TEXT = """\
# Diagnosis on failures that people reported

Made by `python tests/diagnose/scoring.py` from `tests/diagnose/threads/`: excerpts of error text
from {failures} public threads, labelled by hand with {causes} causes, {before} of them before
a rule for them existed. A test fails if a figure gets worse.

## On new failures

Each batch was written down and answered before any rule was changed for it. "Unknown" says that no
rule knows the error, and where to look; "wrong" names another cause, with a confidence of
{confident} or more. "Told" leaves out the failures whose text does not tell the cause. "Sure" are
the answers of rules that were sure (below), and how many of them were right.

| batch | written | failures | right | unknown | wrong | told | sure |
|---|---|---|---|---|---|---|---|
{batches}

Families, which know only the kind of an error, came after `seventh`. Of the right answers to
`eighth` 3, to `ninth` 4 and to `tenth` 3 named the cause by another rule than the label did, which
was renamed; counted as wrong, they leave 65 of 85, 24 of 35 and 42 of 56. From `eleventh` on
such answers are counted as wrong here; with them 30 of 46, 16 of 21, 12 of 18, 37 of 47
(`twelfth`), 17 of 22, 9 of 25 (`sixteenth`) and 14 of 24 (`eighteenth`) were right, and 4, 1, 0, 1,
2, 3 and 2 wrong. These batches were searched for in other places (clusters, containers, drivers,
programs around transformers) than those before. `eleventh` and `twelfth` are halves of one batch,
split by chance: the rules that came from the first half, from `thirteenth` and from `fourteenth`
stood before the second was answered, once. Since then rules come from the sources of packages, from
what they raise and assert. `sixteenth` is of DeepSpeed, torch.distributed, NCCL, MPI, Slurm and ssh
and was answered before them; 13 of it were answered again with them, once: 10 were right and 1
wrong, 4 and 1 without them. `seventeenth` is of the Hugging Face stack: 28 failures were answered
before, 33 after, of which 22 were right and 1 wrong. Of `eighteenth` (CUDA, builds, Megatron,
hosts) the first half was answered before, the second after, by somebody who had chosen both.
`nineteenth` (all these kinds) was collected and answered, before any rule was changed, by somebody
who had written none of the rules, and judged by a sentence on each cause that was written down
first: 15 of 36 right; 6 more named truly what kind of error it is, which counts as unknown (4,
below {confident}) or wrong (2). `twentieth` (DeepSpeed, torch.distributed, NCCL, RDMA, MPI, Slurm,
containers, clouds) was collected and answered in seven rounds, judged in the same way; 22 of its
wrong answers named the kind of error.
`twentyfirst` (the Hugging Face stack in training and the trainers
on it) was answered in four rounds by somebody who wrote rules after each and judged in the same
way: 19 of 36, 5 of 20, 9 of 16 and 5 of 20 right. Rules for one round thus hardly help the next:
what is left are messages of one program each.
`twentysecond` (GPUs and other accelerators, builds, torch.compile,
autograd, hosts) was collected in rounds; the rules that came from a round stood before the next.
`twentythird` is of other frameworks than the Hugging Face Trainer, of reinforcement learning, Ray,
data formats and conversions, in five rounds, each answered after the misses of the one before were
mended: 6 of 20, 3 of 19, 13 of 24, 5 of 18 and 9 of 16 right; in 24 more the kind of error was
named truly. `twentyfifth` are failures that were looked for because a rule might
say more than it knows: all of its first answers are wrong, and it is no measure of the whole.
`sealed` (all these kinds) was collected and answered, once, by somebody who had written none of the
rules, and judged as `nineteenth` was: 30 of 51 right; 13 named the kind of error only, which counts
as unknown (2) or wrong (11), and 3 another cause. Two of its texts, notices that pip and wandb
print in runs that end well, too, had no answer and are not among the failures below.
`twentysixth` (DeepSpeed, Megatron, torch.distributed, MPI, Slurm, Ray, containers, clusters,
drivers) was collected in six rounds, each answered after the misses of the one before were
mended, and judged by a sentence on each cause: 5 of 18, 6 of 15, 3 of 14, 4 of 12, 4 of 12 and 4
of 8 right; 16 of its 18 wrong answers and most of the unknown ones named the kind of error.
`twentyseventh` (the Hugging Face stack, the trainers on it, CUDA extensions, packages, data) was
collected and answered in rounds, judged in the same way, the misses of a round mended before the
next: 6 of 16, 10 of 16, 8 of 18, 6 of 20 and 1 of 9 right; 20 of the wrong answers named the
kind of error.
Four batches were then asked for as ordinary users would ask, each in rounds answered after the
misses of the one before were mended, and judged by a sentence on each cause that was written down
first. `twentyeighth` is of fine-tuning with the Hugging Face stack: 9 of 21, 9 of 19, 10 of 20, 5
of 14, 4 of 16, 5 of 16, 4 of 7, 3 of 8 and 4 of 9 right; 27 of its 36 wrong answers named the kind
of error. `twentyninth` is of DeepSpeed, torch.distributed, FSDP, Lightning, Megatron, NeMo and
Colossal-AI: 8 of 20, 7 of 21, 7 of 19, 2 of 6 and 2 of 4; 17 of 26 named the kind. `thirtieth` is
of what surrounds training (networks, drivers, containers, clusters, installs, storage): 13 of 23,
13 of 22, 12 of 19, 10 of 14 and 6 of 18, the last of parts that had only general rules; 20 of 24
named the kind. `thirtyfirst` is of all kinds, and what was mended are the general rules, which got
cases by values, frames and releases: 11 of 34, 3 of 17, 3 of 17, 10 of 22 and 6 of 19; 31 of its 36
wrong answers came in the first three rounds. `thirtysecond` is of topics that this page had shown
as gaps (data sets, tokenisers, DDP with checkpointing, meeting of ranks and sockets, dtypes and
devices, quantised weights, ZeRO-3, Ray, compilers, saving), short as people paste them: 26 of 43,
14 of 27, 15 of 24 and 16 of 24 right, and 32, 18, 17 and 18 if the topic and a fix that can be used
are enough; its 8 wrong answers with 0.7 or more named the kind of error. `thirtythird` is of what
six general rules and their siblings answer (builds of C++ and CUDA, schemas of data sets, sizes of
tensors, quantised and sharded weights, names that are not known), asked for by the words of these
messages, each round answered after cases that ask for more of the log: 7 of 33, 17 of 33, 16 of 32,
9 of 22, 5 of 22, 11 of 16 and 4 of 12 right; 35 of its 58 wrong answers named the kind of error.
`thirtyfourth` was collected by somebody who knew no rule, one failure for each query that users
would type on all these topics, with a sentence on cause and fix, and sealed; it was answered once,
after all that stands above, and judged by somebody who had written none of the rules: 52 of 70
right, 48 of the 58 whose text tells the cause (83 %; 51 with those that named the kind), 2 wrong
with 0.7 or more, no false alarm on 10 healthy or unrelated texts. Three of its texts (frames
without their error, two titles), two of `thirtysecond` and of `thirtythird` have no error line;
they are not among the failures below.
`thirtyfifth` was asked for as ordinary users would type on all topics of training, one failure for
each query, in six rounds answered after the misses of the one before were mended: 7 of 19, 5 of 14,
5 of 11, 6 of 9, 4 of 8 and 0 of 3 right; most of its 13 wrong answers read the message truly and
named the cause of another program, one with 0.7 or more. `thirtysixth` is of six classes that were
known to be read badly (sentences and titles, names that an object or a call lacks, sizes of
tensors, pods and MPI and drivers and containers, errors that only hand on another, rules with words
that no pattern read), each answered once and then mended at its cause: 3 of 18, 13 of 18, 10 of 21,
4 of 14 and 13 of 15 right before, 2 of 6, 7 of 14 and 4 of 13 of further ones after. Sentences and
titles that tell a failure are read since then, by what they quote and by six rules of their own
that logs never meet.
`thirtyseventh` was collected as `thirtyfourth` was, by somebody who knew no rule, sealed, answered
once after all that stands above, and judged by others: 40 of 80 right, 38 of the 63 whose text
tells the cause (60 %; 51 with those that named the kind), 1 that named another cause with 0.7 or
more. Of 15 healthy or unrelated texts 2 had a cause, by the rules for sentences. Its misses were
mended afterwards. That it was so much lower than `thirtyfourth` is the width between two such sets:
judges and topics differ, and 80 failures leave 11 points on either side.
Two batches were then asked for as ordinary users would type, each in seven rounds answered after
the misses of the one before were mended. `thirtyeighth` is of single nodes (Trainer, PEFT, TRL and
its generation server, axolotl, LLaMA-Factory, Unsloth, ms-swift, OpenRLHF, verl, torchtune, wheels,
memory, export), a third of it told in sentences: 14 of 22, 10 of 21, 7 of 19, 5 of 12, 3 of 16, 6
of 11 and 7 of 16 right; 10 of its 15 wrong answers named the kind of error. `thirtyninth` is of
several GPUs and nodes (NCCL, launchers, Slurm, Kubernetes, clouds, faulty hardware, Megatron, FSDP,
Ray, distributed checkpoints, file systems): 15 of 28, 18 of 24, 14 of 23, 18 of 26, 4 of 14, 8 of
19 and 10 of 19; 18 of 19 named the kind.
`fortieth` was collected by two who knew no rule (the topics of users' failures, and by program),
sealed, and judged by somebody else: 50 of the 79 right whose text tells the cause (63 %; 60 with
those that named the kind), none wrong with 0.7 or more. Between two answers to it 1,700 rules were
written from the sources of 60 packages: one answer changed. So it is not messages that no rule
knows that are missed most, but parts of messages, titles, texts without their line ends or their
last line, and frequent rules whose answers are too general. Both were mended: parts of examples are
recognised, and the frequent rules got 660 cases. `fortyfirst` was then collected in the same way
and answered once: 38 of the 51 right whose text tells the cause (75 %; 42 with those that named the
kind), 46 of 55 with 0.5 or more, all 10 with 0.7 or more; one with 0.5 or more named another cause.
The release before answers 30 of these 51 (59 %), judged at the same time by somebody who did not
know which answer was whose. Of 18 healthy texts that were collected beside them two had a cause,
both of which told of failures in general; they are among the healthy ones now.

`fortysecond` was searched for by theme, by seven who mended what they found, and who looked for
what might not be known; judged by themselves, 262 of the 846 right whose text tells the cause (31
%; 37 % without the reports in plain words). About 60 rules, 650 cases and the reading of whole
reports (titles, lists, settings beside the message, words above a traceback that breaks off) came
from it. What they are worth was measured on `fortythird` and `fortyfourth`, collected by three who
knew no rule, on all programs, half of them without a line of an error; judged by others: 24 of 61
(39 %; the release before 22) and 19 of 38 (50 %; the release before 19). So figures of one set do
not hold for another: `fortyfirst` has messages where these have reports. And nearly a thousand
mended failures changed few answers to the next hundred: the causes that people report are more
than any list of them.

`fortyfifth` are failures of installs and builds only (pip's resolver, wheels, compilers, images),
searched for and mended by one person in the same way: 55 of the 170 right whose text tells the
cause (32 %), before. `fortysixth` is sealed and of another distribution than `fortythird`: error
text as people paste it, some of each kind of failure, collected by somebody who knew no rule and
judged by another: 17 of the 25 right whose text tells the cause (68 %), one wrong answer with a
confidence of 0.7. Three of the misses were conditions that matched too much or too little.
`fortyseventh` was collected in the same way by two people who knew no rule, half of one set from
small repositories, clusters, older releases and other trainers, and judged by two others beside the
answers of the release before, without knowing which was which: 57 of the 75 right whose text tells
the cause (76 %; 54 before), two named another cause, none with 0.7 or more. In between, the answers
to the messages that users meet most had been held against about 1,800 situations that five people
wrote down first, by what the text says beyond the message. What is left are messages of one
program each, and general rules that name the kind.

`fortyeighth` was made and judged as that one, after its misses, two more audits and messages
without their exception had been mended: 62 of the 84 right whose text tells the cause (74 %; the
release before 58), six named another cause, none with 0.7 or more. So 74 to 76 % is what this way
of writing rules reaches on error texts that nobody has seen. Of 22 healthy or unrelated texts two
had a cause, both pull requests: text in the hunks of a diff is no log since.

## On failures kept aside

No rule was written from these before `tenth`: 65 of 75 were right then, 3 wrong. The rules that
came just before `tenth` cover the kinds of errors behind those misses, so this is no figure of new
failures any more. "Family" are the right answers of rules that know only what kind of error it is
(`families.yaml`, with a confidence below {confident}).

| batch | failures | right | of those told | by a family | wrong | sure |
|---|---|---|---|---|---|---|
{kept}

## On all failures

Rules were written for these failures since, so these figures show that the rules are consistent,
not how they perform on new ones.

| | |
|---|---|
| rules | {rules} |
| first cause right | {all_right} |
| confidence {confident} or more, and wrong | {known_wrong} of {failures} |
| no answer at all to an error | {silent} of {failures} |
| false alarms on healthy and unrelated texts | {alarms} of {healthy} |
| harmless lines that must not change an answer, tried before and after each failure | {harmless} |

A rule is an entry of `dsforge/diagnose/rules/*.yaml`: words that find a line, patterns that parse
it, message, cause, fix, sources, and excerpts that it must match (`hits`) or must not (`misses`).
A new rule is one entry with its excerpt; the tests run it on the excerpts of all other rules. It
starts at a confidence of 0.68, or lower where its message is a general one.

## Confidence

The confidence of a rule is measured: how often such rules were right on failures that they had
never seen. The 528 failures of `twentieth` to `twentythird` and `sealed` were answered by the rules
of before, whose confidences were still their authors' judgement, 0.5 to 0.95. Right, by the cause
that the failure has got since:

| rules | right | now |
|---|---|---|
| sure: right on a failure, never wrong on a new one | 67 of 78, later 25 of 42 | 0.77, 0.75 |
| they know the message; at most {narrow} patterns | 80 of 94 | 0.68 |
| they know the message; more patterns | 24 of 50 | 0.55, where wrong on a tenth |
| a general message | 38 of 61 | 0.5 to 0.6 |
| families, or nothing but the exception | 19 of 206 | below {confident} |

Judged strictly (message, cause and fix must all fit; an answer that only names the kind of error is
wrong), 61 of the 77 sure answers to them were right, and 19 of the 28 others of `sealed` that had
{confident} or more. "Sure" is {sure} or more; it was 0.9 when the batches up to `sealed` were
answered. To the four batches from `twentyeighth` on, which were judged strictly, 25 of 42 sure
answers were right (with the first set 92 of 120), and 141 of about 246 others with {confident} or
more: what these say is nearer to {confident} than to 0.68 on failures that nobody has looked at.
Rules that erred are not sure any more.

| answers with a confidence of | right |
|---|---|
{classes}

## Causes

Recall: right of the failures with that cause. Precision: right of the answers that name it.

| cause | recall | precision |
|---|---|---|
{table}
"""
FIRST_ANSWERS = ("right", "unknown", "wrong")
SURE = 0.75  # confidence of answers that may be acted on without a look
NARROW = 4  # patterns of a rule; those with more were wrong on half of new failures
MEASURED = 0.77  # share of sure answers to new failures that were right, so no rule is surer
BROAD_AT_MOST = 0.6  # confidence of those
CLASSES = ((0.75, 1.0), (0.62, 0.75), (0.5, 0.62), (0.0, 0.5))  # of confidence


class Failure(NamedTuple):
    """One failure: its text, the rule that should answer, and where it was reported."""

    source: str
    cause: str
    text: str
    rules: str  # later: written down before a rule knew it; earlier: after
    wrapped: bool = False  # one message over several lines, which nothing may stand between
    told: bool = False  # in a sentence or a title, not by a log


class Answer(NamedTuple):
    """What diagnosis said of a failure."""

    failure: Failure
    rule: str
    confidence: float
    is_error: bool = False  # by the form of its line
    message: str = ""
    fix: str = ""

    @property
    def known(self) -> bool:
        """Whether a cause was named with confidence."""
        return self.confidence >= CONFIDENT

    @property
    def right(self) -> bool:
        """The right cause, or an honest "unknown" where no rule is meant to know it."""
        if self.failure.cause == UNKNOWN:
            return bool(self.rule) and not self.known
        return self.rule == self.failure.cause


@cache
def document(name: str) -> Any:
    """One file of the corpus."""
    return yaml.load((THREADS / f"{name}.yaml").read_text(encoding="utf-8"), LOADER)  # noqa: S506


def failures(batches: tuple[str, ...] = BATCHES) -> list[Failure]:
    """All failures of these batches."""
    return [
        Failure(
            row["source"],
            row["cause"],
            row["text"],
            row.get("rules", document(name)["rules"]),
            row.get("wrapped", False),
            row.get("told", False),
        )
        for name in batches
        for row in document(name)["failures"]
    ]


@cache
def logs() -> list[Failure]:
    """The failures that a log shows, so that lines may be put into them."""
    return [failure for failure in failures() if not failure.told]


def part_of_logs(part: int) -> list[Answer]:
    """What diagnosis says first of one part of these."""
    return [answered(failure) for failure in logs()[part :: len(PARTS)]]


@cache
def answered(failure: Failure) -> Answer:
    """What diagnosis says first of a failure."""
    causes = diagnose_text(failure.text)
    if not causes:
        return Answer(failure, "", 0.0)
    first = causes[0]
    is_error = any(hit.form == "error" for hit in first.hits)
    return Answer(failure, first.rule, first.confidence, is_error, first.message, first.fix)


def all_answers() -> list[Answer]:
    """What diagnosis says first of each failure that rules were written for."""
    return [answered(failure) for failure in failures()]


def share(answers: Iterable[bool]) -> str:
    """`right of all (percent)`."""
    values = list(answers)
    right = sum(values)
    return f"{right} of {len(values)} ({100 * right / len(values):.0f} %)" if values else "none"


def page() -> str:
    """The page of figures."""
    answers = all_answers()
    causes = sorted({answer.failure.cause for answer in answers})
    healthy = [bool(diagnose_text(row["text"])) for row in document("healthy")["texts"]]
    return PAGE_TEXT.format(
        failures=len(answers),
        causes=len(causes),
        before=sum(answer.failure.rules == "later" for answer in answers),
        rules=len(rulebook()),
        all_right=share(answer.right for answer in answers),
        confident=CONFIDENT,
        sure=SURE,
        narrow=NARROW,
        known_wrong=sum(answer.known and not answer.right for answer in answers),
        silent=sum(not answer.rule for answer in answers),
        alarms=sum(healthy),
        healthy=len(healthy),
        harmless=len(document("harmless")["lines"]),
        classes="\n".join(_class(low, high, answers) for low, high in CLASSES),
        table="\n".join(_row(cause, answers) for cause in causes),
        kept="\n".join(_kept(name) for name in KEPT),
        batches="\n".join(_batch(name) for name in BATCHES if "first_answers" in document(name)),
    )


def _batch(name: str) -> str:
    """One line of the table of first answers."""
    first, written = document(name)["first_answers"], document(name)["written"]
    shares = [f"{first[key]} ({100 * first[key] / first['of']:.0f} %)" for key in FIRST_ANSWERS]
    counts = map(document(name).get, ("first_named", "first_sure"))
    shares += [f"{some['right']} of {some['of']}" if some else "not recorded" for some in counts]
    return " | ".join([f"| `{name}`", str(written), str(first["of"]), *shares]) + " |"


def _kept(name: str) -> str:
    """One line of the table of failures that no rule was written from."""
    answers = [answered(failure) for failure in failures((name,))]
    told = [answer.right for answer in answers if answer.failure.cause != UNKNOWN]
    family = sum(answer.right and _is_family(answer.rule) for answer in answers)
    wrong = sum(answer.known and not answer.right for answer in answers)
    sure = share(answer.right for answer in answers if answer.confidence >= SURE)
    right = share(answer.right for answer in answers)
    return f"| `{name}` | {len(answers)} | {right} | {share(told)} | {family} | {wrong} | {sure} |"


def _is_family(rule: str) -> bool:
    """Whether a rule knows only the kind of an error."""
    return bool(rule) and rulebook(in_words=True)[rule].kind == "family"


def proven() -> set[str]:
    """The rules that were right on a failure, less those that were wrong on a new batch."""
    cases = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))
    right = {answer.rule for answer in all_answers() if answer.right}
    provoked = {case["rule"] for case in cases if case["origin"] == "provoked"}
    wrong = {rule for name in BATCHES for rule in document(name).get("wrong_rules", [])}
    return (right | provoked) - wrong


def erring() -> set[str]:
    """The rules that were wrong on more than a tenth of the failures they were tried on."""
    right = Counter(answer.rule for answer in all_answers() if answer.right)
    wrong = Counter(rule for name in BATCHES for rule in document(name).get("wrong_rules", []))
    return {rule for rule, times in wrong.items() if times > (times + right[rule]) / 10}


def _class(low: float, high: float, answers: list[Answer]) -> str:
    """One line of the table of confidence."""
    right = share(answer.right for answer in answers if low <= answer.confidence < high)
    return f"| {low} to {high} | {right} |"


def _row(cause: str, answers: list[Answer]) -> str:
    """One line of the table of causes."""
    of_cause = [answer.right for answer in answers if answer.failure.cause == cause]
    named = [answer.right for answer in answers if answer.rule == cause]
    return f"| `{cause}` | {share(of_cause)} | {share(named)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
