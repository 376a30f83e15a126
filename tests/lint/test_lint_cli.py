"""`dsforge lint` as a user meets it: exit codes, formats, folders, repairs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lint_texts import ds

from dsforge.cli.main import main
from dsforge.errors import EXIT_FINDINGS
from dsforge.lint.check import RULES
from dsforge.lint.rule_pages import page

BAD = (
    '{\n  "fp16": {"enabled": true},\n  "bf16": {"enabled": true},\n  "zero_optimisation": {}\n}\n'
)
GOOD = (
    '{"bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0}\n'
)
PAGE = Path(__file__).resolve().parents[2] / "docs/lint-rules.md"
HEAVY = ("torch", "pydantic", "yaml", "numpy", "rich", "deepspeed")


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """A config with two errors."""
    path = tmp_path / "ds_config.json"
    path.write_text(BAD)
    return path


def forge(*arguments: str | Path) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as caught:
        main(["lint", *map(str, arguments)])
    return int(caught.value.code or 0)


def test_errors_have_an_exit_code_of_their_own(
    bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """3, with the findings on stdout and the count on stderr."""
    code = forge(bad)

    shown = capsys.readouterr()
    assert code == EXIT_FINDINGS == 3
    assert f"{bad}:4:3: error: `zero_optimisation` is ignored" in shown.out
    assert "2 errors" in shown.err


def test_each_reason_is_said_once(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Below the first finding of a rule stand its reason and evidence; --brief leaves them out."""
    bad.write_text('{"zero_optimisation": {}, "activation_checkpoint": {}}')
    forge(bad)
    text = capsys.readouterr().out
    forge("--brief", bad)
    brief = capsys.readouterr().out

    assert text.count("evidence: DeepSpeed runtime/config.py") == 2  # batch-missing, key-misspelt
    assert len(brief.splitlines()) == brief.count("ds_config.json:1:") == 4


def test_a_good_file_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on stdout, exit code 0."""
    path = tmp_path / "ds_config.json"
    path.write_text(GOOD)

    assert forge(path) == 0
    assert capsys.readouterr().out == ""


def test_json_has_the_promised_keys(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One document with a list of findings."""
    forge("--format", "json", bad)

    found = json.loads(capsys.readouterr().out)["findings"]
    assert {f["rule"] for f in found} == {
        *("fp16-with-bf16", "key-misspelt", "batch-missing"),
    }
    assert set(found[0]) == {
        *("rule", "severity", "file", "line", "column", "path", "message", "fix"),
        *("why", "evidence"),
    }
    assert [f["path"] for f in found if f["rule"] == "fp16-with-bf16"] == ["fp16.enabled"]


def test_sarif_names_each_result_and_its_rule(
    bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run with described rules and located results."""
    forge("--format", "sarif", bad)

    log = json.loads(capsys.readouterr().out)
    (run,) = log["runs"]
    results = {result["ruleId"]: result for result in run["results"]}
    place = results["key-misspelt"]["locations"][0]["physicalLocation"]
    assert log["version"] == "2.1.0"
    assert place["region"] == {"startLine": 4, "startColumn": 3}
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == set(results)


def test_github_commands_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name from outside cannot begin another command."""
    path = tmp_path / "ds_config,a%.json"
    path.write_text(BAD)
    forge("--format", "github", path)

    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("::error file=", "::warning file=")) for line in lines)
    assert "ds_config%2Ca%25.json,line=4,col=3,title=key-misspelt::" in lines[-1]


def test_a_folder_is_searched_for_what_lint_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of other kinds are passed over in a folder, and named where they are asked for."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "ds.json").write_text(BAD)
    (tmp_path / "package.json").write_text('{"name": "x"}')
    (tmp_path / "k8s.yaml").write_text("a: 1\n---\nb: 2\n")

    assert forge(tmp_path) == EXIT_FINDINGS
    assert "in 1 file" in capsys.readouterr().err
    assert forge(tmp_path / "package.json") == 0
    assert "kind-unknown" in capsys.readouterr().out


def test_a_rule_can_be_left_out(bad: Path) -> None:
    """Without its errors the file passes."""
    assert forge("--ignore", "key-misspelt", "--ignore", "fp16-with-bf16", bad) == 0


