"""Files of a results folder that are cut off or hold anything at all: told, never believed, and never a crash."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from analysis.errors import LoadError
from analysis.formats.errors import FormatError
from analysis.formats.metrics import parse_metrics
from analysis.formats.run_record import RunRecord
from analysis.formats.steps import parse_steps
from analysis.validate import judge_results, validate
from runner.config import parse_config
from runner.errors import ConfigError, StoreError
from runner.files import csv_to_parquet
from runner.finish import write_steps
from runner.store import read_header, read_records
from runner.telemetry import COLUMNS
from tests import make_store, recorded

FOLDER = "32b.eager.sustained.r1.p1a1"
own_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
HEADER = b'{"schema_version": 1, "store_id": "x", "campaign": "test", "configuration": {"seed": 1}}'
nested = st.sampled_from([b"[" * 3000, b'{"a":' * 3000, b"[" * 3000 + b"]" * 3000])
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())
anything = st.binary(max_size=300) | nested | json_like


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded runs, of which the tests change one file at a time and put it back."""
    return make_store.recorded_store(tmp_path_factory.mktemp("store") / "results")


class Changed:
    """A file with other content, for the length of a `with`."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self.data, self.kept = path, data, path.read_bytes()

    def __enter__(self) -> None:
        self.path.write_bytes(self.data)

    def __exit__(self, *_: object) -> None:
        self.path.write_bytes(self.kept)


def only_this_one_is_unreadable(store: Path) -> None:
    records, unreadable = read_records(store)
    assert [folder.name for folder, problem in unreadable if problem] == [FOLDER]
    assert len(records) == 4
    (verdict,) = validate(store / "runs" / FOLDER)
    assert verdict.status == "unreadable"
    assert verdict.reasons[0].evidence


@settings(own_folder, max_examples=40)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_record_cut_off_anywhere_counts_as_not_run(store: Path, share: float) -> None:
    path = store / "runs" / FOLDER / "run.json"
    data = path.read_bytes()
    with Changed(path, data[: int(share * len(data.rstrip()))]):
        only_this_one_is_unreadable(store)


@settings(own_folder, max_examples=40)
@given(data=anything)
def test_a_record_of_anything_counts_as_not_run(store: Path, data: bytes) -> None:
    with Changed(store / "runs" / FOLDER / "run.json", data):
        only_this_one_is_unreadable(store)


@cache
def plain_record() -> dict[str, Any]:
    times = make_store.timeline(1.0, 10.0, (20.0, 30.0))
    return json.loads(make_store.make_record("eager", "sustained", 1, times).model_dump_json())  # type: ignore[no-any-return]


@given(
    key=st.sampled_from(sorted(plain_record())),
    value=st.none() | st.integers() | st.text(max_size=3) | st.lists(st.none()),
)
@example(key="concurrency", value="0")
def test_a_record_with_any_value_is_refused_or_means_what_it_says(key: str, value: Any) -> None:
    try:
        record = RunRecord.model_validate_json(json.dumps(plain_record() | {key: value}))
    except ValueError:
        return
    assert json.loads(record.model_dump_json())[key] == value


@own_folder
@given(
    data=anything
    | st.integers(0, 60).map(lambda n: b'{"schema_version": 1, "store_id": "x", "campaign": "test", "co'[:n])
)
def test_a_header_of_anything_is_refused_in_words(store: Path, data: bytes) -> None:
    with Changed(store / "campaign.json", data):
        with pytest.raises(StoreError, match=r"campaign\.json cannot be read"):
            read_header(store)
        with pytest.raises(LoadError, match=r"campaign\.json cannot be read"):
            judge_results(store)


@settings(own_folder, max_examples=12)
@given(data=anything)
def test_a_sitting_of_anything_hinders_no_run(store: Path, data: bytes) -> None:
    with Changed(store / "sittings" / "s1" / "provenance.json", data):
        (verdict,) = validate(store / "runs" / FOLDER)
        assert verdict.status == "valid"


def with_hash_of(folder: Path, name: str, data: bytes) -> bytes:
    record = json.loads((folder / "run.json").read_bytes())
    record["files_sha256"][name] = hashlib.sha256(data).hexdigest()
    return json.dumps(record).encode()


def judged(store: Path, name: str, data: bytes, *, hashed: bool) -> str:
    """The verdict on the run after a change of one file; `hashed`: run.json knows of the change."""
    folder = store / "runs" / FOLDER
    record = with_hash_of(folder, name, data) if hashed else (folder / "run.json").read_bytes()
    with Changed(folder / "run.json", record), Changed(folder / name, data):
        (verdict,) = validate(folder)
    return verdict.status


FILES = (
    "requests.parquet",
    "steps.parquet",
    "bench.json",
    "server.log.gz",
    "metrics_after.txt.gz",
    "metrics_before.txt.gz",
)


@settings(own_folder, max_examples=20)
@given(name=st.sampled_from(FILES), share=st.floats(0, 0.999), hashed=st.booleans())
def test_a_file_cut_off_anywhere_makes_no_valid_run(store: Path, name: str, share: float, hashed: bool) -> None:
    """Also where its hash was taken after it was cut off."""
    data = (store / "runs" / FOLDER / name).read_bytes()
    assert judged(store, name, data[: int(share * len(data))], hashed=hashed) in ("unreadable", "invalid")


@settings(own_folder, max_examples=20)
@given(name=st.sampled_from(FILES), data=anything)
def test_a_file_of_anything_makes_no_valid_run(store: Path, name: str, data: bytes) -> None:
    assert judged(store, name, data, hashed=True) in ("unreadable", "invalid")


def test_the_unchanged_folder_is_valid(store: Path) -> None:
    assert validate(store / "runs" / FOLDER)[0].status == "valid"


# -- raw files of a run


TELEMETRY_HEADER = ",".join(COLUMNS)
SAMPLES = f"{TELEMETRY_HEADER}\n" + "".join(f"{n}00,{n}000,61234,1755,1593,41,4096,97,36\n" for n in range(10, 14))


def converted(folder: Path, data: bytes) -> bool:
    """Whether telemetry of these bytes becomes a table; the only other outcome is a FormatError."""
    source, target = folder / "telemetry.csv", folder / "telemetry.parquet"
    source.write_bytes(data)
    try:
        csv_to_parquet(source, target)
    except FormatError:
        return False
    return True


@settings(own_folder, max_examples=40)
@given(cut=st.integers(0, len(SAMPLES) - 1))
def test_telemetry_cut_off_within_a_row_is_never_read(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    whole_rows = SAMPLES[:cut].endswith("\n")
    assert converted(tmp_path_factory.mktemp("t"), SAMPLES[:cut].encode()) == whole_rows


@settings(own_folder, max_examples=30)
@given(
    data=st.binary(max_size=200)
    | st.text(alphabet='0123456789,.-\n"x', max_size=80).map(lambda t: f"{TELEMETRY_HEADER}\n{t}".encode())
)
def test_telemetry_of_anything_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    converted(tmp_path_factory.mktemp("t"), data)


@given(cut=st.integers(0, 100_000))
def test_a_step_trace_cut_off_anywhere_is_never_complete(cut: int) -> None:
    text = recorded.steps_csv(recorded.CPU)
    assert not parse_steps(text[: cut % len(text)]).complete


@settings(own_folder, max_examples=30)
@given(cut=st.integers(0, 200) | st.integers(0, 100_000))
def test_the_whole_rows_of_a_cut_off_step_trace_are_kept(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder, text = tmp_path_factory.mktemp("s"), recorded.steps_csv(recorded.CPU)
    (folder / "steps.csv").write_text(text[: cut % len(text)])
    trace = parse_steps(text[: cut % len(text)])
    write_steps(trace, folder / "steps.csv")
    ((rows,),) = duckdb.sql(f"SELECT count(*) FROM '{folder}/steps.parquet'").fetchall()
    assert rows == len(trace.rows)


@given(cut=st.integers(0, 100_000))
def test_metrics_cut_off_within_a_line_are_never_read(cut: int) -> None:
    text = recorded.text(recorded.CPU, "metrics_after.txt")
    at = cut % len(text)
    if text[:at].endswith("\n"):
        return
    with pytest.raises(FormatError):
        parse_metrics(text[:at])


# -- campaign.toml


SHIPPED = (Path(__file__).parent.parent / "campaign.toml").read_text(encoding="utf-8")


@settings(max_examples=60)
@given(cut=st.integers(0, len(SHIPPED) - 1))
def test_a_configuration_cut_off_is_refused_or_is_a_part_of_the_whole(cut: int) -> None:
    """Where whole sections are missing at the end, and nothing refers to them, a text cannot tell."""
    whole = parse_config(SHIPPED, Path("campaign.toml"))
    try:
        part = parse_config(SHIPPED[:cut], Path("campaign.toml"))
    except ConfigError:
        return
    for name, suite in part.suites.items():
        assert whole.suites[name][: len(suite) - 1] == suite[:-1]
    assert (part.engine, part.models, part.arms, part.profiles) == (
        whole.engine,
        whole.models,
        whole.arms,
        whole.profiles,
    )


@given(
    text=st.text(max_size=200)
    | st.text(alphabet='[]{}="engine\n. 0', max_size=80)
    | nested.map(lambda b: f"a = {b.decode()}")
)
def test_a_configuration_of_anything_is_refused_in_words(text: str) -> None:
    with pytest.raises(ConfigError, match=r"campaign\.toml"):
        parse_config(text, Path("campaign.toml"))
