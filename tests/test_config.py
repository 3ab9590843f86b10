"""campaign.toml: what ships is accepted; every kind of wrong input is one error naming file, key, value and rule."""

# ruff: noqa: E501 (tables of cases)

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.cli import main
from runner.config import Config, changed_keys, config_fingerprint, load_config, parse_config
from runner.config_checks import RESERVED_FLAGS, RESERVED_VARIABLES, flag_name, flag_values, without_flag
from runner.errors import ConfigError

ROOT = Path(__file__).parent.parent
SHIPPED = (ROOT / "campaign.toml").read_text(encoding="utf-8")
BASE = """
[campaign]
name = "small"
seed = 3
repetitions = 2
[engine]
version = "0.23.0"
gpu_memory_utilization = 0.9
max_model_len = 4096
flags = ["--generation-config vllm"]
[engine.environment]
HF_HUB_OFFLINE = "1"
[[model]]
name = "m"
repository = "Owner/Model"
revision = "0123456789abcdef0123456789abcdef01234567"
weights = "dummy"
directory = "m"
tokenizer = "tok"
[arm.graphs]
flags = []
[arm.eager]
flags = ["--enforce-eager"]
[profile.sporadic]
prompts = 4
concurrency = 1
input_tokens = 1024
output_tokens = 128
[[suite.all]]
models = ["m"]
arms = ["graphs", "eager"]
profiles = ["sporadic"]
"""


def parse(text: str) -> Config:
    return parse_config(text, Path("some/campaign.toml"))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.hint
    return caught.value.message


def edited(old: str, new: str) -> str:
    assert BASE.count(old) == 1, old
    return BASE.replace(old, new)


# -- what is accepted ----------------------------------------------------------------------------------------


def test_shipped_campaign_is_the_published_study_and_the_mechanism() -> None:
    config = load_config(ROOT / "campaign.toml")
    assert config.engine.memory_budget_gib == 72.8
    assert config.engine.max_model_len == 4096
    assert config.engine.environment["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert "--no-enable-prefix-caching" in config.engine.flags
    assert {"published", "mechanism"} <= set(config.suites)
    sustained = config.profiles["sustained"]
    assert (sustained.prompts, sustained.concurrency) == (500, 64)
    assert (sustained.input_tokens, sustained.output_tokens, sustained.request_rate) == (1024, 128, "inf")
    assert config.profiles["sustained_varied"].range_ratio == 0.3
    assert config.arms["graphs"].flags == ()
    sizes = flag_values(config.arms["graphs_unpadded"].flags, "--cudagraph-capture-sizes")
    assert sizes == [str(size) for size in range(1, 41)]
    assert config.text == SHIPPED


def test_demo_runs_on_the_stand_in_and_nothing_else_does() -> None:
    assert load_config(ROOT / "examples/demo.toml").engine.kind == "stand-in"
    assert load_config(ROOT / "campaign.toml").engine.kind == "vllm"
    assert parse(BASE).engine.kind == "vllm"  # the default is never the simulation


def test_flag_and_its_values_are_one_string_split_as_a_shell_would() -> None:
    flags = '["--a 1 2", "-cc=\'{\\"mode\\": 3}\' --b", "-cc={\\"mode\\":0}", "--c=x y"]'
    config = parse(edited('flags = ["--enforce-eager"]', f"flags = {flags}"))
    assert config.arms["eager"].flags == (
        "--a", "1", "2", '-cc={"mode": 3}', "--b", '-cc={"mode":0}', "--c=x", "y",
    )  # fmt: skip


def test_byte_order_mark_and_windows_line_ends_are_harmless(tmp_path: Path) -> None:
    path = tmp_path / "campaign.toml"
    path.write_bytes(b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode())
    assert load_config(path).models["m"].directory == "m"


def test_sections_cannot_be_changed_after_the_check() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse(BASE).campaign.seed = 4


# -- the file itself -----------------------------------------------------------------------------------------


def test_the_command_prints_error_and_next_step_and_exits_with_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["plan", "--config", str(tmp_path / "none.toml")])
    assert result.exit_code == 2
    assert re.fullmatch(r"error: .*none\.toml: cannot be read.*\nnext: .*--config FILE\n", result.stderr)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path / 'none.toml'}: cannot be read: No such file")):
        load_config(tmp_path / "none.toml")


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_not_utf8_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "campaign.toml"
    path.write_bytes(b"[campaign]\nname = 'caf\xe9'\n")
    with pytest.raises(ConfigError, match="line 2 is not UTF-8"):
        load_config(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [("[campaign]\nname = \n", 2), ("a = 1\na = 2\n", 2), ("[x]\n[x]\n", 2), ("x = [1,\n", 2), ("=\n", 1)],
)
def test_toml_syntax_names_the_line(text: str, line: int) -> None:
    assert re.search(rf"campaign\.toml: not valid TOML: .*line {line}\b|end of document", refusal(text))


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    assert "not valid TOML" in refusal("x = " + "[" * 50_000)


