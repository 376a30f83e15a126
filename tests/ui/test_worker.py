"""What the page asks its planner, without a browser: the same code, the same words."""

from __future__ import annotations

import json
import re
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from ui_jobs import JOBS, Fields
from ui_page import arguments, differences, in_the_page, on_the_command_line

from dsforge.cli.flags import FLAGS, option_name
from dsforge.cli.main import app
from dsforge.cli.wish import Wish
from dsforge.programs import BY_NAME as PROGRAMS
from dsforge.ui.export import PAGE
from dsforge.ui.fields import FIELDS
from dsforge.ui.worker import ACTIONS, answered

# Flags that the page leaves out: files and hosts of the machine, and settings of the launch.
NOT_IN_THE_PAGE = {
    *("spec", "cluster", "workload", "hostfile", "resolve", "data", "nvlink_domain", "hpz"),
    *("ssh_port", "include", "exclude", "slurm_account", "slurm_partition", "slurm_time"),
    *("loss", "attention", "buckets", "trainer", "kernels", "software", "base", "preference"),
    *("reference", "image_tokens", "vision_training", "offload_activations", "tiled_mlp"),
    *("expert_dispatch", "virtual_stages", "epochs", "learning_rate", "lora_rank", "lora_alpha"),
    *("validation_fraction", "imported"),
}
JOB: Fields = {"model": "gpt2", "gpu": "v100-32gb", "gpus_per_node": "4"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def ask(question: Any) -> dict[str, Any]:
    """The answer to a question."""
    found: dict[str, Any] = json.loads(answered(json.dumps(question)))
    return found


def test_every_field_is_a_flag_with_the_same_place() -> None:
    """The page and the command line have one list of settings; what is left out is named here."""
    settings = {name: (option_name(name), flag.setting) for name, flag in FLAGS.items()}
    mine = {name: (field.flag, field.setting) for name, field in FIELDS.items() if field.setting}
    wishes = {name for name, field in FIELDS.items() if not field.setting}

    assert mine == {n: told for n, told in settings.items() if n not in NOT_IN_THE_PAGE}
    assert wishes == set(Wish.__annotations__)


def test_every_field_stands_in_the_form_and_in_links() -> None:
    """The page has a control for each field, and a link can hold each."""
    form = (PAGE / "index.html").read_text()
    links = (PAGE / "link.js").read_text()
    listed = re.findall(r'"(\w+)"', links.partition("FIELDS = [")[2].partition("]")[0])

    assert len(listed) == len(FIELDS)
    assert set(listed) == set(FIELDS)
    for name, field in FIELDS.items():
        assert f'id="field-{name}" name="{name}" data-flag="{field.flag}"' in form, name


def test_the_form_offers_every_program() -> None:
    """`--for` of the form has the trainers of the command, and a plan of one is priced by it."""
    form = (PAGE / "index.html").read_text()
    select = form.partition('id="field-back_end"')[2].partition("</select>")[0]
    offered = re.findall(r'<option value="([\w-]+)"', select)

    assert offered == ["deepspeed", "megatron", *PROGRAMS]
    for name in ("torchtune", "transformers"):
        shown = ask({"do": "plan", "job": {"fields": {**JOBS[0], "back_end": name}}})["shown"]
        assert f"--for {name}" in shown["command"]


def test_no_script_of_the_page_takes_markup_from_data() -> None:
    """Text is set as text, nothing is evaluated, no address of another site is named."""
    for path in PAGE.glob("*.js"):
        code = path.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "://"):
            assert word not in code, f"{path.name}: {word}"


@pytest.mark.parametrize("fields", JOBS[:8], ids=lambda fields: fields["model"])
def test_the_command_of_an_answer_asks_the_same(fields: Fields) -> None:
    """The line that the page shows has the arguments of the job."""
    answer = ask({"do": "plan", "job": {"fields": fields}})
    words = answer["shown"]["command"].split()

    assert words == ["dsforge", "plan", *sorted_like_the_form(fields)]


