"""What a campaign will run and in which order: pure, the same on every machine for the same configuration.

A block is every arm of one model, profile and repetition, run back to back: the unit of order, resume and
shards. A prime is the first start of an arm on a machine: it fills the compile cache and reads how many KV
blocks the arm has by nature.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from itertools import product as product_of

from runner.config import Config
from runner.config_checks import BLOCKS_FLAG, PRIME, REFERENCE, flag_values, without_flag
from runner.config_problems import suggest
from runner.errors import ConfigError

DEFAULT_WINDOW_S = 120.0  # where [model.estimate] says nothing about a profile
EAGER_FLAG = "--enforce-eager"


@dataclass(frozen=True)
class RunSpec:
    """One repetition of a cell: one server start, one probe, one bench. Fields as in RunIdentity."""

    run_id: str  # model.arm.profile.rN
    model: str
    arm: str
    profile: str
    repetition: int
    block_id: str
    block_arms: tuple[str, ...]
    order_in_block: int  # from 0
    seed: int


@dataclass(frozen=True)
class Block:
    block_id: str  # model.profile.rN
    model: str
    profile: str
    repetition: int  # from 1
    arms: tuple[str, ...]  # in the order they run
    seed: int  # of the bench prompts, the same for every arm
    estimate_s: float

    def runs(self) -> tuple[RunSpec, ...]:
        shared = self.profile, self.repetition, self.block_id, self.arms
        return tuple(
            RunSpec(f"{self.model}.{arm}.{self.profile}.r{self.repetition}", self.model, arm, *shared, order, self.seed)
            for order, arm in enumerate(self.arms)
        )


@dataclass(frozen=True)
class PrimeSpec:
    """The first start of `arm`. `covers`: the arms whose compiled code and natural block count it yields."""

    prime_id: str  # model.arm.prime
    model: str
    arm: str
    flags: tuple[str, ...]  # the arm's own without a block count, so that the natural one is read
    covers: tuple[str, ...]
    estimate_s: float


@dataclass(frozen=True)
class Plan:
    blocks: tuple[Block, ...]
    primes: tuple[PrimeSpec, ...]  # in the order in which the blocks need them
    suites: tuple[str, ...]
    shard: tuple[int, int] = (1, 1)  # K of N

    @property
    def runs(self) -> tuple[RunSpec, ...]:
        return tuple(run for block in self.blocks for run in block.runs())

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(sorted({block.model for block in self.blocks}))

    @property
    def estimate_s(self) -> float:
        return sum(b.estimate_s for b in self.blocks) + sum(p.estimate_s for p in self.primes)

    def primes_for(self, block: Block, config: Config) -> tuple[PrimeSpec, ...]:
        """The primes that must be done on a machine before `block` can start there."""
        needed = {prime_for(config, arm) for arm in _with_sources(config, block.arms)}
        return tuple(prime for prime in self.primes if prime.model == block.model and prime.arm in needed)


def bench_seed(campaign_seed: int, repetition: int) -> int:
    """Seed of the bench prompts: its own for every repetition, shared by every arm, model and profile."""
    return campaign_seed * 1000 + repetition


def shuffled_arms(campaign_seed: int, block_id: str, arms: Sequence[str]) -> tuple[str, ...]:
    """`arms` in an order drawn from seed and block alone, whatever the order in which they are listed."""

    def draw(arm: str) -> bytes:
        return hashlib.sha256(f"{campaign_seed}/{block_id}/{arm}".encode()).digest()

    return tuple(sorted(arms, key=draw))


def build_plan(
    config: Config, suites: Sequence[str], blocks_glob: str | None = None, shard: tuple[int, int] | None = None
) -> Plan:
    """The union of `suites` in common blocks: repetitions outermost, then the order of the file.

    `blocks_glob` keeps the blocks whose id matches; `shard` (K, N) then every N-th of them from the K-th on.
    Raises ConfigError for an unknown or missing suite and a glob that matches nothing.
    """
    if not suites:
        raise ConfigError("no suite chosen", f"name one with --suite: {', '.join(config.suites)}")
    for name in suites:
        if name not in config.suites:
            raise ConfigError(f'{config.path}: no suite "{name}"', suggest(name, config.suites))
    blocks = _blocks(config, suites)
    if blocks_glob is not None:
        matching = [block for block in blocks if fnmatchcase(block.block_id, blocks_glob)]
        if not matching:
            ids = dict.fromkeys(f"{block.model}.{block.profile}.rN" for block in blocks)
            raise ConfigError(f'no block matches "{blocks_glob}"', f"blocks are {', '.join(ids)}")
        blocks = matching
    if shard is not None:
        blocks = blocks[shard[0] - 1 :: shard[1]]
    return Plan(tuple(blocks), _primes(config, blocks), tuple(s for s in config.suites if s in suites), shard or (1, 1))


def parse_shard(text: str) -> tuple[int, int]:
    """'2/4' -> (2, 4). Raises ConfigError for anything else."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f'shard "{text}" is not K/N with K from 1 to N', "give --shard K/N, like 1/4")
    return int(match[1]), int(match[2])