@pytest.mark.parametrize("text", ["", "x = 1\n", "model = 3\narm = []\n", "[engine]\n"])
def test_empty_or_foreign_files_name_what_is_missing(text: str) -> None:
    assert "campaign: missing" in refusal(text)


# -- single keys ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("seed = 3", "sede = 3", "campaign.sede: unknown key; did you mean seed? allowed: name, seed, repetitions"),
        ("[campaign]", "[campain]", "campain: unknown key; did you mean campaign?"),
        ("[campaign]", "colour = 1\n[campaign]", "colour: unknown key; allowed: campaign, engine, model"),
        ("directory =", "directry = 'm'\ndirectory =", "model[m].directry: unknown key; did you mean directory?"),
        ("prompts = 4", "prompts = 4\nprompt = 4", "profile.sporadic.prompt: unknown key; did you mean prompts?"),
        ("[arm.graphs]", "[arm.graphs]\nflag = 1", "arm.graphs.flag: unknown key; did you mean flags? allowed: flags"),
        ("[[suite.all]]", "[[suite.all]]\narm = ['a']", "suite.all[1].arm: unknown key; did you mean arms?"),
        ("[engine.environment]", "[engine.probe]\nx = 1\n[engine.environment]", "engine.probe.x: unknown key"),
        ("seed = 3\n", "", "campaign.seed: missing"),
        ('revision = "0123456789abcdef0123456789abcdef01234567"\n', "", "model[m].revision: missing"),
        ("seed = 3", "seed = '3'", "campaign.seed = '3': must be a whole number, without quotes"),
        ("seed = 3", "seed = 3.0", "campaign.seed = 3.0: must be a whole number"),
        ("seed = 3", "seed = true", "campaign.seed = true: must be a whole number"),
        ("seed = 3", "seed = -1", "campaign.seed = -1: must be greater than or equal to 0"),
        ("repetitions = 2", "repetitions = 0", "campaign.repetitions = 0: must be greater than 0"),
        ('name = "small"', "name = 7", "campaign.name = 7: must be a string, in quotes"),
        ('name = "small"', "name = 2026-01-01", "campaign.name = datetime.date(2026, 1, 1): must be a string"),
        ('name = "small"', 'name = "../up"', "campaign.name = '../up': a name may hold a-z, 0-9 and _ only"),
        ('name = "m"', 'name = "Qwen2.5"', "model[Qwen2.5].name = 'Qwen2.5': a name may hold"),
        ('name = "m"', 'name = ""', "model[].name = '': a name may hold"),
        ("[arm.eager]", '[arm."a.b"]', "arm: 'a.b': a name may hold a-z, 0-9 and _ only"),
        ("[profile.sporadic]", "[profile.Sporadic]", "profile: 'Sporadic': a name may hold"),
        ("gpu_memory_utilization = 0.9", "gpu_memory_utilization = nan", "gpu_memory_utilization = nan: must be a fin"),
        ("gpu_memory_utilization = 0.9", "gpu_memory_utilization = inf", "gpu_memory_utilization = inf: must be a fin"),
        ("gpu_memory_utilization = 0.9", "gpu_memory_utilization = 90", "= 90: must be less than or equal to 1"),
        ("gpu_memory_utilization = 0.9", "gpu_memory_utilization = '0.9'", "= '0.9': must be a number, without quotes"),
        (
            "gpu_memory_utilization = 0.9",
            "memory_budget_gib = -1.0",
            "memory_budget_gib = -1.0: must be greater than 0",
        ),
        ("max_model_len = 4096", "max_model_len = 0", "engine.max_model_len = 0: must be greater than 0"),
        ('version = "0.23.0"', 'version = "0.22.1"', "engine.version = '0.22.1': must be '0.23.0'"),
        ('version = "0.23.0"', 'version = "0.23.0"\nkind = "vlm"', "must be 'vllm' or 'stand-in'"),
        ('version = "0.23.0"', 'version = "0.23.0"\nretries = -1', "engine.retries = -1: must be"),
        ('version = "0.23.0"', 'version = "0.23.0"\ntemperature = inf', "engine.temperature = inf: must be"),
        ('version = "0.23.0"', 'version = "0.23.0"\npin_kv_blocks = 1', "engine.pin_kv_blocks = 1: must be true or"),
        ('version = "0.23.0"', 'version = "0.23.0"\nprobe = 3', "engine.probe = 3: must be a table"),
        ("prompts = 4", "prompts = 0", "profile.sporadic.prompts = 0: must be greater than 0"),
        ("prompts = 4", "prompts = 99999999999999999999", "must be less than or equal to 10000000"),
        ("prompts = 4", "prompts = 4\nrange_ratio = 1.0", "range_ratio = 1.0: must be less than 1"),
        ("prompts = 4", "prompts = 4\nrange_ratio = -0.1", "range_ratio = -0.1: must be greater than or equal to 0"),
        ("prompts = 4", "prompts = 4\nrequest_rate = inf", "request_rate = inf: must be a number of requests"),
        ("prompts = 4", "prompts = 4\nrequest_rate = 0", '"inf" in quotes'),
        ("prompts = 4", "prompts = 4\nrequest_rate = 'fast'", "request_rate = 'fast': must be a number"),
        ("prompts = 4", "prompts = 4\nrequest_rate = true", "request_rate = true: must be a number"),
        ('"1"\n', "1\n", "engine.environment.HF_HUB_OFFLINE = 1: must be a string, in quotes"),
        ('HF_HUB_OFFLINE = "1"', '"A B" = "1"', "engine.environment: 'A B': not a name of an environment variable"),
        ('HF_HUB_OFFLINE = "1"', 'A = "\\u0000"', "engine.environment.A = '\\x00': must not hold NUL"),
        ('"0123456789abcdef0123456789abcdef01234567"', '"main"', "revision = 'main': must be a full commit hash"),
        ('weights = "dummy"', 'weights = "random"', "model[m].weights = 'random': must be 'hub' or 'dummy'"),
        ('directory = "m"', 'directory = "/data/m"', "must be a path below the models folder"),
        ('directory = "m"', 'directory = "../m"', "model[m].directory = '../m': must be a path below"),
        ('directory = "m"', 'directory = ""', "model[m].directory = '': must be a path below"),
        ("flags = []", 'flags = "--x"', "arm.graphs.flags = '--x': must be an array, in [ ]"),
        ("flags = []", "flags = [3]", "arm.graphs.flags[1] = 3: must be a string, in quotes"),
        ("flags = []", 'flags = ["enforce-eager"]', "'enforce-eager' must start with '-'"),
        ("flags = []", 'flags = ["--a \'b"]', "cannot be split into arguments"),
        ("flags = []", "flags = ['-cc={\"mode\": 3}']", "has blanks inside braces"),
        ('models = ["m"]', "models = []", "suite.all[1].models = []: must not be empty"),
        ('models = ["m"]', 'models = ["m", "m"]', "must not repeat m"),
        ('profiles = ["sporadic"]', 'profiles = ["sporadic"]\nrepetitions = 0', "suite.all[1].repetitions = 0: must"),
        ("[[suite.all]]", "[suite.all]", "suite.all = "),
        ('tokenizer = "tok"', 'tokenizer = "tok"\nestimate = {start_s = 0}', "model[m].estimate.start_s = 0: must be"),
    ],
)
def test_wrong_value_names_file_key_value_and_rule(old: str, new: str, expected: str) -> None:
    message = refusal(edited(old, new))
    assert message.startswith("some/campaign.toml: ")
    assert expected in message


