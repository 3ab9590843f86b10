"""What a campaign will run and in which order: pure, the same for the same configuration on every machine.

A block is every arm of one model, profile and repetition, run back to back; it is the unit of order, resume and shards.
A prime is the first start of an arm on a machine: it fills the compile cache and reads the natural block count.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from runner.config import Config
from runner.config_checks import BLOCKS_FLAG, REFERENCE, flag_values, without_flag
from runner.config_problems import suggest
from runner.errors import ConfigError

RUN_OVERHEAD_S = 12.0  # probe, warm-up requests, stop, files; around the start and the window
DEFAULT_WINDOW_S = 120.0  # where [model.estimate] says nothing about a profile
EAGER_FLAG = "--enforce-eager"


@dataclass(frozen=True)
class RunSpec:
    """One repetition of a cell: one server start, one probe, one bench."""

    run_id: str  # model.arm.profile.rN
    model: str
    arm: str
    profile: str
    repetition: int
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
        return tuple(
            RunSpec(
                run_id=f"{self.model}.{arm}.{self.profile}.r{self.repetition}",
                model=self.model,
                arm=arm,
                profile=self.profile,
                repetition=self.repetition,
                order_in_block=order,
                seed=self.seed,
            )
            for order, arm in enumerate(self.arms)
        )


@dataclass(frozen=True)
class PrimeSpec:
    """The first start of `arm`; `covers` are the planned arms whose compiled code and natural block count it yields."""

    prime_id: str  # model.arm.prime
    model: str
    arm: str
    flags: tuple[str, ...]  # the arm's, without a block count
    covers: tuple[str, ...]
    estimate_s: float


@dataclass(frozen=True)
class Plan:
    blocks: tuple[Block, ...]
    primes: tuple[PrimeSpec, ...]  # in the order in which the blocks need them

    @property
    def runs(self) -> tuple[RunSpec, ...]:
        return tuple(run for block in self.blocks for run in block.runs())

    @property
    def estimate_s(self) -> float:
        return sum(item.estimate_s for item in (*self.blocks, *self.primes))

    def prime_for(self, model: str, arm: str) -> str:
        """The arm whose prime covers `arm` of `model`. Raises KeyError where the plan has none."""
        for prime in self.primes:
            if prime.model == model and arm in prime.covers:
                return prime.arm
        raise KeyError(f"{model}.{arm}")

    def primes_for(self, block: Block, config: Config) -> tuple[PrimeSpec, ...]:
        """The primes that must be done before `block` can start."""
        needed = {self.prime_for(block.model, arm) for arm in _with_sources(config, block.arms)}
        return tuple(prime for prime in self.primes if prime.model == block.model and prime.arm in needed)


def bench_seed(campaign_seed: int, repetition: int) -> int:
    """Seed of the bench prompts: its own for every repetition, shared by every arm, model and profile."""
    return campaign_seed * 1000 + repetition


def shuffled_arms(campaign_seed: int, block_id: str, arms: Sequence[str]) -> tuple[str, ...]:
    """`arms` in an order drawn from the seed and the block alone, not from the order in which they are listed."""

    def draw(arm: str) -> bytes:
        return hashlib.sha256(f"{campaign_seed}/{block_id}/{arm}".encode()).digest()

    return tuple(sorted(arms, key=draw))


def build_plan(
    config: Config, suites: Sequence[str], blocks_glob: str | None = None, shard: tuple[int, int] | None = None
) -> Plan:
    """The union of `suites` in common blocks: repetitions outermost, then the order of the file.

    `blocks_glob` keeps the blocks whose id matches; `shard` (K, N) then keeps every N-th of them from the K-th on.
    Raises ConfigError for an unknown or missing suite, a glob that matches nothing and an impossible shard.
    """
    if not suites:
        raise ConfigError("no suite chosen", f"name one with --suite: {', '.join(config.suites)}")
    for name in suites:
        if name not in config.suites:
            raise ConfigError(f'{config.path}: no suite "{name}"', suggest(name, config.suites))
    blocks = _blocks(config, _cells(config, suites))
    if blocks_glob is not None:
        matching = [block for block in blocks if fnmatchcase(block.block_id, blocks_glob)]
        if not matching:
            ids = sorted({block.block_id.rsplit(".", 1)[0] for block in blocks})
            raise ConfigError(f'no block matches "{blocks_glob}"', f"blocks are {', '.join(f'{i}.rN' for i in ids)}")
        blocks = matching
    if shard is not None:
        number, count = shard
        if not 1 <= number <= count:
            raise ConfigError(f"shard {number}/{count}: K must be from 1 to N", "give --shard K/N, like 1/4")
        blocks = blocks[number - 1 :: count]
    return Plan(tuple(blocks), _primes(config, blocks))


def parse_shard(text: str) -> tuple[int, int]:
    """'2/4' -> (2, 4). Raises ConfigError for anything else."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f'shard "{text}" is not K/N with K from 1 to N', "give --shard K/N, like 1/4")
    return int(match[1]), int(match[2])