def worker_of(plan: Plan, workers: int) -> dict[str, int]:
    """By block, which of so many workers (from 1) does it: in turn, one further at every repetition, so that each cell
    visits each worker."""
    before: Counter[int] = Counter()
    found = {}
    for block in plan.blocks:
        found[block.block_id] = 1 + (before[block.repetition] + block.repetition - 1) % workers
        before[block.repetition] += 1
    return found


def _blocks(config: Config, suites: Sequence[str]) -> list[Block]:
    cells: dict[tuple[str, str], dict[str, int]] = {}  # repetitions by arm for each (model, profile), as in the file
    abba = set()  # a cell has the same order in every suite
    for product in chain.from_iterable(products for name, products in config.suites.items() if name in suites):
        for cell in product_of(product.models, product.profiles):
            arms = cells.setdefault(cell, {})
            for arm in product.arms:
                arms[arm] = max(product.repetitions or config.campaign.repetitions, arms.get(arm, 0))
            if product.order == "abba":
                abba.add(cell)
    last = max(count for arms in cells.values() for count in arms.values())
    blocks = []
    for repetition in range(1, last + 1):
        for (model, profile), repetitions in cells.items():
            block_id = f"{model}.{profile}.r{repetition}"
            listed = [arm for arm, count in repetitions.items() if repetition <= count]
            if listed:
                order = shuffled_arms(config.campaign.seed, block_id, listed)
                if (model, profile) in abba:
                    order = tuple(listed if repetition % 2 else reversed(listed))
                seed = bench_seed(config.campaign.seed, repetition)
                estimate_s = len(order) * run_estimate_s(config, model, profile)
                blocks.append(Block(block_id, model, profile, repetition, order, seed, estimate_s))
    return blocks


def run_estimate_s(config: Config, model: str, profile: str) -> float:
    """Expected seconds of one run with a warm compile cache."""
    estimate = config.models[model].estimate
    return estimate.start_s + estimate.window_s.get(profile, DEFAULT_WINDOW_S) + estimate.overhead_s


def prime_flags(config: Config, arm: str) -> tuple[str, ...]:
    """The flags of `arm` without a block count."""
    return without_flag(config.arms[arm].flags, BLOCKS_FLAG)


def prime_for(config: Config, arm: str) -> str:
    """The arm whose prime covers `arm`: the first in the file that differs in its block count at most.

    The key of the engine's compile cache holds every other flag, and not the block count.
    """
    flags = prime_flags(config, arm)
    return next(name for name in config.arms if prime_flags(config, name) == flags)


def _with_sources(config: Config, arms: Sequence[str]) -> list[str]:
    """`arms` and the arms whose measured block count they need, each once, sources first."""
    ordered: dict[str, None] = {}
    for arm in arms:
        ordered |= dict.fromkeys((*sorted(needs_measured(config, arm)), arm))
    return list(ordered)


def _primes(config: Config, blocks: Sequence[Block]) -> tuple[PrimeSpec, ...]:
    covers: dict[tuple[str, str], dict[str, None]] = {}
    for block in blocks:
        for arm in _with_sources(config, block.arms):
            covers.setdefault((block.model, prime_for(config, arm)), {})[arm] = None
    primes = []
    for (model, arm), covered in covers.items():
        flags, estimate = prime_flags(config, arm), config.models[model].estimate
        start_s = estimate.start_s if EAGER_FLAG in (*config.engine.flags, *flags) else estimate.cold_start_s
        prime_id, estimate_s = f"{model}.{arm}.{PRIME}", start_s + estimate.overhead_s
        primes.append(PrimeSpec(prime_id, model, arm, flags, tuple(covered), estimate_s))
    return tuple(primes)


def needs_measured(config: Config, arm: str) -> set[str]:
    """The other arms whose measured block count the flags of `arm` refer to."""
    return {source for argument in config.arms[arm].flags for source, _ in REFERENCE.findall(argument)}


def resolve_flags(config: Config, model: str, arm: str, measured: Mapping[str, int]) -> tuple[str, ...]:
    """The flags of a run of `arm`, block counts filled in and pinned; the engine's common flags are not among them.

    `measured` holds this model's natural block counts by arm, as primes read them. Raises ConfigError where
    a needed one is missing.
    """

    def count(source: str) -> str:
        prime = prime_for(config, source)
        if source not in measured and prime not in measured:
            needed = f"{model}.{arm} needs the KV block count of {source}, which is not measured yet"
            raise ConfigError(needed, f"the prime {model}.{prime}.{PRIME} must finish first")
        return str(measured.get(source, measured.get(prime)))

    own = config.arms[arm].flags
    flags = [REFERENCE.sub(lambda reference: count(reference[1]), argument) for argument in own]
    if config.engine.pin_kv_blocks and flag_values((*config.engine.flags, *own), BLOCKS_FLAG) is None:
        flags += [BLOCKS_FLAG, count(arm)]
    return tuple(flags)