def test_every_problem_is_listed_at_once() -> None:
    text = (
        edited("seed = 3", "seed = -3").replace("prompts = 4", "prompts = 'four'").replace("[engine]", "[engine]\nx=1")
    )
    message = refusal(text)
    assert message.startswith("some/campaign.toml: 3 problems:")
    assert [key in message for key in ("campaign.seed", "profile.sporadic.prompts", "engine.x")] == [True] * 3


def test_long_values_are_cut() -> None:
    assert max(map(len, refusal(edited("seed = 3", f"seed = '{'9' * 5000}'")).splitlines())) < 200


# -- more than one key ---------------------------------------------------------------------------------------

TWO_MODELS = (
    '[[model]]\nname = "m"\nrepository = "a/b"\nrevision = "' + "a" * 40 + '"\nweights = "hub"\ndirectory = "n"\n'
)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("gpu_memory_utilization = 0.9\n", "", "neither given; set exactly one of them"),
        ("gpu_memory_utilization = 0.9", "gpu_memory_utilization = 0.9\nmemory_budget_gib = 70", "both given; set"),
        ("max_model_len = 4096", 'max_model_len = 4096\nlauncher = "container"', "engine.image: missing"),
        ("max_model_len = 4096", "max_model_len = 1024", "profile.sporadic: input_tokens + output_tokens reach 1152"),
        ("max_model_len = 4096", "max_model_len = 1152", "with a margin of 16"),
        ("prompts = 4", "prompts = 4\nrange_ratio = 0.99\n", None),
        ("input_tokens = 1024", "input_tokens = 3000\nrange_ratio = 0.4", "reach 4380 (range_ratio 0.4)"),
        ("concurrency = 1", "concurrency = 5", "profile.sporadic.concurrency = 5: must be at most"),
        ("[[model]]", TWO_MODELS + "[[model]]", '[[model]] name = "m": used 2 times'),
        ('tokenizer = "tok"\n', "", "model[m].tokenizer: missing"),
        ('tokenizer = "tok"', 'tokenizer = "tok"\nestimate = {window_s = {sporad = 1}}', "did you mean sporadic?"),
        ('models = ["m"]', 'models = ["n"]', 'suite.all[1].models: no such name "n"; allowed: m'),
        ('"graphs", "eager"]', '"graph"]', 'suite.all[1].arms: no such name "graph"; did you mean graphs?'),
        ('profiles = ["sporadic"]', 'profiles = ["sustained"]', 'suite.all[1].profiles: no such name "sustained"'),
        ("[profile.sporadic]", "[profile.prime]\nprompts=1\nconcurrency=1\ninput_tokens=1\noutput_tokens=1\n[profile.sporadic]",
         "profile.prime: this name is taken"),
        ("[engine.environment]", "[engine.probe]\ninput_tokens = 5000\n[engine.environment]", "engine.probe: 5008 tokens"),
        ("HF_HUB_OFFLINE", "CAMPAIGN_STEPS_FILE", "engine.environment.CAMPAIGN_STEPS_FILE: not to be set here"),
        ("[arm.eager]", '[arm.k]\nflags = ["--num-gpu-blocks-override={eger.num_gpu_blocks}"]\n[arm.eager]',
         "arm.k.flags: {eger.num_gpu_blocks}: no such arm; did you mean eager?"),
        ("[arm.eager]", '[arm.k]\nflags = ["--num-gpu-blocks-override={eager.num_blocks}"]\n[arm.eager]',
         "no such measured value; did you mean num_gpu_blocks?"),
        ("[arm.eager]", '[arm.k]\nflags = ["--num-gpu-blocks-override={k.num_gpu_blocks}"]\n[arm.eager]',
         "an arm cannot take its own count"),
        ("[arm.eager]", '[arm.j]\nflags = ["--num-gpu-blocks-override={k.num_gpu_blocks}"]\n'
         '[arm.k]\nflags = ["--num-gpu-blocks-override={j.num_gpu_blocks}"]\n[arm.eager]', "k sets --num-gpu-blocks-override"),
        ("[arm.eager]", '[arm.k]\nflags = ["--block-size=32", "--num-gpu-blocks-override={eager.num_gpu_blocks}"]\n[arm.eager]',
         "eager and k differ in --block-size"),
        ("[arm.eager]", '[arm.k]\nflags = ["--max-num-seqs={eager.num_gpu_blocks}"]\n[arm.eager]', "may stand only in"),
        ("[arm.eager]", '[arm.k]\nflags = ["--num-gpu-blocks-override=0"]\n[arm.eager]', "takes one whole number above 0"),
        ("[arm.eager]", '[arm.k]\nflags = ["--num-gpu-blocks-override 10 20"]\n[arm.eager]', "takes one whole number"),
        ("--generation-config vllm", "--num-gpu-blocks-override={eager.num_gpu_blocks}", "only in the flags of an arm"),
        ("[arm.eager]", '[arm.k]\nflags = ["--cudagraph-capture-sizes 1 2 x"]\n[arm.eager]', "whole numbers above 0"),
        ("[arm.eager]", '[arm.k]\nflags = ["--max-cudagraph-capture-size=0"]\n[arm.eager]', "whole numbers above 0"),
        ("[arm.eager]", '[arm.k]\nflags = ["--cudagraph-capture-sizes 1 8", "--max-cudagraph-capture-size 4"]\n[arm.eager]',
         "--max-cudagraph-capture-size 4 is not the largest"),
    ],
)  # fmt: skip
def test_keys_that_do_not_go_together(old: str, new: str, expected: str | None) -> None:
    if expected is None:
        assert parse(edited(old, new))
    else:
        assert expected in refusal(edited(old, new))


