"""Shards of one campaign on several hosts: their folders hold no name twice, so they merge by copying."""

from __future__ import annotations

import io
from pathlib import Path

from runner.campaign import Campaign
from runner.config import load_config
from runner.display import Display
from runner.launcher import EngineHost
from runner.plan import build_plan
from runner.store import Store
from tests.test_campaign_loop import TOML, Script


def names(tmp_path: Path, number: int, *failing: str, cache: str = "cache") -> list[str]:
    """Folders of a sitting of shard `number` of 2, each on a host of its own."""
    (tmp_path / "campaign.toml").write_text(TOML)
    config, host_folder = load_config(tmp_path / "campaign.toml"), tmp_path / str(number)
    script = Script(dict.fromkeys(failing, "failed"))
    host = EngineHost("python3", (), tmp_path, host_folder / cache, "stand-in")
    plan = build_plan(config, ["published"], shard=(number, 2))
    with Store.open(host_folder / "results", config) as store:
        Campaign(config, plan, store, host, None, Display(io.StringIO()), execute=script).run()
    return script.folders


def test_no_name_occurs_in_two_shards(tmp_path: Path) -> None:
    first, second = names(tmp_path, 1), names(tmp_path, 2, "7b.eager.prime.p2a1")
    assert "7b.eager.prime.p1a1" in first
    assert {"7b.eager.prime.p2a1", "7b.eager.prime.p4a1", "7b.graphs.prime.p2a1"} <= set(second)
    assert not set(first) & set(second)


def test_a_new_cache_is_primed_under_the_shards_next_number(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    names(tmp_path, 1, "7b.eager.sustained.r1.p1a1", "7b.eager.sustained.r1.p1a2")
    again = names(tmp_path, 1, cache="another")
    assert "7b.graphs.prime.p3a1" in again
