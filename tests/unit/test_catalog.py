"""The catalog: forgiving names, complete rows, sources, and speed by construction."""

from __future__ import annotations

import json

import pytest
import yaml
from click.testing import CliRunner

from dsforge import catalog
from dsforge.catalog import index
from dsforge.cli.main import app
from dsforge.errors import SpecError
from dsforge.units import GIB

MODEL_NAMES = {
    "llama-2-7b": "llama-2-7b",
    "Llama2-7B": "llama-2-7b",
    "llama_2_7b": "llama-2-7b",
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "gpt3-175b": "gpt3-175b",
    "GPT-3 175B": "gpt3-175b",
    "gpt3-1.3b": "gpt3-1.3b",
    "gpt3-13b": "gpt3-13b",
    "mt-nlg-530b": "megatron-turing-nlg-530b",
    "gpt2": "gpt2-small",
    "microsoft/phi-1_5": "phi-1.5",
    "mixtral": "mixtral-8x7b",
}
LENT_SHAPES = {
    "meta-llama/Llama-2-7b-chat-hf": "llama-2-7b",
    "NousResearch/Llama-2-7b-hf": "llama-2-7b",
    "someone/Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "google/gemma-3-4b-it": "gemma-3-4b",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "Meta-Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "someone/Llama-2-7B-AWQ": None,
    "someone/Llama-2-7B-GGUF": None,
    "someone/brandnew-7b": None,
}
GPU_NAMES = {
    "a100-80gb": "a100-80gb",
    "A100_80GB": "a100-80gb",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "a100-80gb-pcie": "a100-80gb-pcie",
    "NVIDIA A100 80GB PCIe": "a100-80gb-pcie",
    "h100-80gb": "h100-80gb",
    "NVIDIA H100 80GB HBM3": "h100-80gb",
    "NVIDIA H100 PCIe": "h100-80gb-pcie",
    "NVIDIA H200": "h200-141gb",
    "NVIDIA B200": "b200-180gb",
    "rtx-4090": "rtx-4090",
    "RTX 4090": "rtx-4090",
    "4090": "rtx-4090",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "3060": "rtx-3060",
    "NVIDIA GeForce RTX 3060 Laptop GPU": "rtx-3060-laptop",
    "v100-32gb": "v100-32gb",
    "Tesla V100-SXM2-16GB": "v100-16gb",
    "Tesla T4": "t4-16gb",
    "NVIDIA RTX A6000": "rtx-a6000-48gb",
    "AMD Instinct MI300X": "mi300x",
    "Gaudi2": "gaudi-2",
    "NVIDIA A40": "a40-48gb",
    "NVIDIA A30": "a30-24gb",
    "NVIDIA L40": "l40-48gb",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada-48gb",
    "NVIDIA H100 NVL": "h100-94gb-nvl",
    "NVIDIA GeForce RTX 2080 Ti": "rtx-2080-ti",
    "NVIDIA GeForce RTX 3090 Ti": "rtx-3090-ti",
    "NVIDIA GeForce RTX 5080": "rtx-5080",
    "NVIDIA GeForce RTX 5070 Ti": "rtx-5070-ti",
    "AMD Instinct MI250": "mi250",
    "NVIDIA A100-SXM-64GB": "a100-64gb",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000-96gb",
    "NVIDIA GB10": "gb10-128gb",
    "GB200 NVL72": "gb200-186gb",
    "cpu": "cpu",
}
LINK_NAMES = {
    "10gbe": "10gbe",
    "100GbE": "100gbe",
    "infiniband-400": "infiniband-400",
    "InfiniBand NDR": "infiniband-400",
    "hdr": "infiniband-200",
    "nvlink-3": "nvlink-3",
    "NVLink 4": "nvlink-4",
    "pcie-4": "pcie-4",
    "PCIe Gen5": "pcie-5",
    "EFA": "efa-400",
    "RoCE": "roce-400",
    "xgmi": "xgmi",
}
# Cards of the measurement tables, under the names that are used there.
MEASURED_CARDS = (
    *("V100-16GB-SXM2", "V100-32GB-SXM2", "A100-40GB-SXM", "A100-80GB-SXM", "A100-80GB-PCIe"),
    *("A800-80GB-SXM", "H100-80GB-SXM", "H100-96GB-SXM-500W", "H100-80GB-PCIe"),
    *("H200-141GB-SXM", "H800-80GB-SXM", "H20-96GB-SXM", "GH200-96GB", "GH200-141GB"),
    *("B200-180GB", "GB200-186GB", "B300-288GB", "GB300", "L4", "L40S-48GB", "A10-24GB"),
    *("RTX-3090-24GB", "RTX-4090-24GB", "RTX-5090-32GB", "RTX-A6000-48GB", "MI250X", "MI300X"),
    *("MI325X", "MI355X", "Gaudi2", "Gaudi3"),
)