def _cells(config: Config, suites: Sequence[str]) -> dict[tuple[str, str], dict[str, int]]:
    """Repetitions by arm for each (model, profile), in the order of the file whatever the order of `suites`."""
    cells: dict[tuple[str, str], dict[str, int]] = {}
    for name, products in config.suites.items():
        for product in products if name in suites else ():
            repetitions = product.repetitions or config.campaign.repetitions
            for model in product.models:
                for profile in product.profiles:
                    arms = cells.setdefault((model, profile), {})
                    for arm in product.arms:
                        arms[arm] = max(repetitions, arms.get(arm, 0))
    return cells


def _blocks(config: Config, cells: dict[tuple[str, str], dict[str, int]]) -> list[Block]:
    last = max(count for arms in cells.values() for count in arms.values())
    blocks = []
    for repetition in range(1, last + 1):
        for (model, profile), repetitions in cells.items():
            block_id = f"{model}.{profile}.r{repetition}"
            arms = [arm for arm, count in repetitions.items() if repetition <= count]
            if arms:
                order = shuffled_arms(config.campaign.seed, block_id, arms)
                seed = bench_seed(config.campaign.seed, repetition)
                estimate_s = len(order) * run_estimate_s(config, model, profile)
                blocks.append(Block(block_id, model, profile, repetition, order, seed, estimate_s))
    return blocks


def run_estimate_s(config: Config, model: str, profile: str) -> float:
    """Expected seconds of one run with a warm compile cache."""
    estimate = config.models[model].estimate
    return estimate.start_s + estimate.window_s.get(profile, DEFAULT_WINDOW_S) + RUN_OVERHEAD_S


def prime_arm(config: Config, arm: str) -> str:
    """The first arm of the file with the flags of `arm`, block counts aside: the compile cache does not see those."""
    flags = without_flag(config.arms[arm].flags, BLOCKS_FLAG)
    return next(n for n, a in config.arms.items() if without_flag(a.flags, BLOCKS_FLAG) == flags)


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
            covers.setdefault((block.model, prime_arm(config, arm)), {})[arm] = None
    primes = []
    for (model, arm), covered in covers.items():
        estimate = config.models[model].estimate
        flags = without_flag(config.arms[arm].flags, BLOCKS_FLAG)
        start_s = estimate.start_s if EAGER_FLAG in flags else estimate.cold_start_s
        spec = PrimeSpec(f"{model}.{arm}.prime", model, arm, flags, tuple(covered), start_s + RUN_OVERHEAD_S)
        primes.append(spec)
    return tuple(primes)


def pinned(config: Config, arm: str) -> bool:
    """Whether the arm is started with its own measured block count, so that it is the same in every block."""
    flags = (*config.engine.flags, *config.arms[arm].flags)
    return config.engine.pin_kv_blocks and flag_values(flags, BLOCKS_FLAG) is None


def needs_measured(config: Config, arm: str) -> set[str]:
    """Arms whose measured block count must be known before a run of `arm` can start (itself, when pinned)."""
    sources = {source for argument in config.arms[arm].flags for source, _ in REFERENCE.findall(argument)}
    return sources | ({arm} if pinned(config, arm) else set())


def resolve_flags(config: Config, model: str, arm: str, measured: Mapping[str, int]) -> list[str]:
    """The flags of a run of `arm`, with block counts filled in; engine flags are not among them.

    `measured` holds natural block counts of this model and card by arm, as read in primes. Raises ConfigError where a
    needed one is missing.
    """

    def count(source: str) -> str:
        blocks = measured.get(source, measured.get(prime_arm(config, source)))
        if blocks is None:
            raise ConfigError(
                f"{model}.{arm} needs the KV block count of {source}, which is not measured yet",
                f"let the prime {model}.{prime_arm(config, source)}.prime finish first",
            )
        return str(blocks)

    flags = [REFERENCE.sub(lambda match: count(match[1]), argument) for argument in config.arms[arm].flags]
    if pinned(config, arm):
        flags.append(f"{BLOCKS_FLAG}={count(arm)}")
    return flags
