"""Figures of the page against those of the command line, in headless Chromium."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from playwright.sync_api import Page
from ui_jobs import CONFIG, JOBS, Fields
from ui_page import (
    answered,
    arguments,
    ask,
    differences,
    follow,
    fragment,
    in_the_page,
    on_the_command_line,
    type_into,
    wait_until,
)

from dsforge.cli.main import app

JOB: Fields = {"model": "llama-3.1-8b", "gpu": "h100-80gb", "nodes": "2", "gpus_per_node": "8"}


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_fifty_jobs_have_the_figures_of_the_command_line(page: Page, step: int) -> None:
    """Every number, text, reason and error of the JSON document is the same, of each fifth job."""
    assert len(JOBS) == len({json.dumps(job, sort_keys=True) for job in JOBS}) == 50
    wrong = {}
    for fields in JOBS[::step]:
        mine = in_the_page(ask(page, {"do": "plan", "job": {"fields": fields}}))
        lines = differences(mine, on_the_command_line("plan", fields))
        if lines:
            wrong[" ".join(arguments(fields))] = lines[:5]

    assert wrong == {}


def test_the_argument_is_that_of_the_command_line(page: Page) -> None:
    """The Pareto front and what would change the choice."""
    mine = in_the_page(ask(page, {"do": "argue", "job": {"fields": JOB}}))

    assert differences(mine, on_the_command_line("plan", JOB, "--argue")) == []
    assert mine["front"]


@pytest.mark.parametrize(
    ("question", "left_open"),
    [("micro-batch", None), ("seq-len", None), ("gpus", "nodes"), ("model", "model")],
)
def test_inverse_questions_have_the_answers_of_the_command_line(
    page: Page, question: str, left_open: str | None
) -> None:
    """`estimate --find` and the page agree."""
    fields = {name: text for name, text in JOB.items() if name != left_open}
    mine = in_the_page(ask(page, {"do": "find", "question": question, "job": {"fields": fields}}))

    assert differences(mine, on_the_command_line("estimate", fields, "--find", question)) == []
    assert mine["answer"]["value"]


def test_every_figure_of_the_answer_opens_its_explanation(page: Page) -> None:
    """Each has a value, a source, and the formula that `dsforge explain` shows."""
    follow(page, fragment(**JOB, tokens="2b", gpu_hour_price="2"))
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    figures = page.eval_on_selector_all("#answer .figure", "all => all.map(one => one.innerText)")
    assert len(figures) > 60

    for number, shown in enumerate(figures):
        button = page.locator("#answer .figure").nth(number)
        if number % 7 and number > 30:
            continue  # the tables of the ranking repeat four figures
        button.click()
        page.wait_for_selector("#explanation-body .value")
        assert page.inner_text("#explanation-body .value"), shown
        assert "Source" in page.inner_text("#explanation-body"), shown
        page.keyboard.press("Escape")


def test_figures_of_front_and_alternatives_explain_the_plan_of_their_row(page: Page) -> None:
    """The dialog is about that strategy, and its value is the one that was clicked."""
    follow(page, fragment(**JOB, tokens="2b", gpu_hour_price="2"))
    page.wait_for_selector("#front table", state="attached")
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    for rows in ("#front tbody tr", "#ranking tbody tr"):
        count = page.locator(rows).count()
        assert count > 10
        for number in (1, count // 2, count - 1):
            row = page.locator(rows).nth(number)
            strategy, figures = row.locator("th").inner_text(), row.locator(".figure")
            assert figures.count() >= 4
            for place in range(figures.count()):
                name = figures.nth(place).get_attribute("data-figure")
                figures.nth(place).click()
                page.wait_for_selector("#explanation-body .value")
                said = page.inner_text("#explanation-body")
                assert f"Of {strategy}." in said, (strategy, name)
                page.keyboard.press("Escape")
    step = page.locator("#front tbody tr").nth(1).locator("[data-figure=step_likely]")
    shown = step.inner_text()
    step.click()
    page.wait_for_selector("#explanation-body .value")
    assert f"({shown})" in page.inner_text("#explanation-body .value")
    page.keyboard.press("Escape")


CLUSTER = "gpu: a100-80gb\nnodes: 4\ngpus_per_node: 8\ninter_node: ib-ndr\n"
HOSTS = "gpu01 slots=8\ngpu02 slots=8\ngpu03 slots=8\n"
DROP = """([text, name]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
}"""
PASTE = """(text) => {
  const data = new DataTransfer();
  data.setData("text", text);
  const event = { clipboardData: data, bubbles: true, cancelable: true };
  document.body.dispatchEvent(new ClipboardEvent("paste", event));
}"""


def headline(page: Page, words: str) -> None:
    """Wait until the answer is about so many machines."""
    wait_until(page, f"document.querySelector('#headline').innerText.includes('{words}')")


def test_a_cluster_file_is_opened_dropped_or_pasted(page: Page, tmp_path: Path) -> None:
    """cluster.yaml and hostfile are told apart; a link holds them, and they can be removed."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    page.set_input_files("#cluster-file", files=str(tmp_path / "cluster.yaml"))
    headline(page, "4 x 8 a100-80gb")
    assert page.input_value("#field-nodes") == page.input_value("#field-gpu") == ""
    assert "--cluster cluster.yaml" in page.inner_text("#why .command")
    link = page.url

    page.evaluate(DROP, [HOSTS, "hostfile"])
    page.select_option("#field-gpu", "h100-80gb")
    headline(page, "3 x 8 h100-80gb")
    assert "--hostfile hostfile" in page.inner_text("#why .command")
    page.evaluate(PASTE, CLUSTER.replace("4", "2"))
    headline(page, "2 x 8 a100-80gb")
    page.evaluate(PASTE, CONFIG)
    wait_until(page, "document.querySelector('#headline').innerText.startsWith('model (1.1')")
    assert page.is_visible("#cluster-note")

    follow(page, link.partition("#")[2])
    assert "4 x 8 a100-80gb" in page.inner_text("#headline")
    page.click("#cluster-clear")
    wait_until(page, "document.querySelector('#answer').dataset.stale === 'true'")
    assert not page.is_visible("#cluster-note")


