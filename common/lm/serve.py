"""Models behind OpenAI-compatible URLs: the one client for engines, judges, generators and evaluated policies.

What a server says is data of any shape. Whatever is no reply in the API's form is a fault, with the server's own words
in one line; waiting has an end (`LIMITS`), and whoever waits is told what for.
"""

import asyncio
import functools
import json
import math
import os
import re
import sys
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from common.errors import Blocked, EnvFault, TooManyFaults, UsageError
from common.lm import parallel
from common.lm.origin import without_secrets

MOST_BYTES = 32 << 20  # of a reply; 2,048 tokens with their log-probs have less than 1 MB
MOST_WORDS = 200  # characters of a reply in a message
LONGEST_PAUSE = 30.0  # s between two tries
BUSY = {408, 409, 425, 429, 500, 502, 503, 504, 529}  # asked again after a pause
TRIES = 3  # of a request that fails while the server answers others
REFUSED = {400, 413, 422}  # the same request is refused again
REPLY_TOKENS = 1024  # of one reply of a generator: a weak model may write on for ever


@dataclass
class Limits:
    """In seconds, of this process. `reply`: --reply-timeout, of one whole reply. `episode`: --episode-timeout.
    `patience`: how long a server may be gone or refuse all. `start`: the same of a run's first questions. `note`:
    between two lines that say what is waited for. `pause`: before the second try; each further one is twice as long."""

    reply: float = 300.0
    episode: float = math.inf
    patience: float = 300.0
    start: float = 1.0
    note: float = 30.0
    pause: float = 0.5


LIMITS = Limits()


def set_limits(args) -> None:
    """Take --reply-timeout and --episode-timeout, in every process that asks or plays. Raises UsageError where they
    make no sense."""
    if not args.reply_timeout > 0:
        raise UsageError(f"--reply-timeout must be above 0, and is {args.reply_timeout:g}")
    if not args.episode_timeout >= 0:
        raise UsageError(f"--episode-timeout must not be negative, and is {args.episode_timeout:g}")
    LIMITS.reply, LIMITS.episode = args.reply_timeout, args.episode_timeout or math.inf


def say(line: str) -> None:
    """Tell who waits."""
    print(without_secrets(line), file=sys.stderr, flush=True)


def words(text: str) -> str:
    """The beginning of what a server says, as one line without control characters."""
    text = text[: 10 * MOST_WORDS]
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:MOST_WORDS]


