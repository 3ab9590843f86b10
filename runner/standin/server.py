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
from runner.standin.settings import ServeSettings, fault, parse_serve, speed, start_error
from runner.standin.startup import API, CORE, SHUTDOWN, Line, Raw, failure, start_phases, write

DIE_AFTER_REQUESTS = 5
SLOW_FIRST_S = 20.0
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 540.00 MiB. GPU 0 has a total capacity of 79.18 GiB "
    "of which 211.44 MiB is free."
)


class _Stream:
    """A completion on its way to the client: an SSE event a token, or one JSON document at the end."""

    def __init__(self, server: Server, connection: ServerConnection, request_id: str, request: dict[str, Any], prompt_tokens: int, early: bool) -> None:
        self._connection, self._stream = connection, bool(request.get("stream"))
        self._usage = not self._stream or bool((request.get("stream_options") or {}).get("include_usage"))
        self._prompt_tokens, self._sent = prompt_tokens, 0
        self._reason = "stop" if early else "length"
        self._head = {
            "id": request_id, "object": "text_completion", "created": int(time.time()), "model": server.settings.served_name,
        }  # fmt: skip
        self._fingerprint = f"vllm-0.23.0-{server.settings.fingerprint[:8]}"
        self._event = self._token_event(None)

    def _token_event(self, reason: str | None) -> bytes:
        choice = {
            "index": 0, "text": " w1", "logprobs": None, "finish_reason": reason, "stop_reason": None,
            "prompt_token_ids": None, "token_ids": None,
        }  # fmt: skip
        return _event({**self._head, "choices": [choice]})

    def tokens(self, count: int, finished: bool) -> None:
        self._sent += count
        usage = {
            "prompt_tokens": self._prompt_tokens, "total_tokens": self._prompt_tokens + self._sent, "completion_tokens": self._sent,
        }  # fmt: skip
        if self._stream:
            if self._sent == count:
                self._connection.start_stream()
            data = self._event * (count - finished)
            if finished:
                data += self._token_event(self._reason)
                if self._usage:
                    data += _event({**self._head, "choices": [], "usage": usage, "system_fingerprint": self._fingerprint})
                data += b"data: [DONE]\n\n"
            self._connection.chunk(data, last=finished)
        elif finished:
            choice = {"index": 0, "text": " w1" * self._sent, "logprobs": None, "finish_reason": self._reason, "stop_reason": None}
            self._connection.respond(
                {**self._head, "choices": [choice], "system_fingerprint": self._fingerprint, "usage": usage}
            )
        if finished:
            self._connection.on_lost = None


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


