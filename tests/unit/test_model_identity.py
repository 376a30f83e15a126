"""The model that a person names is the one that train.yaml names, byte for byte, or is refused."""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dsforge import catalog
from dsforge.cli.main import app
from dsforge.errors import SpecError
from dsforge.reading.model import read_model
from dsforge.reading.request import Asked, read_request
from dsforge.reading.source import Setting
from dsforge.render.job import weights
from dsforge.train.model.source import model_source

CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "vocab_size": 32000,
}
SUFFIXES = ("", "-instruct", "-Instruct", "-chat", "-hf", "-base", "-it", "-pt", "-deduped")
QUANTISED = ("-awq", "-AWQ", "-gptq", "-GPTQ-Int4", "-fp8", "-gguf", "-bnb-4bit", "-mlx-8bit")
ORGANISATIONS = ("unsloth", "me", "META-LLAMA", "TheBloke", "a-b.c_d")
SAMPLE = 150  # of all combinations in the quick tests
ROWS = catalog.rows("model")
IDS = [row["hub_id"] for row in ROWS if row["hub_id"]]
KNOWN = {
    hub_id.lower() for row in ROWS for hub_id in (row["hub_id"], *row.get("variants", ())) if hub_id
}


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache and no network, as on a planning laptop; nothing in the current folder."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


def trained(text: str, folder: Path) -> str | None:
    """What the trainer loads for a model that is named; none where the name is refused."""
    try:
        model, _ = read_model(text)
    except SpecError:
        return None
    written = weights(model)
    return None if written is None else model_source(written, folder).name


def hub_ids() -> list[str]:
    """Catalog ids, with every suffix, under every organisation."""
    return [
        f"{owner}/{hub_id.partition('/')[2]}{suffix}"
        for hub_id, suffix in itertools.product(IDS, (*SUFFIXES, *QUANTISED))
        for owner in (hub_id.partition("/")[0], *ORGANISATIONS)
    ]


def misread_ids(ids: list[str], folder: Path) -> dict[str, str]:
    """Ids that lead to other weights."""
    found = {hub_id: trained(hub_id, folder) for hub_id in ids}
    return {asked: read for asked, read in found.items() if read not in (asked, None)}


def misread_names(names: list[tuple[dict, str]], folder: Path) -> dict[str, str]:
    """Names with a suffix that lead to weights that do not have it."""
    wrong = {}
    for row, suffix in names:
        found = trained(row["name"] + suffix, folder)
        own = found is None or (suffix in ("", "-hf") and found == row["hub_id"])
        named = own or (found.lower() in KNOWN and suffix.strip("-").lower() in found.lower())
        if not named:
            wrong[row["name"] + suffix] = found
    return wrong


def test_a_sample_of_ids_and_names_is_trained_as_named_or_refused(tmp_path: Path) -> None:
    """Other combinations of rows, suffixes and organisations with every seed."""
    draw = random.Random(int(os.environ.get("DSFORGE_SEED", "14")))  # noqa: S311 (a test)
    names = list(itertools.product(ROWS, (*SUFFIXES, *QUANTISED)))

    assert misread_ids(draw.sample(hub_ids(), SAMPLE), tmp_path) == {}
    assert misread_names(draw.sample(names, SAMPLE), tmp_path) == {}


@pytest.mark.slow
def test_every_id_and_name_is_trained_as_named_or_refused(tmp_path: Path) -> None:
    """All combinations; minutes, as each refusal looks for the nearest names."""
    names = list(itertools.product(ROWS, (*SUFFIXES, *QUANTISED)))

    assert misread_ids(hub_ids(), tmp_path) == {}
    assert misread_names(names, tmp_path) == {}


def test_what_is_refused_is_not_everything(tmp_path: Path) -> None:
    """Every id of the catalog itself is known, and so are its instruction-tuned siblings."""
    assert [hub_id for hub_id in sorted(KNOWN) if trained(hub_id, tmp_path) != hub_id] == []