def sorted_like_the_form(fields: Fields) -> list[str]:
    """The arguments in the order of the form."""
    return arguments({name: fields[name] for name in FIELDS if name in fields})


@pytest.mark.parametrize("rank", range(3))
def test_every_shown_figure_has_an_explanation(rank: int) -> None:
    """No row names a figure that `explain` does not know."""
    job = {"fields": {**JOB, "tokens": "1b", "gpu_hour_price": "2"}}
    shown = ask({"do": "plan", "job": job})["shown"]
    rows = [
        row
        for part in ("memory", "counters", "host", "time", "speed", "run")
        for row in shown[part]
    ]
    names = {row["figure"] for row in rows if row["figure"]} | {"step_likely", "device_likely"}

    assert len(names) > 20
    for name in names | {"host_bytes", "mfu"}:
        found = ask({"do": "explain", "job": job, "rank": rank, "figure": name})
        assert found["shown"]["texts"][found["shown"]["figure"]], (name, found)


def test_an_alternative_is_explained_with_its_own_figures() -> None:
    """Behind the ranking come the fastest plans of other kinds, and nothing disagrees."""
    job = {"fields": {"model": "llama-3.1-8b", "gpu": "h100-80gb", "gpus_per_node": "8"}}
    answer = ask({"do": "plan", "job": job})
    first = len(answer["shown"]["ranking"])
    others = answer["document"]["alternatives"]

    assert len(others) > 5
    for place, other in enumerate(others):
        question = {"do": "explain", "job": job, "rank": first + place, "figure": "step_likely"}
        found = ask(question)["document"]
        assert found["label"] == other["label"]
        assert found["disagreements"] == []
        (step,) = (each for each in found["figures"] if each["name"] == "step_likely")
        assert step["value"] == pytest.approx(other["step_s"], rel=1e-9)
    beyond = {"do": "explain", "job": job, "rank": first + len(others), "figure": "step_likely"}
    assert "plans" in ask(beyond)["error"]["message"]


