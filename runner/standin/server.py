"""The face of `vllm serve`: start-up, routes, completions, faults, stop."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from analysis.scheduling import SchedulingError
from runner.standin.engine import Engine
from runner.standin.http import read_head
from runner.standin.settings import ServeSettings, parse_serve

DIE_AFTER_REQUESTS = 5
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _event(document: Any) -> bytes:
    return b"data: %b\n\n" % _json(document)


def _response(body: Any, status: int = 200, kind: str = "application/json") -> bytes:
    """A whole response; anything but bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else _json(body)
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {kind}"
    return f"{head}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


def _refusal(status: int, message: str) -> bytes:
    return _response({"error": {"message": message, "code": status}}, status)


class _Completion:
    """On its way to the client: an SSE event a token in a chunked body. Raises ValueError if not asked to stream."""

    def __init__(self, request: dict[str, Any], name: str, model: str) -> None:
        if not request.get("stream"):
            raise ValueError("this stand-in answers with a stream alone")
        prompt = request["prompt"]
        self.prompt_tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        self.output_tokens = int(request.get("max_tokens") or 16)
        self.reason, self.done = "length", asyncio.Event()
        self._sent = 0
        self._head = {"id": f"cmpl-{name}", "object": "text_completion", "model": model}
        self._token = self._token_event(None)

    def _token_event(self, reason: str | None) -> bytes:
        return _event({**self._head, "choices": [{"index": 0, "text": " w1", "finish_reason": reason}]})

    def take(self, count: int, finished: bool) -> bytes:
        """What goes to the client for `count` more tokens."""
        head = b"" if self._sent else STREAM
        self._sent += count
        data = self._token * (count - finished)
        if finished:
            total = self.prompt_tokens + self._sent
            usage = {"prompt_tokens": self.prompt_tokens, "total_tokens": total, "completion_tokens": self._sent}
            data += self._token_event(self.reason)
            data += _event({**self._head, "choices": [], "usage": usage}) + b"data: [DONE]\n\n"
        return b"%b%x\r\n%b\r\n%b" % (head, len(data), data, b"0\r\n\r\n" if finished else b"")


class Server:
    """Routes and faults of the API server. `leave` ends the process, some time after the engine's death."""

    def __init__(self, engine: Engine, leave: Callable[[], None]) -> None:
        self._engine, self._settings, self._leave = engine, engine.settings, leave
        self._completions = self._finished = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a client, one request after the other, until it leaves."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                first, headers = await read_head(reader)
                body = await reader.readexactly(int(headers.get("content-length") or 0))
                if first.startswith("POST /v1/completions "):
                    name = headers.get("x-request-id") or uuid.uuid4().hex
                    writer.write(await self._complete(reader, writer, name, body))
                else:
                    writer.write(self._get(first.split(" ")[1]))
        writer.close()

    def _get(self, path: str) -> bytes:
        if path == "/health":
            return _response(b"", 503 if self._engine.dead else 200)
        if path == "/version":
            return _response({"version": "0.23.0"})
        if path == "/metrics":
            return _response(self._engine.metrics_text(), kind="text/plain; version=0.0.4")
        return _refusal(404, "Not Found")

    async def _complete(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, body: bytes
    ) -> bytes:
        """Serve a completion; returns what is left to send, a refusal or nothing."""
        served, fault = self._settings.args["model"], self._settings.fault
        try:
            request = json.loads(body)
            if request.get("model", served) != served:
                return _refusal(404, f"The model `{request['model']}` does not exist.")
            completion = _Completion(request, name, served)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return _refusal(400, f"{type(error).__name__}: {error}")
        self._completions += 1
        number, output = self._completions, completion.output_tokens
        if self._engine.dead or (fault == "refuse_requests" and number % 4 == 0):
            return _refusal(503, "EngineCore encountered an issue.")
        if fault == "short_outputs" and number % 5 == 0 and output > 2:
            output, completion.reason = output // 3, "stop"

        def sink(count: int, finished: bool) -> bool:
            gone = reader.at_eof() or writer.is_closing()
            if not gone:
                writer.write(completion.take(count, finished))
            if gone or finished:
                completion.done.set()
            return not gone

        try:
            self._engine.add(f"{name}-{number}", completion.prompt_tokens, output, sink)
        except SchedulingError as error:
            return _refusal(400, str(error))
        await completion.done.wait()
        self._finished += 1
        if fault == "die_mid_bench" and self._finished == DIE_AFTER_REQUESTS:
            self._engine.dead = True
            self._engine.log.say("core-died")
            await asyncio.sleep(max(5.0 / self._settings.speed, 0.3))
            self._leave()
        return b""


async def _run(settings: ServeSettings) -> None:
    """The server's life. It ends with the process, without waiting for streams that are cut off."""
    engine, loop = Engine(settings), asyncio.get_running_loop()

    def leave(status: int = 0, last_words: str = "", **values: str) -> None:
        if last_words:
            engine.log.say(last_words, **values)
        engine.steps.close()
        os._exit(status)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave, 0, "stop")
    listener = socket.socket()  # bound from now on, listening only after the start
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.args["host"], settings.args["port"]))
    except OSError as error:
        leave(1, "bind-failed", error=str(error))
    for phase, seconds in engine.log.phases.items():
        await asyncio.sleep(seconds)
        if phase == "capture" and settings.fault == "hang_in_capture":
            await asyncio.Event().wait()
        if phase == settings.failing_phase:
            leave(1, f"{phase}-failed")
        engine.log.say(phase)
    _listening = await asyncio.start_server(Server(engine, leave).serve, sock=listener)
    engine.log.say("listening")
    await asyncio.gather(engine.run(), engine.flush())  # until stopped; a mistake ends the process


def serve(argv: list[str]) -> None:
    """Run the server until SIGTERM (exit 0), an error at start (1) or a fault. A bad flag exits with 2."""
    settings = parse_serve(argv)
    if settings.fault == "leave_orphan":
        silent = subprocess.DEVNULL
        subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=silent, stderr=silent)
    asyncio.run(_run(settings))
