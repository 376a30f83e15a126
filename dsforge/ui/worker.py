"""Questions of the page and their answers, as JSON text: what runs inside the browser.

A question is `{"do": NAME, ...}`. An answer has the `document` that the command prints with
`--json`, less where the question says `"document": false`, and `shown`, the same as text for the
page; or `error`, in the words of the command line.
Nothing here knows the browser: the tests ask the same questions without one.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dsforge
from dsforge.error_report import error_report
from dsforge.errors import DoesNotFitError, DsforgeError
from dsforge.masking import masked_document, masked_traceback
from dsforge.ui.job import Job, read_job

TOP = 10  # plans of the ranking
LONGEST_QUESTION = 64 * 1024 * 1024  # characters: a pasted log
RUN = "run"  # name of the run folder in a download
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")

Answer = dict[str, Any]
Question = dict[str, Any]

# What the page asks before anybody has typed; the export keeps the answer.
FIRST_QUESTION: Question = {
    "do": "plan",
    "document": False,
    "job": {"fields": {"model": "llama-3.1-8b", "gpu": "h100-80gb", "gpus_per_node": "8"}},
}


class _Planned(NamedTuple):
    """The last job that was planned, for the questions that follow."""

    job: str
    plans: tuple[dsforge.Plan, ...]


_last: list[_Planned] = []
_last_front: list[_Planned] = []  # of the last argument: each plan of the Pareto front


def answered(text: str) -> str:
    """The answer to a question, both as JSON text; every error is an answer, too."""
    try:
        answer = _answer(text)
    except DsforgeError as error:
        answer = {"error": _error(error)}
    except Exception as error:  # (a bug of ours is shown, not lost in a worker)
        bug = {"kind": "bug", "message": "dsforge failed: this is a bug", "exit_code": 1}
        answer = {"error": {**bug, "hint": "", "problems": [], "text": masked_traceback(error)}}
    return json.dumps(answer, ensure_ascii=False)


def _answer(text: str) -> Answer:
    if len(text) > LONGEST_QUESTION:
        raise DsforgeError(f"a question of {len(text) >> 20} MiB is too long", "shorten the text")
    question = json.loads(text)
    action = ACTIONS.get(str(question.get("do")))
    if action is None:
        raise DsforgeError(f"unknown question `{str(question.get('do'))[:60]}`")
    return action(question)


def _choices(_question: Question) -> Answer:
    """What the form offers: names of the catalog, and this version."""
    from dsforge import catalog
    from dsforge.units import count

    def models() -> list[dict[str, str]]:
        rows = catalog.rows("model")
        return [{"name": row["name"], "note": count(row["params_exact"])} for row in rows]

    gpus = [{"name": r["name"], "note": f"{r['usable_gib']:g} GiB"} for r in catalog.rows("gpu")]
    links = [{"name": r["name"], "note": f"{r['gb_per_s']:g} GB/s"} for r in catalog.rows("link")]
    return {
        "version": dsforge.__version__,
        "models": models(),
        "gpus": gpus,
        "links": links,
    }


def _plan(question: Question) -> Answer:
    """The ranking, or the plan nearest to fitting."""
    from dsforge.api.pricing import nearest
    from dsforge.document import MisfitDocument
    from dsforge.ui.shown import shown_alternatives, shown_losers, shown_plan, shown_ranking

    job = _job(question)
    request = job.request()
    try:
        found = dsforge.plan(request, top=TOP, **job.wishes)
    except DoesNotFitError as error:
        close = nearest(request)
        _remember(question, (close.plan,))
        misfit = MisfitDocument.model_construct(error=error.message, nearest=close.document)
        remedies = [str(way) for way in close.remedies]
        shown = {**shown_plan(close.plan), "remedies": remedies, "command": job.command}
        return {**_documented(question, misfit), "shown": shown, "error": _error(error)}
    _remember(question, (*found.plans[:TOP], *_other_plans(found)))
    shown = {
        **shown_plan(found.best),
        "ranking": shown_ranking(found.search, TOP),
        "losers": shown_losers(found.search),
        "alternatives": shown_alternatives(found.alternatives),
        "searched": f"{found.search.candidates:,} candidates",
        "command": job.command,
    }
    return {**_documented(question, found.document), "shown": shown}


def _other_plans(found: dsforge.PlanResult) -> Iterator[dsforge.Plan]:
    """The plans of the alternatives, so that their figures have explanations, too."""
    from dsforge.planner import price

    best = found.best
    for other in found.alternatives:
        priced = price(best.model, best.cluster, best.workload, other.strategy)
        yield best.model_copy(update={"choice": priced})


def _argue(question: Question) -> Answer:
    """What would change the choice, and the Pareto front: many searches."""
    from dsforge.ui.shown import shown_front

    job = _job(question)
    found = dsforge.plan(job.request(), top=TOP, front=True, flips=True, **job.wishes)
    _last_front[:] = [_Planned(_key(question), found.front_plans())]
    flips = [{"text": str(flip), "strategy": flip.label} for flip in found.flips or ()]
    shown = {"front": shown_front(found.front or ()), "flips": flips}
    return {**_documented(question, found.document), "shown": shown}


def _find(question: Question) -> Answer:
    """How much of one thing fits."""
    from dsforge.api.sizing import QUESTIONS, opened
    from dsforge.reading.request import read_request
    from dsforge.ui.shown import shown_plan

    sought = next((name for name in QUESTIONS if name == question.get("question")), None)
    if sought is None:
        raise DsforgeError(f"unknown question; one of {', '.join(QUESTIONS)}")
    found = dsforge.find(sought, read_request(opened(sought, _job(question).asked)))
    answer = found.answer
    certain = answer.certain if answer.certain is not None else "none"
    possible = answer.possible if answer.possible is not None else "none"
    shown = {
        "value": answer.name or f"{answer.value:,}",
        "certain": certain if isinstance(certain, str) else f"{certain:,}",
        "possible": possible if isinstance(possible, str) else f"{possible:,}",
        "limit": answer.limit,
        "plan": shown_plan(found.plan),
    }
    return {"document": _dumped(found.document), "shown": shown}


def _explain(question: Question) -> Answer:
    """A figure of a plan with its formula, inputs and source, and all that it rests on."""
    from dsforge.explain.wording import quantity

    plan = _planned(question)
    figure = question.get("figure")
    found = dsforge.explain(plan, None if figure is None else str(figure))
    texts = {each.name: quantity(each.value, each.unit) for each in found.figures}
    for each in found.figures:
        texts |= {given.name: quantity(given.value, given.unit) for given in each.inputs}
    name = "" if figure is None else found.called(str(figure))
    return {"document": _dumped(found), "shown": {"figure": name, "texts": texts}}


def _gen(question: Question) -> Answer:
    """The run folder as a zip file, in base64."""
    import base64

    from dsforge.api.planning import pack

    job = _job(question)
    return {"zip": base64.b64encode(pack(job.request(), out=RUN, **job.wishes)).decode()}


def _lint(question: Question) -> Answer:
    """What is wrong with a pasted or dropped file; against the job where one is given."""
    from dsforge.findings.writers import summary

    name, kind = str(question.get("name") or ""), question.get("kind") or None
    request = _job(question).request() if question.get("job") else None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (name if _SAFE_NAME.fullmatch(name) else "pasted")
        path.write_text(str(question.get("text", "")), encoding="utf-8")
        found = dsforge.lint(
            path,
            kind=kind,
            model=request.model if request else None,
            cluster=request.cluster if request else None,
        )
    document = _dumped(found.document)
    for finding in document["findings"]:
        finding["file"] = path.name
    return {"document": document, "shown": {"summary": summary(found.findings)}}


def _diagnose(question: Question) -> Answer:
    """The causes that a pasted log shows; with the last plan, memory errors in its terms."""
    plan = _planned(question) if question.get("job") else None
    found = dsforge.diagnose(text=str(question.get("text", "")), plan=plan)
    return {"document": _dumped(found.document)}


ACTIONS: dict[str, Callable[[Question], Answer]] = {
    "choices": _choices,
    "plan": _plan,
    "argue": _argue,
    "find": _find,
    "explain": _explain,
    "gen": _gen,
    "lint": _lint,
    "diagnose": _diagnose,
}


def _job(question: Question) -> Job:
    return read_job(question.get("job", {}))


def _key(question: Question) -> str:
    return json.dumps(question.get("job", {}), sort_keys=True)


def _remember(question: Question, plans: tuple[dsforge.Plan, ...]) -> None:
    _last[:] = [_Planned(_key(question), plans)]


def _planned(question: Question) -> dsforge.Plan:
    """The plan of that rank, or place on the front, of the last answer, else worked out again."""
    of_front = "front" in question
    last, answer = (_last_front, _argue) if of_front else (_last, _plan)
    if not last or last[0].job != _key(question):
        answer(question)
    plans, rank = last[0].plans, question.get("front" if of_front else "rank", 0)
    if not isinstance(rank, int) or not 0 <= rank < len(plans):
        raise DsforgeError(f"the answer has {len(plans)} plans")
    return plans[rank]


def _documented(question: Question, document: Any) -> Answer:
    """The document of a plan, unless the question can do without: it is most of a short answer."""
    return {"document": _dumped(document)} if question.get("document", True) else {}


def _dumped(document: Any) -> dict[str, Any]:
    """A document as the command line prints it: without secrets."""
    dumped: dict[str, Any] = masked_document(document.model_dump(mode="json"))
    return dumped


def _error(error: DsforgeError) -> dict[str, Any]:
    """An error in parts, and as the command line shows it."""
    problems = [
        {"rule": each.rule, "message": each.message, "hint": each.hint, "place": each.place}
        for each in getattr(error, "problems", ())
    ]
    found = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
    more = {"problems": problems, "text": error_report(error), "exit_code": error.exit_code}
    masked: dict[str, Any] = masked_document({**found, **more})
    return masked