@pytest.mark.parametrize("flag", sorted(RESERVED_FLAGS))
@pytest.mark.parametrize("spelling", ["{} 1", "{}=1"])
def test_flags_that_the_campaign_sets_itself(flag: str, spelling: str) -> None:
    text = edited('flags = ["--enforce-eager"]', f'flags = ["{spelling.format(flag)}"]')
    message = refusal(text)
    assert "arm.eager.flags" in message
    assert RESERVED_FLAGS[flag] in message
    assert RESERVED_FLAGS[flag] in refusal(edited("--generation-config vllm", spelling.format(flag)))


@pytest.mark.parametrize("flag", ["--max_model_len=9", "--max-model=9", "--gpu_memory_util 0.5", "--tokeniz x"])
def test_other_spellings_that_the_engine_takes_for_the_same_flag(flag: str) -> None:
    assert "is not to be given here" in refusal(edited('flags = ["--enforce-eager"]', f'flags = ["{flag}"]'))


@pytest.mark.parametrize("flag", ["--tokenizer-mode auto", "--model-impl vllm", "--seedy", "-O1", "--max-num-seqs=9"])
def test_flags_that_only_look_like_reserved_ones(flag: str) -> None:
    assert parse(edited('flags = ["--enforce-eager"]', f'flags = ["{flag}"]'))