@pytest.mark.parametrize(("written", "name"), MODEL_NAMES.items(), ids=str)
def test_model_names_are_forgiving(written: str, name: str) -> None:
    """Case, separators and aliases lead to the row."""
    assert catalog.model(written).name == name


@pytest.mark.parametrize(("written", "row"), LENT_SHAPES.items(), ids=str)
def test_copies_and_fine_tunes_have_the_shape_of_their_origin(
    written: str, row: str | None
) -> None:
    """Organisation and variant do not change sizes; a quantised checkpoint is another matter."""
    assert catalog.lent_shape(written) == row


@pytest.mark.parametrize(("written", "name"), GPU_NAMES.items(), ids=str)
def test_gpu_names_are_forgiving(written: str, name: str) -> None:
    """Short names and the names that drivers report lead to the row."""
    assert catalog.gpu(written).name == name


@pytest.mark.parametrize(("written", "name"), LINK_NAMES.items(), ids=str)
def test_link_names_are_forgiving(written: str, name: str) -> None:
    """Usual spellings of a link lead to the row."""
    assert catalog.link(written).name == name


@pytest.mark.parametrize("name", MEASURED_CARDS)
def test_every_measured_card_is_known(name: str) -> None:
    """All 31 cards of the published measurements can be named as they are there."""
    assert catalog.gpu(name).memory_bytes > 14 * GIB


@pytest.mark.parametrize(
    ("lookup", "name", "nearest"),
    [
        (catalog.model, "lama-2-7b", "llama-2-7b"),
        (catalog.gpu, "a100-90gb", "a100-80gb"),
        (catalog.link, "15gbe", "10gbe"),
    ],
    ids=["model", "gpu", "link"],
)
def test_an_unknown_name_lists_the_nearest(lookup, name: str, nearest: str) -> None:
    """The error names close rows and the command that lists all."""
    with pytest.raises(SpecError) as error:
        lookup(name)

    hint = error.value.problems[0].hint
    assert ("describe it in a cluster file" in hint) == (lookup is catalog.gpu)
    assert nearest in hint
    assert "dsforge catalog" in hint


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tpu-v4", "do not run on TPUs"),
        ("v5p-128", "do not run on TPUs"),
        ("AWS Trainium2", "do not run on AWS Neuron"),
        ("trn2", "do not run on AWS Neuron"),
        ("ascend-910b", "Ascend"),
        ("Huawei Ascend 910C", "Ascend"),
        ("910b", "Ascend"),
    ],
)
def test_what_no_plan_can_be_made_for_is_refused_by_name(name: str, why: str) -> None:
    """The reason and the way out, in place of cards that are spelled like it."""
    with pytest.raises(SpecError, match="1 problem") as error:
        catalog.gpu(name)

    assert why in error.value.problems[0].message
    assert error.value.problems[0].hint


def test_no_card_of_the_catalog_is_taken_for_a_foreign_one() -> None:
    """Every name and alias still finds its row."""
    for row in catalog.rows("gpu"):
        for name in (row["name"], *row["aliases"]):
            assert catalog.gpu(name).name == row["name"]


def test_cards_of_one_chip_and_rate_class_agree() -> None:
    """Workstation cards accumulate in fp32 at full rate: four times plain fp32, GeForce twice."""
    full = ("rtx-a6000", "a40", "l40s", "rtx-6000-ada", "rtx-pro-6000", "a10")
    half = [name for name in catalog.gpu_names() if name.startswith(("rtx-3", "rtx-4", "rtx-5"))]
    half += ["l40"]
    ratio = {
        name: catalog.gpu(name).peak_flops["bf16"] / catalog.gpu(name).peak_flops["fp32"]
        for name in (*full, *half)
    }

    assert all(ratio[name] == pytest.approx(4, rel=0.02) for name in full), ratio
    assert all(ratio[name] == pytest.approx(2, rel=0.02) for name in half), ratio