@pytest.mark.parametrize(
    ("asked", "weights_of"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("unsloth/Llama-3.1-8B", "unsloth/Llama-3.1-8B"),
        ("meta-llama/llama-3.1-8b", "meta-llama/llama-3.1-8b"),
        ("llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("smollm2-135m-instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("llama-2-7b-chat", "meta-llama/Llama-2-7b-chat-hf"),
        ("deepseek-r1", "deepseek-ai/DeepSeek-R1"),
        ("bloomz", "bigscience/bloomz"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
    ],
)
def test_known_weights(asked: str, weights_of: str, tmp_path: Path) -> None:
    """Names and ids with the weights that they mean."""
    assert trained(asked, tmp_path) == weights_of


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-7b", "write 7b"),
        ("7b-", "not in the catalog"),
        ("-llama-2-7b", "write llama-2-7b"),
        ("llama-2-7b-", "not in the catalog"),
        ("qwen2.57b", "qwen2.5-7b"),
        ("llama-31-8b", "llama-3.1-8b"),
        ("llama-3.1-8b-awq", "nearest"),
        ("pythia-70m-instruct", "these weights are not"),
        ("meta-llama/Llama-3.1-8B/", "write meta-llama/Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B@main", "--revision main"),
        ("meta-llama//Llama-3.1-8B", "not in the catalog"),
        ("TheBloke/Llama-2-7B-AWQ", "hf download"),
        ("bert-base-cased", "nearest"),
    ],
)
def test_odd_names_are_refused_with_the_way_out(text: str, said: str) -> None:
    """Nothing is taken for what it is not."""
    with pytest.raises(SpecError) as error:
        read_model(text)

    assert said in "\n".join(map(str, error.value.problems))


@pytest.mark.parametrize("name", ["-100gbe", "100gbe-", "/100gbe"])
def test_links_with_odd_ends_are_refused(name: str) -> None:
    """`--inter-node -100gbe` is a typing error."""
    with pytest.raises(SpecError, match="problem"):
        catalog.link(name)


def test_lent_sizes_and_other_spellings_are_said() -> None:
    """What was not read or not written so is in the reasons."""
    lent = read_model("unsloth/Llama-3.1-8B")[1]
    spelled = read_model("Llama2_7B")[1]

    assert "sizes of llama-3.1-8b" in lent[0].message
    assert lent[0].rule.startswith("default-")  # shown as assumed
    assert "read as llama-2-7b (meta-llama/Llama-2-7b-hf)" in spelled[0].message


def test_a_folder_wins_over_the_hub_and_links_are_kept(tmp_path: Path) -> None:
    """A folder called like a hub id is that folder; a link is named as it was given."""
    folder = tmp_path / "meta-llama" / "Llama-3.1-8B"
    folder.mkdir(parents=True)
    (tmp_path / "blob").write_text(json.dumps(CONFIG))
    (folder / "config.json").symlink_to(tmp_path / "blob")
    (tmp_path / "link").symlink_to(folder)

    assert trained("meta-llama/Llama-3.1-8B", tmp_path) == str(folder)
    assert trained("link", tmp_path) == str(tmp_path / "link")
    model, _ = read_model(str(folder / "config.json"))
    assert (model.path, model.name) == (str(folder / "config.json"), "Llama-3.1-8B")


@pytest.mark.parametrize("written", ["models/mine", "./models/mine", "models/mine/config.json"])
def test_a_path_in_a_spec_is_relative_to_the_spec(tmp_path: Path, written: str) -> None:
    """With and without a leading dot, wherever the command is run."""
    folder = tmp_path / "project" / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    spec = tmp_path / "project" / "spec.yaml"
    spec.write_text(f"model: {written}\ncluster: {{gpu: a100, nodes: 1}}\n")
    request = read_request(Asked(spec=spec))

    assert Path(str(request.model.path)).is_relative_to(folder)


def test_the_id_reaches_the_request(tmp_path: Path) -> None:
    """By the flag, as every command gets it."""
    settings = (
        Setting(("model",), "meta-llama/Llama-3.1-8B-Instruct", "--model"),
        Setting(("cluster", "gpu"), "a100", "--gpu"),
    )

    assert read_request(Asked(settings=settings)).model.hub_id == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    "asked",
    [
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3.1-8B",
        "someone/SmolLM2-135M-Instruct",
        "HuggingFaceTB/smollm2-135m",
        "someone/SmolLM2-135M-AWQ",
        "someone/never-heard-of",
        "-7b",
    ],
)
def test_train_yaml_names_it_or_gen_fails(asked: str, tmp_path: Path) -> None:
    """From the command line to the file."""
    out = tmp_path / "run"
    words = [f"--model={asked}", "--gpu=a100", "--gpus-per-node=8", f"--out={out}"]
    done = CliRunner().invoke(app, ["gen", *words])
    written = [*out.glob("train*.yaml")]  # of the choice, or of the alternative to Megatron

    assert (done.exit_code == 0) == (len(written) == 1)
    assert all(yaml.safe_load(job.read_text())["model"] == asked for job in written)


def test_a_run_folder_behind_a_link_finds_the_model(tmp_path: Path) -> None:
    """The path in train.yaml is relative to where the link leads."""
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    out = tmp_path / "link" / "run"
    words = [f"--model={folder}", "--gpu=a100", "--gpus-per-node=8", f"--out={out}"]
    done = CliRunner().invoke(app, ["gen", *words])
    named = yaml.safe_load((out / "train.yaml").read_text())["model"]

    assert done.exit_code == 0
    assert (Path(os.path.realpath(out)) / named / "config.json").is_file()