@pytest.mark.parametrize("variable", sorted(RESERVED_VARIABLES))
def test_variables_that_the_runner_owns_or_the_engine_ignores(variable: str) -> None:
    message = refusal(edited("HF_HUB_OFFLINE", variable))
    assert f"engine.environment.{variable}: not to be set here; {RESERVED_VARIABLES[variable]}" in message


def test_stand_in_needs_no_tokenizer() -> None:
    text = edited('version = "0.23.0"', 'version = "0.23.0"\nkind = "stand-in"').replace('tokenizer = "tok"\n', "")
    assert parse(text).models["m"].tokenizer is None


# -- flags as lists ------------------------------------------------------------------------------------------


def test_flag_helpers() -> None:
    flags = ["--a", "1", "2", "--b_c=3", "-x", "--a=4"]
    assert flag_name("--b_c=3") == "--b-c"
    assert flag_values(flags, "--a") == ["4"]  # the last one counts, as in the engine
    assert flag_values(flags, "--b-c") == ["3"]
    assert flag_values(flags, "-x") == []
    assert flag_values(flags, "--none") is None
    assert without_flag(flags, "--a") == ("--b_c=3", "-x")


# -- the fingerprint -----------------------------------------------------------------------------------------


def changes(old: str, new: str) -> list[str]:
    before = json.loads(json.dumps(config_fingerprint(parse(BASE))))  # as read back from the store
    return changed_keys(before, config_fingerprint(parse(edited(old, new))))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("seed = 3", "seed = 4", ["campaign.seed"]),
        ('name = "small"', 'name = "other"', ["campaign.name"]),
        ("max_model_len = 4096", "max_model_len = 2048", ["engine.max_model_len"]),
        ('HF_HUB_OFFLINE = "1"', 'HF_HUB_OFFLINE = "0"', ["engine.environment.HF_HUB_OFFLINE"]),
        ('HF_HUB_OFFLINE = "1"', 'HF_HUB_OFFLINE = "1"\nNEW = "1"', ["engine.environment.NEW"]),
        ('HF_HUB_OFFLINE = "1"', "", ["engine.environment.HF_HUB_OFFLINE"]),
        ('flags = ["--enforce-eager"]', 'flags = ["--enforce-eager", "-x"]', ["arms.eager.flags"]),
        ("prompts = 4", "prompts = 5", ["profiles.sporadic.prompts"]),
        ('weights = "dummy"', 'weights = "hub"', ["models.m.weights"]),
        ("[arm.eager]", "[arm.more]\nflags = []\n[arm.eager]", []),
        ("[[model]]", TWO_MODELS.replace('"m"', '"n"') + "[[model]]", []),
        ("repetitions = 2", "repetitions = 3", []),
        ('tokenizer = "tok"', 'tokenizer = "tok"\nestimate = {start_s = 1}', []),
        ("[engine]", "[engine]\nretries = 5\ntimeouts = {start_s = 5}", []),
        ("[campaign]", "# a comment\n[campaign]", []),
    ],
)
def test_what_counts_as_a_changed_configuration(old: str, new: str, expected: list[str]) -> None:
    assert changes(old, new) == expected


