"""Reading a model by name, path, hub id or size; files and the hub are hostile until checked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dsforge.errors import SpecError
from dsforge.estimate.params import parameters
from dsforge.reading.hub import MAX_CONFIG_BYTES
from dsforge.reading.model import read_model

CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "vocab_size": 32000,
}
TOKEN = "hf_secret"


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache, and a network that is switched off unless a test switches it on."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str | None]]]:
    """A hub on this machine; the requests it got, each with its Authorization header."""
    seen: list[tuple[str, str | None]] = []
    answers = {
        "/a/good/resolve/main/config.json": (200, json.dumps(CONFIG).encode()),
        "/a/gated/resolve/main/config.json": (401, b"{}"),
        "/a/huge/resolve/main/config.json": (200, b" " * (MAX_CONFIG_BYTES + 1)),
        "/a/html/resolve/main/config.json": (200, b"<html>"),
    }

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("Authorization")))
            status, body = answers.get(self.path, (404, b""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield seen
    server.shutdown()
    server.server_close()


def cache(home: Path, hub_id: str, revision: str, config: dict, *, main: bool = False) -> None:
    """A snapshot in the cache layout of huggingface_hub."""
    folder = home / "hf" / "hub" / ("models--" + hub_id.replace("/", "--"))
    snapshot = folder / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(config))
    if main:
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(revision)


def problems(text: str) -> str:
    """Everything that the error for this model says."""
    with pytest.raises(SpecError) as error:
        read_model(text)
    return "\n".join(map(str, error.value.problems))


def test_a_catalog_name_needs_no_reason() -> None:
    """A name of the catalog is what it says."""
    model, reasons = read_model("Llama-2-7B")

    assert (model.name, reasons) == ("llama-2-7b", ())


@pytest.mark.parametrize("target", ["", "config.json"], ids=["folder", "file"])
def test_a_folder_and_its_config_are_the_same_model(tmp_path: Path, target: str) -> None:
    """The name is that of the folder either way."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    model, _ = read_model(str(folder / target))

    assert (model.name, model.layers, model.kv_heads) == ("my-model", 8, 8)


@pytest.mark.parametrize("prefix", ["", "gpt-"])
@pytest.mark.parametrize("size", ["100m", "350m", "1.3b", "7b", "13b", "30b", "70b", "175b", "2t"])
def test_a_size_gives_a_well_shaped_model_of_that_size(prefix: str, size: str) -> None:
    """Within 3 % of the size, heads of 128, a multiple of 256 for the MLP, the shape said."""
    model, reasons = read_model(prefix + size)
    asked = float(size[:-1]) * {"m": 1e6, "b": 1e9, "t": 1e12}[size[-1]]

    assert abs(parameters(model) / asked - 1) <= 0.03
    assert model.head_size == 128
    assert model.attention_heads % model.kv_heads == 0
    assert model.ffn_hidden_size % 256 == 0
    assert (model.model_type == "gpt2") == (prefix == "gpt-")
    assert f"{model.layers} layers" in reasons[0].message


def test_large_models_of_a_size_have_grouped_heads() -> None:
    """8 key/value heads above 30 B, one for each head below."""
    assert read_model("70b")[0].kv_heads == 8
    assert read_model("13b")[0].kv_heads == read_model("13b")[0].attention_heads


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a name"),
        ("x\ny", "must be a name"),
        ("x" * 5000, "must be a name"),
        ("0b", "100m and 10t"),
        ("99999999t", "100m and 10t"),
        ("9" * 400 + "b", "100m and 10t"),
        ("llama-2-99b", "nearest"),
        ("lama-2-7b", "llama-2-7b"),
        ("./missing", "does not exist"),
        ("missing/config.json", "does not exist"),
        ("~nobody-of-this-name/x", "does not exist"),
        ("/dev/null", "not a config.json"),
        ("/", "has no config.json"),
        ("a/../b", "not in the catalog"),
    ],
)
def test_unusable_names_say_why(text: str, said: str) -> None:
    """One readable message each, never a traceback."""
    assert said in problems(text)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"[]", "JSON object"),
        (b'{"hidden_size": NaN}', "not a JSON number"),
        (b'{"hidden_size": Infinity}', "not a JSON number"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"x": ' + b"9" * 5000 + b"}", "not JSON"),
        (b" " * (MAX_CONFIG_BYTES + 1), "larger than 1 MiB"),
        (b"{}", "num_hidden_layers is missing"),
        (json.dumps(CONFIG | {"hidden_size": "1k"}).encode(), "hidden_size (=1k) must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_hostile_config_files_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """Whatever is in the file, the answer is a problem with its place."""
    file = tmp_path / "config.json"
    file.write_bytes(content)

    assert said in problems(str(file))


def test_a_gguf_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """Neither the file nor a folder that holds only it is read."""
    (tmp_path / "model.gguf").write_bytes(b"GGUF")

    assert "catalog name" in problems(str(tmp_path / "model.gguf"))
    assert "GGUF" in problems(str(tmp_path))


def test_a_cached_hub_id_is_read_from_its_main_snapshot(tmp_path: Path) -> None:
    """refs/main decides; without it the newest snapshot does."""
    cache(tmp_path, "a/b", "1111", CONFIG, main=True)
    cache(tmp_path, "a/b", "2222", CONFIG | {"num_hidden_layers": 9})
    model, _ = read_model("a/b")

    assert (model.name, model.hub_id, model.layers) == ("a/b", "a/b", 8)


def test_a_cached_model_beats_a_catalog_row_of_the_same_name(tmp_path: Path) -> None:
    """A fine-tune that is called like a catalog model is read from its own config."""
    cache(tmp_path, "me/llama-2-7b", "1111", CONFIG)

    assert read_model("me/llama-2-7b")[0].layers == 8
    assert "sizes of llama-2-7b" in read_model("you/llama-2-7b")[1][0].message


def test_offline_an_unknown_hub_id_says_which_file_to_fetch() -> None:
    """The message holds a command for another machine."""
    assert "hf download some/model config.json" in problems("some/model")


def test_online_the_config_is_fetched(hub: list[tuple[str, str | None]]) -> None:
    """The hub at HF_ENDPOINT answers with config.json."""
    model, _ = read_model("a/good")

    assert (model.hub_id, model.layers) == ("a/good", 8)
    assert hub == [("/a/good/resolve/main/config.json", None)]


@pytest.mark.parametrize(
    ("hub_id", "said"),
    [
        ("a/gated", "gated, private or misspelt"),
        ("a/missing", "HTTP 404"),
        ("a/huge", "larger than 1 MiB"),
        ("a/html", "not JSON"),
    ],
)
def test_a_hub_that_refuses_is_explained(
    hub: list[tuple[str, str | None]], hub_id: str, said: str
) -> None:
    """Status, size and content of the answer are checked."""
    assert said in problems(hub_id)
    assert len(hub) == 1


def test_the_token_stays_secret(
    hub: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither sent without https nor shown in an error."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    assert TOKEN not in problems("a/gated")
    assert hub == [("/a/gated/resolve/main/config.json", None)]


def test_an_unreachable_hub_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there: the error says so, and what to do."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    assert "did not respond" in problems("a/b")
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    assert "must begin with https" in problems("a/b")
