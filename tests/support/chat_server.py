"""A real OpenAI-compatible HTTP server in a thread: it answers what a handler says, misbehaves on demand, and counts.

with serve(lambda received: answer({"caption": "a cup"})) as server:
    client = ChatClient(Endpoint(base_url=server.url, model="m"))
A handler is called with each request, or is a list whose entries are used up one a request (the last one repeats).
"""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from numpy.typing import NDArray

from editfoundry.core.images import decode_jpeg


@dataclass(frozen=True)
class Received:
    """A request as it arrived."""

    number: int
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def system(self) -> str:
        return "".join(message["content"] for message in self.body["messages"] if message["role"] == "system")

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Content parts of the user's turn."""
        content: list[dict[str, Any]] = self.body["messages"][-1]["content"]
        return content

    @property
    def text(self) -> str:
        """The texts of the user's turn, one a line."""
        return "\n".join(part["text"] for part in self.parts if part["type"] == "text")

    @property
    def images(self) -> list[NDArray[np.uint8]]:
        """The images of the user's turn, decoded."""
        urls = [part["image_url"]["url"] for part in self.parts if part["type"] == "image_url"]
        return [decode_jpeg(base64.b64decode(url.removeprefix("data:image/jpeg;base64,"))) for url in urls]

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema asked for, if any."""
        form = self.body.get("response_format", {}).get("json_schema")
        return form["schema"] if form else None


@dataclass(frozen=True)
class Response:
    """What the server does. billed: prompt and completion tokens it counts. delay_s: waits first. keep: sends only so

    many bytes of the body and closes. drip_s: waits so long after each byte, without end. drop: closes at once.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    billed: tuple[int, int] = (0, 0)
    delay_s: float = 0.0
    keep: int | None = None
    drip_s: float = 0.0
    drop: bool = False


Handler = Callable[[Received], Response]


def answer(
    content: Any,
    *,
    prompt_tokens: int = 10,
    completion_tokens: int = 5,
    finish: str = "stop",
    refusal: str | None = None,
    logprobs: Sequence[tuple[str, float]] | None = None,
    alternatives: Sequence[Mapping[str, float]] | None = None,
    model: Any = "m-2026",
    **how: Any,
) -> Response:
    """A chat completion whose message is `content`: a text as it is, anything else as JSON.

    logprobs: of each token. alternatives: at each token's place, log-probability by token.
    """
    text = content if isinstance(content, str) or content is None else json.dumps(content)
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": finish,
        "message": {"role": "assistant", "content": text, "refusal": refusal},
    }
    if logprobs is not None:
        entries: list[dict[str, Any]] = [{"token": token, "logprob": value} for token, value in logprobs]
        for entry, place in zip(entries, alternatives or (), strict=bool(alternatives)):
            entry["top_logprobs"] = [{"token": token, "logprob": value} for token, value in place.items()]
        choice["logprobs"] = {"content": entries}
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    body = {"id": "chatcmpl-1", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage}
    return Response(json.dumps(body).encode(), billed=(prompt_tokens, completion_tokens), **how)


def failure(status: int, message: str = "try later", *, code: Any = None, **headers: str) -> Response:
    """An HTTP error as OpenAI words it; headers with underscores for hyphens: `Retry_After="1"`."""
    body = {"error": {"message": message, "type": "error", "code": code}}
    return Response(json.dumps(body).encode(), status, {name.replace("_", "-"): text for name, text in headers.items()})


class ChatServer:
    """The running server. `requests` in the order they came; `billed`: prompt and completion tokens; `peak`: most at

    once.
    """

    def __init__(self, handler: Handler | Sequence[Response]) -> None:
        self.handler = handler
        self.requests: list[Received] = []
        self.responses: list[Response] = []
        self.peak = 0
        self.closing = threading.Event()
        self._active = 0
        self._lock = threading.Lock()
        self._http = _Server(("127.0.0.1", 0), _Connection)
        self._http.chat = self

    @property
    def url(self) -> str:
        """What an Endpoint takes as its base_url."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def billed(self) -> tuple[int, int]:
        """Prompt and completion tokens of all responses, counted even if they never arrived."""
        pairs = [response.billed for response in self.responses]
        return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)

    @contextmanager
    def handling(self, path: str, headers: Mapping[str, str], body: bytes) -> Iterator[Response]:
        with self._lock:
            received = Received(len(self.requests), path, headers, json.loads(body))
            self.requests.append(received)
            self._active += 1
            self.peak = max(self.peak, self._active)
        try:
            response = self._respond(received)
            with self._lock:
                self.responses.append(response)
            yield response
        finally:
            with self._lock:
                self._active -= 1

    def _respond(self, received: Received) -> Response:
        if callable(self.handler):
            return self.handler(received)
        return self.handler[min(received.number, len(self.handler) - 1)]

    def run(self) -> None:
        self._http.serve_forever(poll_interval=0.02)

    def close(self) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    chat: ChatServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up while it is answered is what some tests are about."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.chat.handling(self.path, dict(self.headers.items()), body) as response:
            self._send(response)

    def _send(self, response: Response) -> None:
        if response.delay_s:
            self.server.chat.closing.wait(response.delay_s)
        if response.drop:
            self.close_connection = True
            return
        length = str(1 << 30 if response.drip_s else len(response.body))
        self.send_response(response.status)
        for name, value in {"Content-Type": "application/json", "Content-Length": length, **response.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        while response.drip_s and not self.server.chat.closing.is_set():
            self.wfile.write(b" ")
            time.sleep(response.drip_s)
        self.wfile.write(response.body if response.keep is None else response.body[: response.keep])
        self.close_connection = response.keep is not None or bool(response.drip_s)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


@contextmanager
def serve(handler: Handler | Sequence[Response]) -> Iterator[ChatServer]:
    """A server for as long as the block runs."""
    server = ChatServer(handler)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()