def test_a_model_arm_or_profile_that_vanished_is_a_change() -> None:
    more = edited("[arm.eager]", "[arm.more]\nflags = []\n[arm.eager]")
    gone = changed_keys(config_fingerprint(parse(more)), config_fingerprint(parse(BASE)))
    assert gone == ["arms.more.flags"]


def test_fingerprint_does_not_depend_on_the_order_in_the_file() -> None:
    swapped = BASE.replace("[arm.graphs]\nflags = []\n", "") + "[arm.graphs]\nflags = []\n"
    assert config_fingerprint(parse(swapped)) == config_fingerprint(parse(BASE))


# -- anything at all -----------------------------------------------------------------------------------------


def _paths(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, item in items for p in _paths(item, (*path, key)))]


JUNK: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from(_paths(tomllib.loads(BASE))[1:]), junk=JUNK)
def test_junk_at_any_key_is_accepted_or_refused_by_a_list_of_problems(path: tuple[Any, ...], junk: object) -> None:
    raw: Any = tomllib.loads(BASE)
    place = raw
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = junk
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runner.config.tomllib.loads", lambda _: raw)
        try:
            config_fingerprint(parse(""))
        except ConfigError as error:
            lines = error.message.splitlines()
        else:
            return
    assert re.fullmatch(r"some/campaign\.toml: (1 problem|\d+ problems):", lines[0])
    assert len(lines) > 1
    assert any(str(path[0]) in line for line in lines[1:])