class Server:
    def __init__(self, settings: ServeSettings, engine: Engine, speed: float, fault: str | None) -> None:
        self.settings, self.engine, self.speed, self.fault = settings, engine, speed, fault
        self._completions = 0
        self.exit = asyncio.Event()
        if fault == "die_mid_bench":
            engine.on_finished = self._die_after

    def handle(self, connection: ServerConnection, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        name = self.settings.served_name
        if path in ("/health", "/ping"):
            connection.respond(b"", 503 if self.engine.dead else 200)
        elif path == "/version":
            connection.respond({"version": "0.23.0"})
        elif path == "/metrics":
            connection.respond(self.engine.metrics.text(self.settings), content_type="text/plain; version=0.0.4; charset=utf-8")
        elif path == "/v1/models":
            model = {
                "id": name, "object": "model", "created": int(time.time()), "owned_by": "vllm", "root": self.settings.args["model"],
                "parent": None, "max_model_len": self.settings.args["max_model_len"],
            }  # fmt: skip
            connection.respond({"object": "list", "data": [model]})
        elif path == "/v1/completions" and method == "POST":
            self._complete(connection, headers, body)
        else:
            connection.respond({"detail": "Not Found"}, 404)

    def _complete(self, connection: ServerConnection, headers: dict[str, str], body: bytes) -> None:
        try:
            request = json.loads(body)
            prompt, output = request["prompt"], int(request.get("max_tokens") or 16)
            prompt_tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return _refuse(connection, f"{type(error).__name__}: {error}", 400)
        model = request.get("model", self.settings.served_name)
        if model != self.settings.served_name:
            return _refuse(connection, f"The model `{model}` does not exist.", 404)
        self._completions += 1
        number = self._completions
        if self.engine.dead or (self.fault == "refuse_requests" and number % 4 == 0):
            return _refuse(connection, "EngineCore encountered an issue.", 503)
        early = self.fault == "short_outputs" and number % 5 == 0 and output > 2
        request_id = f"cmpl-{headers.get('x-request-id') or uuid.uuid4().hex[:16]}"
        stream = _Stream(self, connection, request_id, request, prompt_tokens, early)
        request_id = f"{request_id}-{number}"

        def start() -> None:
            try:
                self.engine.add(request_id, prompt_tokens, output // 3 if early else output, stream)
            except SchedulingError as error:
                return _refuse(connection, str(error), 400)
            connection.on_lost = lambda: self.engine.abort(request_id)

        if self.fault == "slow_first_request" and number == 1:
            asyncio.get_running_loop().call_later(SLOW_FIRST_S / self.speed, start)
        else:
            start()

    def _die_after(self, finished: int) -> None:
        if finished < DIE_AFTER_REQUESTS or self.engine.dead:
            return
        self.engine.dead = True
        write(
            Line(API, "core_client.py:705", "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.", "ERROR"),
            Line(
                API, "async_llm.py:704",
                "AsyncLLM output_handler failed.\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
                "See stack trace (above) for the root cause.", "ERROR",
            ),
        )  # fmt: skip
        asyncio.get_running_loop().call_later(max(5.0 / self.speed, 0.3), self.exit.set)


def _refuse(connection: ServerConnection, message: str, status: int) -> None:
    kinds = {400: "BadRequestError", 404: "NotFoundError", 503: "InternalServerError"}
    connection.respond({"error": {"message": message, "type": kinds[status], "param": None, "code": status}}, status)


async def _run(settings: ServeSettings, listener: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    factor, broken = speed(), fault()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    steps = StepFile(os.environ.get("CAMPAIGN_STEPS_FILE"))
    engine = Engine(settings, factor, steps)
    server = Server(settings, engine, factor, broken)
    status = 0

    async def live() -> None:
        nonlocal status
        for phase, seconds, lines in start_phases(settings):
            await asyncio.sleep(seconds / factor)
            if phase == "load" and broken == "crash_at_load":
                write(*failure(OUT_OF_MEMORY))
                status = 1
                return
            if phase in ("capture", "warm-up") and broken == "hang_in_capture":
                await asyncio.Event().wait()
            write(*lines)
            error = start_error(settings) if phase in ("imports", "profile") else None
            if error and (phase == "profile" or error.startswith("Value error")):
                write(*failure(error))
                status = 1
                return
        http = await loop.create_server(lambda: ServerConnection(server.handle), sock=listener)
        write(Raw("INFO:     Application startup complete."))
        async with http:
            tasks = [loop.create_task(engine.run()), loop.create_task(engine.flush_and_log())]
            ended, _ = await asyncio.wait([loop.create_task(server.exit.wait()), tasks[0]], return_when="FIRST_COMPLETED")
            if tasks[0] in ended:
                tasks[0].result()  # an error of the loop must be seen
                await server.exit.wait()

    task = loop.create_task(live())
    stopped = loop.create_task(stop.wait())
    await asyncio.wait([task, stopped], return_when="FIRST_COMPLETED")
    if not task.done():
        write(*SHUTDOWN)
    steps.close()
    if task.done():
        task.result()
    return status


def serve(argv: list[str]) -> int:
    """Run the server until SIGTERM (exit 0), an error at start (1) or a fault. A bad flag exits with 2."""
    settings = parse_serve(argv)
    if fault() == "leave_orphan":
        subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((settings.args["host"] or "127.0.0.1", settings.args["port"]))
    except OSError as error:
        write(Raw("Traceback (most recent call last):"), Raw(f"OSError: [Errno {error.errno}] {os.strerror(error.errno or 0)}"))
        return 1
    status = asyncio.run(_run(settings, listener))
    sys.stdout.flush()
    os._exit(status)  # without waiting for streams that were cut off
