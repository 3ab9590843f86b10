"""The face of `vllm serve`: start-up, routes, completions, faults, stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from typing import Any

from analysis.scheduling import SchedulingError
from runner.standin.engine import Engine, StepFile
from runner.standin.http import ServerConnection
from runner.standin.log import EngineLog, write
from runner.standin.settings import ServeSettings, fault, parse_serve, speed, start_error

DIE_AFTER_REQUESTS = 5
SLOW_FIRST_S = 20.0
MODEL_FIELDS = {"root": "model", "max_model_len": "max_model_len"}


class _Stream:
    """A completion on its way to the client: an SSE event a token, or one JSON document at the end."""

    def __init__(
        self, connection: ServerConnection, request: dict[str, Any], settings: ServeSettings
    ) -> None:
        self.connection = connection
        self.request_id = ""
        self.reason = "length"
        self.prompt_tokens = 0
        self._streamed = bool(request.get("stream"))
        self._usage = bool((request.get("stream_options") or {}).get("include_usage"))
        self._model, self._print = settings.served_name, f"vllm-0.23.0-{settings.compile_key[:8]}"
        self._created, self._sent, self._event = int(time.time()), 0, b""

    def _document(self, text: str, reason: str | None, **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        head = {"id": self.request_id, "object": "text_completion", "created": self._created}
        return {**head, "model": self._model, "choices": [choice], **more}

    def tokens(self, count: int, finished: bool) -> None:
        if not self._sent and self._streamed:
            self.connection.start_stream()
            self._event = _event(self._document(" w1", None))
        self._sent += count
        total = self.prompt_tokens + self._sent
        usage = {"prompt_tokens": self.prompt_tokens, "total_tokens": total, "completion_tokens": self._sent}
        last = {"system_fingerprint": self._print, "usage": usage}
        if self._streamed:
            data = self._event * (count - finished)
            if finished:
                data += _event(self._document(" w1", self.reason))
                if self._usage:
                    data += _event({**self._document("", None), "choices": [], "usage": usage})
                data += b"data: [DONE]\n\n"
            self.connection.chunk(data, last=finished)
        elif finished:
            self.connection.respond(self._document(" w1" * self._sent, self.reason, **last))
        if finished:
            self.connection.on_lost = None


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


class Server:
    """Routes and faults of the API server."""

    def __init__(self, engine: Engine, speed: float, fault: str | None) -> None:
        self.engine, self.settings, self.speed, self.fault = engine, engine.settings, speed, fault
        self.exit = asyncio.Event()
        self._completions = 0
        if fault == "die_mid_bench":
            engine.on_finished = self._die_after

    def handle(
        self, connection: ServerConnection, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        if path in ("/health", "/ping"):
            connection.respond(b"", 503 if self.engine.dead else 200)
        elif path == "/version":
            connection.respond({"version": "0.23.0"})
        elif path == "/metrics":
            text = self.engine.metrics.text(self.settings)
            connection.respond(text, content_type="text/plain; version=0.0.4; charset=utf-8")
        elif path == "/v1/models":
            model = {"id": self.settings.served_name, "object": "model", "owned_by": "vllm"}
            model |= {name: self.settings.args[key] for name, key in MODEL_FIELDS.items()}
            connection.respond({"object": "list", "data": [model]})
        elif path == "/v1/completions" and method == "POST":
            refusal = self._complete(connection, headers, body)
            if refusal:
                _refuse(connection, *refusal)
        else:
            connection.respond({"detail": "Not Found"}, 404)

    def _complete(
        self, connection: ServerConnection, headers: dict[str, str], body: bytes
    ) -> tuple[str, int] | None:
        """Hand a completion to the engine; (message, status) if it is refused."""
        try:
            request = json.loads(body)
            prompt, output = request["prompt"], int(request.get("max_tokens") or 16)
            prompt_tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return f"{type(error).__name__}: {error}", 400
        model = request.get("model", self.settings.served_name)
        if model != self.settings.served_name:
            return f"The model `{model}` does not exist.", 404
        self._completions += 1
        number = self._completions
        if self.engine.dead or (self.fault == "refuse_requests" and number % 4 == 0):
            return "EngineCore encountered an issue.", 503
        stream = _Stream(connection, request, self.settings)
        stream.request_id = f"cmpl-{headers.get('x-request-id') or uuid.uuid4().hex[:16]}"
        stream.prompt_tokens = prompt_tokens
        if self.fault == "short_outputs" and number % 5 == 0 and output > 2:
            output, stream.reason = output // 3, "stop"
        engine_id = f"{stream.request_id}-{number}"

        def start() -> tuple[str, int] | None:
            try:
                self.engine.add(engine_id, prompt_tokens, output, stream)
            except SchedulingError as error:
                return str(error), 400
            connection.on_lost = lambda: self.engine.abort(engine_id)
            return None

        if self.fault == "slow_first_request" and number == 1:
            asyncio.get_running_loop().call_later(SLOW_FIRST_S / self.speed, start)
            return None
        return start()

    def _die_after(self, finished: int) -> None:
        if finished < DIE_AFTER_REQUESTS or self.engine.dead:
            return
        self.engine.dead = True
        self.engine.log.say("core-died")
        asyncio.get_running_loop().call_later(max(5.0 / self.speed, 0.3), self.exit.set)


def _refuse(connection: ServerConnection, message: str, status: int) -> None:
    kinds = {400: "BadRequestError", 404: "NotFoundError", 503: "InternalServerError"}
    connection.respond(
        {"error": {"message": message, "type": kinds[status], "param": None, "code": status}}, status
    )


async def _start(log: EngineLog, settings: ServeSettings, factor: float, broken: str | None) -> bool:
    """Go through the start's phases; False if the engine fails in one."""
    error = start_error(settings)
    for phase, seconds in log.start():
        await asyncio.sleep(seconds / factor)
        if phase == "load" and broken == "crash_at_load":
            log.say("out-of-memory")
            return False
        if phase == "capture" and broken == "hang_in_capture":
            await asyncio.Event().wait()
        if error and (error[0], phase) in (("refused-settings", "core"), ("refused-memory", "kv")):
            log.say(error[0], error=error[1])
            return False
        log.say(phase)
    return True


