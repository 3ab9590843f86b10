"""Files of a run folder: request lines left out, Parquet with declared types, errors told apart."""

from __future__ import annotations

import gzip
from pathlib import Path

import duckdb
import pytest

from analysis.formats.bench import RequestRow
from analysis.formats.errors import FormatError
from runner.errors import StoreError
from runner.files import csv_to_parquet, without_request_lines, write_gz, write_requests
from runner.telemetry import COLUMNS as TELEMETRY

STEP_LINES = """\
t_ns,running,waiting,kv_usage,preempted,prompt_tokens,generated_tokens,unpadded_tokens,padded_tokens,runtime_mode
100,1,0,0.5,0,64,1,64,64,NONE
200,,,,,,,,,
300,2,1,0.25,1,0,2,2,2,FULL
#end rows=3 dropped=0 errors=0
"""


def test_only_request_lines_are_left_out() -> None:
    kept = [
        b"(APIServer pid=1) INFO:     Application startup complete.\n",
        b"\rCapturing CUDA graphs (decode, FULL):   2%|2| 1/51 [00:00<00:05]\r\n",
        b"(APIServer pid=1) INFO 11-29 17:32:41 [launcher.py:45] Route: /v1/completions, Methods: POST\n",
        b"no line end",
    ]
    dropped = [
        b'(APIServer pid=1) INFO:     127.0.0.1:48974 - "GET /metrics HTTP/1.1" 200 OK\n',
        b'(APIServer pid=1) INFO:     127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 503 Busy\n',
        b"(APIServer pid=1) INFO 11-29 17:33:41 [logger.py:40] Received request cmpl-1: prompt: 'w1 w2'\n",
    ]
    mixed = kept[0] + dropped[0] + kept[1] + dropped[1] + kept[2] + dropped[2] + kept[3]
    assert without_request_lines(mixed) == b"".join(kept)


def test_compression_does_not_depend_on_the_clock(tmp_path: Path) -> None:
    write_gz(tmp_path / "a.gz", b"text")
    data = (tmp_path / "a.gz").read_bytes()
    assert gzip.decompress(data) == b"text"
    assert data[4:8] == b"\0\0\0\0"


def test_steps_become_numbered_rows_with_nulls(tmp_path: Path) -> None:
    (tmp_path / "it's").mkdir()
    source, target = tmp_path / "it's steps.csv", tmp_path / "it's/steps.parquet"
    source.write_text(STEP_LINES)
    csv_to_parquet(source, target)
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT * FROM read_parquet(?)", [str(target)]).fetchall()
    assert rows == [
        (0, 100, 1, 0, 0.5, 0, 64, 1, 64, 64, "NONE"),
        (1, 200, *[None] * 9),
        (2, 300, 2, 1, 0.25, 1, 0, 2, 2, 2, "FULL"),
    ]


def test_large_counters_keep_their_digits(tmp_path: Path) -> None:
    source, target = tmp_path / "telemetry.csv", tmp_path / "telemetry.parquet"
    header = ",".join(TELEMETRY)
    source.write_text(f"{header}\n9007199254740993,123456789012345,,,,,,,4611686018427387904\n")
    csv_to_parquet(source, target)
    with duckdb.connect() as connection:
        row = connection.execute("SELECT * FROM read_parquet(?)", [str(target)]).fetchall()[0]
    assert row == (9007199254740993, 123456789012345, *[None] * 6, 4611686018427387904)


@pytest.mark.parametrize("line", ["100,many,0,0.5,0,64,1,64,64,NONE", "100,1", "3000000000000,9999999999,,,,,,,,"])
def test_a_row_of_other_types_is_an_error(tmp_path: Path, line: str) -> None:
    source = tmp_path / "steps.csv"
    source.write_text(STEP_LINES.replace("200,,,,,,,,,", line))
    with pytest.raises(FormatError, match=r"steps\.parquet"):
        csv_to_parquet(source, tmp_path / "steps.parquet")


def test_a_file_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    source = tmp_path / "steps.csv"
    source.write_text(STEP_LINES)
    with pytest.raises(StoreError, match="no-such-folder"):
        csv_to_parquet(source, tmp_path / "no-such-folder" / "steps.parquet")


def test_a_full_disk_is_a_store_error(tmp_path: Path) -> None:
    source = tmp_path / "steps.csv"
    source.write_text(STEP_LINES)
    (tmp_path / "steps.parquet").symlink_to("/dev/full")
    with pytest.raises(StoreError, match=r"steps\.parquet"):
        csv_to_parquet(source, tmp_path / "steps.parquet")


def test_requests_keep_lists_and_odd_texts(tmp_path: Path) -> None:
    rows = (
        RequestRow(0, 12.5, 0.25, 0.3, 64, 3, (20_000, 30_000), "", 2, 50_000, 20_000),
        RequestRow(1, 12.75, 0.0, 0.0, 64, 0, (), 'Traceback:\n "quoted" \u2603, {not json', 0, 0, 0),
    )
    write_requests(rows, tmp_path / "requests.parquet")
    with duckdb.connect() as connection:
        found = connection.execute("SELECT * FROM read_parquet(?)", [str(tmp_path / "requests.parquet")]).fetchall()
    assert found == [(0, 12.5, 0.25, 0.3, 64, 3, [20_000, 30_000], ""), (1, 12.75, 0.0, 0.0, 64, 0, [], rows[1].error)]
    assert [path.name for path in tmp_path.iterdir()] == ["requests.parquet"]


def test_no_requests_is_an_empty_table_with_the_same_types(tmp_path: Path) -> None:
    write_requests((), tmp_path / "requests.parquet")
    with duckdb.connect() as connection:
        found = connection.execute("SELECT * FROM read_parquet(?)", [str(tmp_path / "requests.parquet")]).fetchall()
    assert found == []