def test_a_bad_cluster_file_is_refused_with_its_lines(page: Page) -> None:
    """And a text that is typed into a field is none."""
    page.evaluate(DROP, ["gpu: a100-80gb\nnode: 2\n", "cluster.yaml"])
    page.wait_for_selector("#failure:not([hidden])")
    assert "node is not a key" in page.inner_text("#failure")
    page.click("#cluster-clear")
    page.focus("#field-model")
    before = page.url
    page.evaluate(PASTE.replace("document.body", "document.activeElement"), HOSTS)
    page.wait_for_timeout(300)
    assert page.url.partition("cluster=")[1] == before.partition("cluster=")[1] == ""


def test_an_explanation_is_that_of_the_command_line(page: Page, tmp_path: Path) -> None:
    """Formula, inputs and source of a figure, and of all that it rests on."""
    run = str(tmp_path / "run")
    assert CliRunner().invoke(app, ["gen", *arguments(JOB), "--out", run]).exit_code == 0
    shown = CliRunner().invoke(app, ["explain", run, "device_memory", "--json"])

    mine = ask(page, {"do": "explain", "job": {"fields": JOB}, "figure": "device_memory"})

    assert differences(mine["document"], json.loads(shown.stdout)) == []


def test_the_download_is_the_run_folder_of_gen(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zip file opens and holds the very files that `dsforge gen` writes."""
    follow(page, fragment(**JOB))
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.suggested_filename == "run.zip"
    archive = zipfile.ZipFile(io.BytesIO(download.value.path().read_bytes()))
    assert archive.testzip() is None
    archive.extractall(tmp_path / "page")

    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["gen", *arguments(JOB), "--out", "run"]).exit_code == 0

    mine, other = files_below(tmp_path / "page" / "run"), files_below(tmp_path / "run")
    assert mine.keys() == other.keys()
    assert [name for name in mine if mine[name] != other[name]] == []
    scripts = [info for info in archive.infolist() if info.filename.endswith(".sh")]
    assert all(info.external_attr >> 16 & 0o100 for info in scripts)


def test_a_dropped_config_is_the_model(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config.json gives the figures that the command line finds for its folder."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    fields = {"gpu": "h100-80gb", "gpus_per_node": "8"}

    mine = in_the_page(ask(page, {"do": "plan", "job": {"fields": fields, "config": CONFIG}}))
    other = on_the_command_line("plan", {"model": "model", **fields})

    assert differences(mine, other) == []
    page.set_input_files("#config-file", files=str(tmp_path / "model" / "config.json"))
    wait_until(page, "document.querySelector('#headline').innerText.startsWith('model (1.1')")


def test_what_is_typed_is_answered(page: Page) -> None:
    """The verdict follows the form; a mistake is marked at its field, and goes again."""
    type_into(page, "nodes", "4")
    assert "4 x 8 h100-80gb" in page.inner_text("#headline")
    type_into(page, "nodes", "four")
    assert "must be a whole number" in page.inner_text("#field-nodes-problem")
    assert page.get_attribute("#field-nodes", "aria-invalid") == "true"
    type_into(page, "nodes", "")
    assert page.get_attribute("#field-nodes", "aria-invalid") is None
    type_into(page, "model", "llama-3.1-405b")
    assert page.inner_text("#verdict") == "Does not fit"
    assert page.locator("#remedies li").count() > 0
    assert page.is_disabled("#download")


def test_a_link_brings_the_job_back(page: Page) -> None:
    """What is typed is in the fragment, and the fragment alone makes the same answer."""
    type_into(page, "seq_len", "8k")
    page.select_option("#field-method", "lora")
    wait_until(page, "location.hash.includes('method=lora')")
    answered(page)
    first, link = page.inner_text("#answer .hero"), page.url

    follow(page, fragment(model="gpt2", gpu="v100-32gb"))
    assert page.inner_text("#answer .hero") != first
    page.goto("about:blank")
    page.goto(link)
    answered(page)

    assert page.inner_text("#answer .hero") == first
    assert page.input_value("#field-seq_len") == "8k"
    assert page.input_value("#field-method") == "lora"


HOSTILE = {
    "#model=<img src=x onerror=alert(1)>&gpu=h100-80gb": "<img src=x onerror=alert(1)>",
    "#gpu=<script>alert(1)</script>&model=7b": "<script>alert(1)</script>",
    "#nosuch=1&model=7b&gpu=h100-80gb": "unknown field nosuch",
    "#model=/etc/passwd&gpu=h100-80gb": "/etc/passwd",
    "#model=7b&gpu=h100-80gb&nodes=1e999": "--nodes",
    '#config={"a":1}&gpu=h100-80gb': "config.json",
    "#model=7b&gpu=h100-80gb&tokens=" + "9" * 5000: "at most 1,024 characters",
}


def test_a_hostile_link_is_refused_as_text(page: Page) -> None:
    """Nothing of a link becomes markup; what is wrong is said."""
    for link, expected in HOSTILE.items():
        follow(page, link)

        assert expected in page.inner_text("#view-plan"), link
        assert page.locator("#view-plan :is(img, script)").count() == 0, link
        assert page.get_attribute("#answer", "data-stale") == "true", link