@pytest.mark.parametrize("kind", ["model", "gpu", "link"])
def test_every_row_cites_its_source(kind: str) -> None:
    """No figure without a place where it comes from."""
    assert [row["name"] for row in catalog.rows(kind) if not row["source"]] == []


@pytest.mark.parametrize("kind", ["model", "gpu", "link"])
def test_the_split_into_rows_loses_nothing(kind: str) -> None:
    """The rows found by the text index are those that YAML finds in the whole file."""
    path = index.__file__.replace("index.py", f"{kind}s.yaml")
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 (a name, not a Path)
        whole = yaml.load(file, Loader=yaml.CSafeLoader)

    assert catalog.rows(kind) == whole


@pytest.mark.parametrize("kind", ["model", "gpu", "link"])
def test_no_two_rows_answer_to_the_same_name(kind: str) -> None:
    """Names, aliases and hub ids are unique after spelling is taken off."""
    table = {"model": catalog._models, "gpu": catalog._gpus, "link": catalog._links}[kind]()
    claims: dict[str, set[str]] = {}
    for row in catalog.rows(kind):
        hub_id = row.get("hub_id") or row["name"]
        variants = [table.key(variant) for variant in row.get("variants", ())]
        assert not set(variants) & set(table.names), "a variant is a row of its own"
        for name in (row["name"], *row["aliases"], hub_id, hub_id.rpartition("/")[2]):
            claims.setdefault(table.key(name), set()).add(row["name"])

    assert {key: names for key, names in claims.items() if len(names) > 1} == {}


def test_every_model_is_found_by_its_name() -> None:
    """Each row becomes a ModelSpec of its name."""
    names = list(catalog.model_names())

    assert [catalog.model(name).name for name in names] == names
    assert len(names) == len(catalog.rows("model"))


def test_cards_lead_to_a_link_in_their_node() -> None:
    """Every card names a link of the catalog; one that is not in it gets PCIe 4."""
    links = {name: catalog.default_intra_node(catalog.gpu(name)) for name in catalog.gpu_names()}
    unknown = catalog.gpu("a100").model_copy(update={"name": "my-own-card"})

    assert {link.name for link in links.values()} <= set(catalog.link_names())
    assert links["a100-80gb"].name == "nvlink-3"
    assert links["rtx-a6000-48gb"].name == "pcie-4"
    assert links["rtx-3060"].name == "pcie-4-host"  # GeForce: no peer-to-peer
    assert links["cpu"].kind == "memory"
    assert catalog.default_intra_node(unknown).name == "pcie-4"


def test_usable_memory_is_below_the_capacity() -> None:
    """Both figures are given, and a process gets less than the vendor prints."""
    rows = catalog.rows("gpu")

    assert all(0 < row["usable_gib"] < row["memory_gib"] for row in rows)
    assert catalog.gpu("a100-80gb").memory_bytes == round(79.15 * GIB)


def test_a_card_without_bf16_says_so() -> None:
    """V100 and T4 have no bf16 peak, so nothing can plan bf16 on them by mistake."""
    assert "bf16" not in catalog.gpu("v100-32gb").peak_flops
    assert "bf16" not in catalog.gpu("t4").peak_flops
    assert catalog.gpu("a100").peak_flops["bf16"] == 312e12


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["models", "llama-2"], "llama-2-7b"),
        (["gpus", "mi300x"], "mi300x"),
        (["links"], "nvlink-1"),
    ],
    ids=["models", "gpus", "links"],
)
def test_command_lists_rows(words: list[str], first: str) -> None:
    """`dsforge catalog` shows the rows whose names hold the words, as a table and as JSON."""
    shown = CliRunner().invoke(app, ["catalog", *words])
    as_json = CliRunner().invoke(app, ["catalog", *words, "--json"])

    assert first in shown.output
    assert json.loads(as_json.output)[words[0]][0]["name"] == first


def test_command_says_when_nothing_matches() -> None:
    """A filter that no name holds is an error with the way out."""
    result = CliRunner().invoke(app, ["catalog", "models", "zzz"])

    assert isinstance(result.exception, SpecError)
    assert "zzz" in result.exception.problems[0].message