class Server:
    """A model server at `url` (`http://host:port/v1`). Faults are of the class `kind` and call it `who`."""

    def __init__(self, url: str, who: str, kind: type[EnvFault] = EnvFault):
        self.url, self.who, self.kind = url.rstrip("/"), who, kind
        self.clients = weakref.WeakKeyDictionary()  # by event loop: connections belong to one
        self.heard = self.told = -math.inf  # when the server last answered, and when that it does not was said
        self.away = self.failed = None  # since when it has answered nothing, and its last failure
        self.trouble = ""

    async def ask(
        self, path: str, body: dict | None = None, read: Callable | None = lambda reply: reply, patience=None
    ) -> Any:
        """`read(reply)` of the JSON that the server answers (without `read` its text does not matter): it may raise
        what a wrong shape raises. A server that is busy or gone is asked again for `patience` seconds.

        Raises `kind` (Blocked in the place of EnvFault where the request is refused), with the HTTP status as `status`
        (None: no reply); TooManyFaults where it answered nobody for so long: the run stops, and can go on.
        """
        begun, pause, tries = time.monotonic(), LIMITS.pause, 0
        patience = LIMITS.patience if patience is None else patience
        telling = asyncio.create_task(self._tell(begun))
        try:
            while True:
                tries += 1
                status, again, later, said = await self._once(path, body)
                if status is not None and status not in BUSY:
                    self.heard, self.away, self.trouble = time.monotonic(), None, ""
                    return self._read(status, said, read)
                self.trouble = said
                wait, now = max(pause, later), time.monotonic()
                in_vain = tries >= TRIES and status != 429 and self.heard > begun  # others are answered
                if not again or in_vain or now + wait > begun + patience:
                    raise self._lost(status, said, begun, now, patience, wait if again else 0.0, later)
                await asyncio.sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            telling.cancel()

    async def chat(self, model: str, messages: list, read: Callable | None = None, patience=None, **settings) -> Any:
        """What the model says to a chat (`read(reply)` in its place). Raises as `ask`."""
        body = {"model": model, "messages": messages, **settings}
        return await self.ask("/chat/completions", body, read or text_of, patience)

    async def models(self, patience=None) -> list[dict]:
        """What is served, each with an `id`."""
        return await self.ask("/models", read=_model_list, patience=patience)

    async def close(self) -> None:
        """Close this event loop's connections."""
        client = self.clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _client(self):
        import httpx

        loop = asyncio.get_running_loop()
        if loop not in self.clients:
            limits = httpx.Limits(max_connections=1000, max_keepalive_connections=100)
            timeout = httpx.Timeout(None, connect=30.0)  # the whole reply's is ours: bytes that drip reset httpx's
            options = {"timeout": timeout, "limits": limits, "follow_redirects": True}
            self.clients[loop] = httpx.AsyncClient(verify=_certificates(), **options)
        return self.clients[loop]

    async def _once(self, path, body):
        """One try: (the status, None without a reply; whether to try again; the pause that is asked for; what was said,
        in words for all but status 200)."""
        import httpx

        client = self._client()
        try:
            async with asyncio.timeout(LIMITS.reply):
                status, later, data = await self._send(client, path, body)
        except TimeoutError:
            return None, False, 0.0, f"timed out: no whole reply within {LIMITS.reply:g} s (--reply-timeout)"
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL, ValueError) as error:
            raise self._fault(words(f"{error}") or type(error).__name__) from error  # of the URL or the key
        except (httpx.TooManyRedirects, httpx.DecodingError) as error:
            return 200, False, 0.0, words(f"{error}").encode()
        except httpx.HTTPError as error:
            return None, True, 0.0, f"Connection error: {words(str(error)) or type(error).__name__}"
        if status == 200:
            inner = _inner_status(data)
            return (inner, True, later, f"{inner}: {_error_words(data)}") if inner in BUSY else (200, False, 0.0, data)
        return status, status in BUSY, later, f"{status}: {_error_words(data)}"

    async def _send(self, client, path, body):
        """(status, the seconds of Retry-After, the body's bytes; a body that is too long ends at MOST_BYTES)."""
        headers = {"authorization": f"Bearer {api_key()}", "accept-encoding": "identity", "accept": "application/json"}
        content = None
        if body is not None:
            headers["content-type"] = "application/json"
            content = json.dumps(body, ensure_ascii=False).encode(errors="replace")  # half emoji of pages
        method, data = "GET" if body is None else "POST", bytearray()
        async with client.stream(method, self.url + path, content=content, headers=headers) as answer:
            async for part in answer.aiter_bytes():
                data += part
                if len(data) > MOST_BYTES:
                    data = f"a reply of more than {MOST_BYTES >> 20} MB: ".encode() + data[:MOST_WORDS]
                    break
            return answer.status_code, _seconds(answer.headers.get("retry-after", "")), bytes(data)

    def _read(self, status, said, read):
        if status != 200:
            raise self._fault(said, status)
        if read is None:
            return None
        try:
            reply = json.loads(said)
            if isinstance(reply, dict) and reply.get("error"):
                raise ValueError
            return read(reply)
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            raise self._fault(f"no reply in the API's form: {_error_words(said)}", status) from None

    def _fault(self, said, status=None):
        kind = Blocked if status in REFUSED and self.kind is EnvFault else self.kind
        fault = kind(f"{self.who}: {said}")
        fault.status = status
        return fault

    def _lost(self, status, said, begun, now, patience, wait, later):
        """The exception for a request that got no answer."""
        if self.away is None or begun - self.failed > patience:  # nobody asked in between
            self.away = begun
        self.failed = now
        if later > patience:
            said += f" (asks to wait {later:.0f} s)"
        if self.heard > begun or now - self.away + wait < patience:
            return self._fault(said, status)
        return TooManyFaults(f"{self.who}: {said} (nothing else for {now - self.away:.0f} s)")

    async def _tell(self, begun):
        """Say every half minute what is waited for, while the server answers nobody."""
        while True:
            await asyncio.sleep(LIMITS.note)
            now = time.monotonic()
            silent = now - max(self.heard, begun)
            if min(silent, now - self.told) >= 0.9 * LIMITS.note:
                self.told = now
                say(f"waiting for {self.who}: no reply for {silent:.0f} s{'; ' * bool(self.trouble)}{self.trouble}")