async def _live(engine: Engine, listener: socket.socket, factor: float, broken: str | None) -> int:
    """Start, then serve until the engine's death; the exit status."""
    settings = engine.settings
    if not await _start(engine.log, settings, factor, broken):
        return 1
    loop = asyncio.get_running_loop()
    server = Server(engine, factor, broken)
    async with await loop.create_server(lambda: ServerConnection(server.handle), sock=listener):
        engine.log.say("listening")
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(engine.run()), tasks.create_task(engine.flush_and_log())]
            await server.exit.wait()
            for task in running:
                task.cancel()
    return 0


async def _run(settings: ServeSettings, listener: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    factor = speed()
    engine = Engine(settings, factor, StepFile(os.environ.get("CAMPAIGN_STEPS_FILE")), EngineLog(settings))
    life = loop.create_task(_live(engine, listener, factor, fault()))
    stopped = loop.create_task(stop.wait())
    await asyncio.wait([life, stopped], return_when=asyncio.FIRST_COMPLETED)
    engine.steps.close()
    if life.done():
        return life.result()
    engine.log.say("stop")
    return 0


def serve(argv: list[str]) -> int:
    """Run the server until SIGTERM (exit 0), an error at start (1) or a fault. A bad flag exits with 2."""
    settings = parse_serve(argv)
    if fault() == "leave_orphan":
        silent = subprocess.DEVNULL
        subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=silent, stderr=silent)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((settings.args["host"] or "127.0.0.1", settings.args["port"]))
    except OSError as error:
        write("A", "R", "-", f"OSError: [Errno {error.errno}] {os.strerror(error.errno or 0)}")
        return 1
    status = asyncio.run(_run(settings, listener))
    sys.stdout.flush()
    os._exit(status)  # without waiting for streams that were cut off