def test_fix_writes_what_is_safe(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The misspelt block is renamed; which precision is meant, only the user knows."""
    code = forge("--fix", bad)

    assert code == EXIT_FINDINGS
    assert bad.read_text() == BAD.replace("zero_optimisation", "zero_optimization")
    assert "repaired" in capsys.readouterr().err


def test_an_older_release_has_other_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is refused today was accepted then, and the message says until when."""
    path = tmp_path / "ds_config.json"
    path.write_text(GOOD.replace("{", '{"nebula": {"enabled": true}, ', 1))

    assert forge("--deepspeed", "0.16", path) == 0
    assert forge(path) == EXIT_FINDINGS
    assert "accepted until 0.19.6 and is refused since 0.19.7" in capsys.readouterr().out


def test_a_forced_kind_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without a telling name is read as what it is said to be."""
    path = tmp_path / "variables"
    path.write_text("# comment\n")

    assert forge("--kind", "env", path) == EXIT_FINDINGS
    assert "env-line" in capsys.readouterr().out


def test_a_rule_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Reason and evidence, and for a wrong name the nearest one."""
    main_code = forge("--explain", "value-fraction")

    assert main_code == 0
    assert "deepspeedai/DeepSpeed#6525" in capsys.readouterr().out
    assert forge("--explain", "value-fractions") == 1
    assert "did you mean `value-fraction`?" in capsys.readouterr().err


def test_all_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each."""
    forge("--rules")

    assert len(capsys.readouterr().out.splitlines()) == len(RULES)


def test_the_page_of_rules_is_current() -> None:
    """`python scripts/lint_rules.py` writes it anew, with every rule once."""
    text = PAGE.read_text(encoding="utf-8")

    assert text == page()
    assert all(text.count(f"| `{rule.id}`") == 1 for rule in RULES)


def test_a_json_file_imports_nothing_heavy(tmp_path: Path) -> None:
    """Neither torch nor pydantic nor yaml is loaded to lint a ds_config or a hostfile."""
    (tmp_path / "ds_config.json").write_text(GOOD)
    (tmp_path / "hostfile").write_text("10.0.0.1 slots=8\n")
    code = (
        "import sys\nfrom dsforge.cli.main import main\n"
        f"try: main(['lint', {str(tmp_path)!r}])\nexcept SystemExit as end: assert not end.code\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_former_ids_are_still_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script that ignores a rule by the id that it had goes on doing so."""
    path = tmp_path / "ds_config.json"
    path.write_text(ds({"pipeline": {"stages": 2}}))

    assert forge(path) == EXIT_FINDINGS
    assert "[zero-pipeline]" in capsys.readouterr().out
    assert forge("--ignore", "pipeline-zero", path) == 0
    capsys.readouterr()
    assert forge("--explain", "accelerate-offload-stage") == 0
    shown = capsys.readouterr().out
    assert "offload-parameters" in shown
    assert "offload-optimizer" in shown


@pytest.mark.parametrize("gpu", ["cpu", "a100-80gb", "v100-32gb", "rtx-4090"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_files_that_gen_writes_pass(
    gpu: str, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No error and no warning in any of them, nor by name; on CPU ranks as on GPUs."""
    hostfile = tmp_path / "hosts"
    hostfile.write_text("10.0.0.1 slots=2\n10.0.0.2 slots=2\n")
    flags = f"--model smollm2-135m --gpu {gpu} --method {method} --hostfile {hostfile}"
    with pytest.raises(SystemExit) as caught:
        main(["gen", *flags.split(), "--out", str(tmp_path / "run")])
    assert not caught.value.code
    capsys.readouterr()

    folder, config = tmp_path / "run", tmp_path / "run/deepspeed/zero3.json"
    codes = forge(folder), forge("--brief", config)

    found = capsys.readouterr().out
    assert codes == (0, 0)
    assert "warning" not in found
    assert "error" not in found


def test_a_config_of_gpus_is_still_asked_to_pin_and_overlap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same text beside an environment of CPU ranks, and beside none."""
    block = {"stage": 3, "overlap_comm": False}
    block["offload_param"] = {"device": "cpu", "pin_memory": False}
    for name, variable in (("gpu", ""), ("cpu", "DS_ACCELERATOR=cpu\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".deepspeed_env").write_text(f"A=b\n{variable}")
        (tmp_path / name / "ds_config.json").write_text(json.dumps({"zero_optimization": block}))
        forge(tmp_path / name / "ds_config.json")

        shown = capsys.readouterr().out
        for rule in ("offload-unpinned", "overlap-off"):
            assert (rule in shown) == (name == "gpu")