@functools.cache
def _certificates():
    """Read once: that takes longer than a request."""
    import httpx

    return httpx.create_ssl_context()


def _seconds(text):
    """Of a Retry-After header, which may be a date: those are left to the usual pauses."""
    return float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else 0.0


def _json(data):
    """None for what is none, or too much to look through."""
    try:
        return json.loads(data) if len(data) < MOST_BYTES else None
    except (ValueError, RecursionError):
        return None


def _inner_status(data):
    """The status that a gateway gives for an error within a 200, else None."""
    reply = _json(data) if b'"error"' in data[:1000] else None
    error = reply.get("error") if isinstance(reply, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) else None


def _error_words(data):
    """What an error's body says, as far as it is one of the forms that servers use."""
    found = _json(data)
    for name in ("error", "detail", "message"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    if not isinstance(found, str):
        found = data[: 10 * MOST_WORDS].decode(errors="replace")
    return words(found) or "an empty reply"


def api_key() -> str:
    """The key for servers by URL, from OPENAI_API_KEY; a server of one's own wants none."""
    return os.environ.get("OPENAI_API_KEY", "none")


def run(server: Server, question: Coroutine) -> Any:
    """What a coroutine about `server` gives, for callers that are none."""

    async def closed():
        try:
            return await question
        finally:
            await server.close()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(closed())
    with ThreadPoolExecutor(1) as pool:  # an actor's constructor
        return pool.submit(asyncio.run, closed()).result()


def at_start(server: Server, question: Coroutine) -> Any:
    """The same of a run's first question. Raises UsageError for every fault: one line."""
    try:
        return run(server, question)
    except (EnvFault, TooManyFaults) as error:
        raise UsageError(str(error)) from error


def served_model(url: str, flag: str, only: bool = False) -> str:
    """The model that is served at `url`, the first of several; with `only` there must be one. Raises UsageError, naming
    the command line's `flag`."""
    served = _served_models(url, flag)
    if only and len(served) > 1:
        raise UsageError(f"{flag} {url}: it serves {len(served)} models: name one with {flag}-model")
    return served[0]["id"]


def served_context(url: str, flag: str) -> float:
    """Tokens that a prompt and its answer have together at most at the first model that is served at `url`: infinite
    where the server does not say it (vLLM and SGLang do). Raises UsageError as `served_model` does."""
    length = _served_models(url, flag)[0].get("max_model_len")
    return length if isinstance(length, int) and not isinstance(length, bool) else math.inf


def _served_models(url, flag):
    server = Server(url, f"{flag} {url}: no model is served there")
    try:
        served = at_start(server, server.models(LIMITS.start))
    except UsageError as error:
        hint = "" if url.rstrip("/").endswith("/v1") else "; such a URL usually ends with /v1"
        raise UsageError(f"{error}{hint}") from error
    if not served:
        raise UsageError(server.who)
    return served


def _model_list(reply):
    if not all(isinstance(model["id"], str) for model in reply["data"]):
        raise ValueError
    return reply["data"]


def text_of(reply: Any) -> str:
    """What a chat completion says, for `Server.ask`."""
    said = reply["choices"][0]["message"]["content"] or ""
    if not isinstance(said, str):
        raise ValueError
    return clean(said)


def clean(text: str) -> str:
    """Without half characters, which no tokenizer or file takes."""
    return text.encode(errors="replace").decode()


def ask(url: str, model: str, prompt: str, flag: str) -> str:
    """One reply of a model at `url`, of several processes the first one asks. Errors as of `reply`, in all of them."""
    said = None
    if parallel.is_main():
        try:
            said = reply(url, model, prompt, flag)
        except (UsageError, TooManyFaults) as error:
            said = error
    said = parallel.broadcast(said)
    if isinstance(said, Exception):
        raise said
    return said


def reply(url: str, model: str, prompt: str, flag: str, patience: float | None = None) -> str:
    """One reply of a model at `url`. Raises UsageError, naming the command line's `flag`, where there is none;
    TooManyFaults where the server is gone for `patience` seconds (with LIMITS.start a UsageError, too)."""
    server, turns = Server(url, f"{flag} {url}"), [{"role": "user", "content": prompt}]
    question = server.chat(model, turns, patience=patience, temperature=1.0, max_tokens=REPLY_TOKENS)
    try:
        return at_start(server, question) if patience is not None else run(server, question)
    except EnvFault as error:
        raise UsageError(str(error)) from error
