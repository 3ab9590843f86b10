"""Why an engine or its client failed, read from its log: root-cause lines, a class, and the next step."""

from __future__ import annotations

import re

_PREFIX = re.compile(r"^\([A-Za-z_0-9]+ pid=\d+\) ?")
_HEAD = re.compile(r"^[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]:]+:\d+\] ?", re.ASCII)
_CAUSE = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b(?::|$)|Value error, |Killed$|Fatal Python error"
    r"|[\w.-]+(?: [\w-]+){0,2}: error: |Unknown vLLM environment variable"
    r"|\[shutdown\] MPClient: engine core exited unexpectedly)",
    re.ASCII,
)
# what a process says because another one failed first
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|EngineDeadError|engine core exited unexpectedly|cancelled"
    r"|^RuntimeError: Worker failed with error"
    r"|^asyncio\.exceptions\.CancelledError|^KeyboardInterrupt|^SystemExit"
)
SHUTDOWN = re.compile(r"\[shutdown\] .*(?:trigger received signal|shutdown triggered)")  # asked for
_MAX_LINES = 20
_MAX_CHARS = 500


def _kind(name: str, hint: str, *patterns: str) -> tuple[str, str, re.Pattern[str]]:
    return name, hint, re.compile("|".join(patterns))


# (class, next step, patterns); the first class that is found counts, so causes stand before consequences
_CLASSES = (
    _kind(
        "driver_mismatch",
        "The NVIDIA driver does not fit the engine's CUDA: update the driver (580 or newer for CUDA 13), "
        "reboot, check with nvidia-smi.",
        r"[Ee]rror 80[34]\b",
        "system has unsupported display driver",
        "forward compatibility was attempted",
        "CUDA driver version is insufficient",
        "NVIDIA driver on your system is too old",
        "Driver/library version mismatch",
    ),
    _kind(
        "gpu_lost",
        "The GPU failed: see `dmesg` for the Xid, reset the GPU or use another machine.",
        r"GPU is lost|fallen off the bus|uncorrectable ECC error|\bXid\b",
    ),
    _kind(
        "gpu_busy",
        "Another process holds the GPU: find it with nvidia-smi and end it, or lower the memory budget.",
        r"Free memory on device .{0,200}less than desired",
        r"device\(s\) is/are busy or unavailable",
    ),
    _kind(
        "out_of_memory",
        "The GPU ran out of memory: lower the memory budget or num_gpu_blocks, or use a smaller model.",
        "CUDA out of memory|OutOfMemoryError|CUDA error: out of memory",
    ),
    _kind(
        "kv_too_small",
        "The KV cache cannot hold one request: raise the memory budget or lower max_model_len.",
        "To serve at least one request with the model's max seq len",
        "No available memory for the cache blocks",
    ),
    _kind(
        "kv_too_large",
        "The KV cache asked for is larger than the free memory: lower it.",
        "on kv cache allocation is less than requested memory for kv",
    ),
    _kind(
        "disk_full",
        "A disk is full: free space for the compile cache, the results and /dev/shm.",
        "No space left on device|Disk quota exceeded",
    ),
    _kind(
        "host_out_of_memory",
        "The host ran out of memory: end other processes or use a larger machine.",
        r"Cannot allocate memory|^Killed$|\bMemoryError\b|DefaultCPUAllocator: can't allocate memory",
    ),
    _kind(
        "port_taken",
        "Another program listens on the port: run again (a fresh port is taken), or end that program.",
        "[Aa]ddress already in use",
    ),
    _kind(
        "bad_flag",
        "This engine version does not take a flag as written: correct the flags in campaign.toml.",
        "error: unrecognized arguments|error: argument |error: ambiguous option",
        "error: the following arguments are required|invalid choice:",
    ),
    _kind(
        "unknown_environment",
        "A variable starts with VLLM_ and is not known to this version: remove it from the environment.",
        "Unknown vLLM environment variable",
    ),
    _kind(
        "model_missing",
        "The model or tokenizer is not on this machine: check its directory, or fetch it at its revision.",
        "HFValidationError|LocalEntryNotFoundError|GatedRepoError|Re(?:pository|vision)NotFoundError",
        "is not a local folder and is not a valid model identifier|does not appear to have a file named",
        "[Cc]annot find (?:the requested files|any model weights|an appropriate cached snapshot)",
        r"Can't load (?:the configuration|tokenizer)|No such file or directory.{0,200}config\.json",
    ),
    _kind(
        "no_gpu",
        "The engine sees no GPU: check nvidia-smi, CUDA_VISIBLE_DEVICES and a container's GPU runtime.",
        "Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver",
        r"no CUDA-capable device|libcuda\.so\.1: cannot open",
    ),
    _kind(
        "toolchain_missing",
        "The engine compiles kernels and found no compiler: install gcc and g++ (nvcc where it asks for it).",
        r"Failed to find C compiler|Ninja is required|InvalidCxxCompiler|Could not find nvcc",
        r"No such file or directory: '(?:[\w/.-]*/)?(?:g\+\+|gcc|cc|nvcc|ninja)'",
    ),
    _kind(
        "too_many_open_files",
        "Raise the limit of open files (`ulimit -n 65536`).",
        "^(?!.*Found ulimit of).*Too many open files",  # 0.23.0 quotes the error in a harmless warning
    ),
    _kind(
        "bad_value",
        "The engine refused a value: correct it in campaign.toml.",
        r"pydantic\S*ValidationError|^Value error, |validation errors? for \w*Config",
    ),
    _kind(
        "cuda_error",
        "A CUDA call failed: run again; if it stays, check the GPU with `dmesg` and nvidia-smi.",
        "CUDA error: |cudaError|CUBLAS_STATUS|NCCL error",
    ),
    _kind(
        "engine_not_installed",
        "The engine's Python lacks a package: check which Python runs the engine and its packages.",
        r"No module named '?vllm\b|^(?:ModuleNotFoundError|ImportError): ",
    ),
    _kind(
        "engine_unreachable",
        "The client could not reach the engine: see the engine's log for why it stopped.",
        "ConnectionRefusedError|Cannot connect to host|Connect call failed",
    ),
    _kind(
        "engine_died",
        "The engine's core process ended: see the log before the first of these lines.",
        "EngineDeadError|EngineCore encountered (?:a fatal|an) |died unexpectedly",
        "engine core exited unexpectedly",
        "Engine core initialization failed",
    ),
)
FAILURE_CLASSES = tuple(name for name, _, _ in _CLASSES)


def _bare(raw: str) -> str:
    return _HEAD.sub("", _PREFIX.sub("", raw)).strip()


def root_causes(log_text: str) -> tuple[str, ...]:
    """Lines that name an error's cause, each once, in order, at most 20 of 500 characters.

    Lines that only follow from another process's error count when there is no other; what comes after a
    requested shutdown is no error.
    """
    causes: list[str] = []
    consequences: list[str] = []
    for raw in log_text.splitlines():
        if SHUTDOWN.search(raw):
            break
        line = _bare(raw)
        if _CAUSE.match(line):
            found = consequences if _CONSEQUENCE.search(line) else causes
            if line[:_MAX_CHARS] not in found and len(found) < _MAX_LINES:
                found.append(line[:_MAX_CHARS])
    return tuple(causes or consequences)


def classify_failure(log_text: str) -> tuple[str, str] | None:
    """(class, next step) of the failure that a log of the engine or the client tells of, or None."""
    lines: list[str] = []
    for raw in log_text.splitlines():
        if SHUTDOWN.search(raw):
            break
        lines.append(_bare(raw)[:2_000])
    for name, hint, pattern in _CLASSES:
        if any(pattern.search(line) for line in lines):
            return name, hint
    return None