def test_a_packed_run_folder_has_the_files_of_gen(tmp_path: Path) -> None:
    """Names, contents and permissions are those that `dsforge gen` writes."""
    import base64

    packed = base64.b64decode(ask({"do": "gen", "job": {"fields": JOB}})["zip"])
    made = CliRunner().invoke(app, ["gen", *arguments(JOB), "--out", str(tmp_path / "run")])
    assert made.exit_code == 0

    archive = zipfile.ZipFile(BytesIO(packed))
    files = {str(p.relative_to(tmp_path)): p for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert sorted(archive.namelist()) == sorted(files)
    for info in archive.infolist():
        path = files[info.filename]
        assert archive.read(info) == path.read_bytes(), info.filename
        assert (info.external_attr >> 16) & 0o111 == path.stat().st_mode & 0o111, info.filename
        assert info.external_attr >> 28 == 0o10


@pytest.mark.parametrize("text", ["model/config.json", "", "[1]", "{", '{"model_type": "nosuch"}'])
def test_a_bad_config_is_an_error_in_words(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config.json that is none never fails as a bug."""
    monkeypatch.chdir(tmp_path)
    error = ask({"do": "plan", "job": {"fields": {"gpu": "h100-80gb"}, "config": text}})["error"]

    assert error["kind"] == "SpecError"
    assert error["problems"]


@given(
    name=st.sampled_from([*ACTIONS, "nosuch"]),
    job=st.fixed_dictionaries({}, optional={"fields": JSON, "hub": JSON}) | JSON,
    more=st.dictionaries(st.sampled_from(["question", "figure", "rank", "text", "kind"]), JSON),
)
def test_no_question_of_a_stranger_is_a_bug(name: str, job: Any, more: dict[str, Any]) -> None:
    """Whatever a link or a script asks, the answer is an answer or an error in words."""
    found = ask({**more, "do": name, "job": job})

    assert found.get("error", {}).get("kind") != "bug", found


CLUSTER_FILES = {
    "cluster.yaml": "gpu: a100-80gb\nnodes: 2\ngpus_per_node: 8\ninter_node: ib-ndr\n",
    "groups.yaml": "groups:\n- {gpu: h100-80gb, nodes: 1, gpus_per_node: 8}\n"
    "- {gpu: a100-80gb, nodes: 1, gpus_per_node: 8}\n",
    "hostfile": "# two machines\ngpu01 slots=8\ngpu02 slots=8\n",
    "unlike slots": "gpu01 slots=8\ngpu02 slots=4\n",
    "wrong key": "gpu: a100-80gb\nnode: 2\n",
    "wrong line": "gpu01 slots=8\ngpu02 slots=eight\n",
    "no mapping": "- a\n",
    "no YAML": "gpu: [\n",
    "empty": "",
}


@pytest.mark.parametrize("name", CLUSTER_FILES)
def test_a_cluster_file_counts_as_on_the_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document, or each problem with its line, is that of `--cluster` or `--hostfile`."""
    text, is_hostfile = CLUSTER_FILES[name], "slots=" in CLUSTER_FILES[name]
    monkeypatch.chdir(tmp_path)
    file = "hostfile" if is_hostfile else "cluster.yaml"
    Path(file).write_text(text)
    fields = {"model": "gpt2-xl", **({"gpu": "a100-80gb"} if is_hostfile else {})}
    answer = ask({"do": "plan", "job": {"fields": fields, "cluster": text}})
    flag = f"--{file.removesuffix('.yaml')}"
    other = on_the_command_line("plan", fields, flag, file)

    assert differences(in_the_page(answer), other) == []
    if "error" not in answer:
        assert answer["shown"]["command"].startswith(f"dsforge plan {flag} {file} ")


def test_fields_win_over_a_cluster_file() -> None:
    """As flags win over `--cluster`."""
    text = CLUSTER_FILES["cluster.yaml"]
    fields = {"model": "gpt2-xl", "nodes": "1"}
    shown = ask({"do": "plan", "job": {"fields": fields, "cluster": text}})["shown"]

    assert "on 1 x 8 a100-80gb" in shown["headline"]


@pytest.mark.parametrize("cluster", [5, ["gpu: a100"], "x" * (1 << 20)])
def test_a_cluster_file_of_a_stranger_is_refused_in_words(cluster: Any) -> None:
    """Text of bounded length, or nothing."""
    error = ask({"do": "plan", "job": {"fields": {"model": "7b"}, "cluster": cluster}})["error"]

    assert "a cluster file must be text" in error["message"]


def test_every_point_of_the_front_is_explained_with_its_own_figures() -> None:
    """Step, GPU-seconds, free memory, days and cost of each plan, on its part of the cluster."""
    job = {"fields": {**JOB, "tokens": "1b", "gpu_hour_price": "2"}}
    front = ask({"do": "argue", "job": job})["document"]["front"]

    assert len({point["gpus"] for point in front}) > 1
    for place, point in enumerate(front):
        found = ask({"do": "explain", "job": job, "front": place, "figure": None})["document"]
        values = {figure["name"]: figure["value"] for figure in found["figures"]}
        assert found["label"] == point["label"]
        assert found["disagreements"] == []
        assert values["world_size"] == point["gpus"]
        assert values["step_likely"] == pytest.approx(point["step_s"]["likely"], rel=1e-9)
        assert values["gpu_s"] == pytest.approx(point["gpu_s"], rel=1e-9)
        assert values["free_memory"] == pytest.approx(point["free_bytes"], abs=1)
        assert values["days"] == pytest.approx(point["run"]["days"]["likely"], rel=1e-9)
        assert values["money"] == pytest.approx(point["run"]["money"]["likely"], rel=1e-9)
    beyond = {"do": "explain", "job": job, "front": len(front), "figure": "step_likely"}
    assert "plans" in ask(beyond)["error"]["message"]
