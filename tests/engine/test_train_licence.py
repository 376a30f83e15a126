"""The licence of a base model: read where its files state it, bounded, and never guessed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dsforge.specs import LoraSpec
from dsforge.train.model.source import ModelSource
from dsforge.train.results.card import TrainedResult
from dsforge.train.results.licence import LONGEST_NAME, Licence, licence_of
from dsforge.train.results.loading import loading_code, serving_command, serving_note

pytestmark = pytest.mark.engine


def base(folder: Path, card: str) -> ModelSource:
    """A model folder with a README.md."""
    folder.mkdir(exist_ok=True)
    (folder / "README.md").write_text(card, encoding="utf-8")
    return ModelSource(str(folder))


def header(card: bytes) -> dict[str, object]:
    """The metadata of a card, which must be valid YAML."""
    return dict(yaml.safe_load(card.decode().split("---\n")[1]))


@pytest.mark.parametrize(
    ("card", "wanted"),
    [
        ("---\nlicense: mit\n---\n", ("mit", "mit")),
        ("---\r\nlicense: apache-2.0\r\n---\r\n# x", ("apache-2.0", "apache-2.0")),
        ("---\nlicense: other\nlicense_name: own\n---\n", ("own", "other")),
        ("---\nlicense: [mit, gpl]\n---\n", ("", "")),
        ("---\nlicense: &a [*a]\n---\n", ("", "")),
        ("---\nlicense: !!python/object/apply:os.system ['true']\n---\n", ("", "")),
        ("# no front matter, license: mit\n", ("", "")),
        ("---\n: : :\n---\n", ("", "")),
    ],
)
def test_a_card_states_its_licence(card: str, wanted: tuple[str, str], tmp_path: Path) -> None:
    """Only as text under the keys of the hub."""
    found = licence_of(base(tmp_path / "m", card))

    assert (found.name, found.key) == wanted


@given(st.text(max_size=300))
def test_whatever_a_base_states_the_card_stays_whole(
    tmp_path_factory: pytest.TempPathFactory, said: str
) -> None:
    """One line of metadata and one sentence; no table, code or metadata begins in it."""
    folder = tmp_path_factory.mktemp("m")
    text = f"---\n{yaml.safe_dump({'license': said})}---\n"
    found = licence_of(base(folder / "m", text))
    card = TrainedResult(ModelSource(str(folder / "m"))).files("model")["README.md"]
    plain = TrainedResult(ModelSource(str(tmp_path_factory.getbasetemp()))).files("model")

    assert len(found.name) <= LONGEST_NAME
    assert header(card).get("license", "") == found.key
    assert abs(card.count(b"\n") - plain["README.md"].count(b"\n")) <= 2


def test_links_and_large_files_are_left_out(tmp_path: Path) -> None:
    """Texts of the folder itself, up to a size; as many as licences have."""
    source = base(tmp_path / "m", "# x\n")
    folder = tmp_path / "m"
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (folder / "LICENSE").symlink_to(secret)
    (folder / "LICENSE.md").write_bytes(b"x" * (2 << 20))
    (folder / "NOTICE").mkdir()
    (folder / "LICENSE.py").write_text("print(1)")
    (folder / "USE_POLICY.md").write_text("policy")
    (folder / "LICENCE-MODEL.txt").write_text("terms")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(secret)

    assert licence_of(source) == Licence(
        named_in="", files={"LICENCE-MODEL.txt": b"terms", "USE_POLICY.md": b"policy"}
    )


def gguf(path: Path, **values: str) -> ModelSource:
    """A GGUF file of metadata alone."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    keys = {"general.architecture": "llama", **{f"general.{k}": v for k, v in values.items()}}
    parts = [text(key) + struct.pack("<I", 8) + text(value) for key, value in keys.items()]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(parts)) + b"".join(parts))
    return ModelSource(str(path.parent), gguf_file=path.name)


def test_a_gguf_file_states_its_licence_in_its_header(tmp_path: Path) -> None:
    """And its name; the licence texts of the folder that it is in may be of anything."""
    (tmp_path / "LICENSE").write_text("of another file")
    found = licence_of(gguf(tmp_path / "a.gguf", license="gemma", name="Gem", organization="Org"))

    assert (found.name, found.key, found.model) == ("gemma", "gemma", "Gem (Org)")
    assert not found.files
    (tmp_path / "b.gguf").write_bytes(b"GGUF and no more")
    assert licence_of(ModelSource(str(tmp_path), gguf_file="b.gguf")) == Licence()


def test_an_unknown_licence_is_said_with_the_place_to_look(tmp_path: Path) -> None:
    """A hub id that is not in the cache of this machine."""
    card = TrainedResult(ModelSource("nobody/nothing")).files("adapter")["README.md"].decode()

    assert "see https://huggingface.co/nobody/nothing" in card
    assert header(card.encode())["base_model"] == "nobody/nothing"
    assert "license" not in header(card.encode())
    assert TrainedResult(None).files("model") == {}


@pytest.mark.parametrize("rank", [1, 8, 9, 64, 100, 512])
def test_the_server_is_given_a_rank_that_it_knows(rank: int) -> None:
    """The smallest one that the adapter fits; where it knows none, there is no command."""
    command = serving_command("adapter", LoraSpec(rank=rank), "an/id", gguf=False)
    given = int(command.split()[-1])

    assert given >= rank
    assert given in (8, 16, 64, 128, 512)
    assert command.startswith("vllm serve an/id --enable-lora")


def test_what_a_server_cannot_load_has_a_word_instead_of_a_command() -> None:
    """Modules that were trained in full, GGUF bases, ranks beyond all."""
    whole, plain = LoraSpec(modules_to_save=("head",)), LoraSpec()
    for lora, is_gguf in ((whole, False), (plain, True)):
        assert serving_command("adapter", lora, "an/id", gguf=is_gguf) == ""
        assert "merged" in serving_note("adapter", lora, gguf=is_gguf)
    assert serving_command("model", plain, None, gguf=True) == "vllm serve ."


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("name", ["an/id", None])
@pytest.mark.parametrize("is_gguf", [True, False])
def test_the_code_of_a_card_is_python(bits: int, name: str | None, is_gguf: bool) -> None:
    """Of every kind of base; what it names is imported."""
    lora = LoraSpec.model_validate({"bits": bits})
    code = loading_code("adapter", lora, name, gguf=is_gguf)
    compiled = compile(code, "card", "exec")
    imported = {line for line in code.splitlines() if line.startswith(("from ", "import "))}

    classes = [word for word in compiled.co_names if word[0].isupper()]

    assert classes
    assert all(any(word in line for line in imported) for word in classes)
    assert ("quantization_config" in code) == (bits < 16)
