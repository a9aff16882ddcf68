"""Models behind OpenAI-compatible URLs: the key, what is served, one question. Engines and judges build on it."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from common.errors import UsageError
from common.lm import parallel

if TYPE_CHECKING:
    import openai


def api_key() -> str:
    """The key for servers by URL, from OPENAI_API_KEY; a server of one's own wants none."""
    return os.environ.get("OPENAI_API_KEY", "none")


def client(url: str, seconds: float = 60, retries: int = 3) -> openai.OpenAI:
    """A client that waits, with the key."""
    import openai

    return openai.OpenAI(base_url=url, api_key=api_key(), timeout=seconds, max_retries=retries)


def async_client(url: str, seconds: float = 600, retries: int = 4) -> openai.AsyncOpenAI:
    """A client for coroutines, with the key."""
    import openai

    return openai.AsyncOpenAI(base_url=url, api_key=api_key(), timeout=seconds, max_retries=retries)


def served_model(url: str, flag: str, only: bool = False) -> str:
    """The model that is served at `url`, the first of several; with `only` there must be one. Raises UsageError, naming
    the command line's `flag`."""
    served = _served_models(url, flag)
    if only and len(served) > 1:
        raise UsageError(f"{flag} {url}: it serves {len(served)} models: name one with {flag}-model")
    return served[0].id


def served_context(url: str, flag: str) -> float:
    """Tokens that a prompt and its answer have together at most at the first model that is served at `url`: infinite
    where the server does not say it (vLLM and SGLang do). Raises UsageError as `served_model` does."""
    length = getattr(_served_models(url, flag)[0], "max_model_len", None)
    return length if isinstance(length, int) else math.inf


def _served_models(url, flag):
    import openai

    try:
        served = list(client(url, retries=1).models.list())
        [model.id for model in served]
    except (openai.OpenAIError, AttributeError, TypeError) as error:  # a page, or no list
        hint = "" if url.rstrip("/").endswith("/v1") else "; such a URL usually ends with /v1"
        raise UsageError(f"{flag} {url}: no model is served there ({error}){hint}") from error
    if not served:
        raise UsageError(f"{flag} {url}: no model is served there")
    return served


def text_of(reply: object) -> str:
    """What a chat completion says. Raises ValueError where it is none: servers answer 200 with an error, without
    choices, or with a page."""
    try:
        said = reply.choices[0].message.content or ""
    except (AttributeError, IndexError, TypeError):
        error = getattr(reply, "error", None)
        raise ValueError(f"no reply in the API's form: {' '.join(str(error or reply).split())[:200]}") from None
    if not isinstance(said, str):
        raise ValueError(f"no text in the reply: {str(said)[:200]}")
    return said


def ask(url: str, model: str, prompt: str, flag: str) -> str:
    """One reply of a model at `url`, of several processes the first one asks. Errors as of `reply`, in all of them."""
    said = None
    if parallel.is_main():
        try:
            said = reply(url, model, prompt, flag)
        except UsageError as error:
            said = error
    said = parallel.broadcast(said)
    if isinstance(said, UsageError):
        raise said
    return said


REPLY_TOKENS = 1024  # of one reply: a weak model may write on for ever


def reply(url: str, model: str, prompt: str, flag: str) -> str:
    """One reply of a model at `url`. Raises UsageError, naming the command line's `flag`, where there is none."""
    import openai

    settings = {"temperature": 1.0, "max_tokens": REPLY_TOKENS, "messages": [{"role": "user", "content": prompt}]}
    try:
        return text_of(client(url, retries=2).chat.completions.create(model=model, **settings))
    except (openai.OpenAIError, ValueError) as error:
        raise UsageError(f"{flag} {url}: {error}") from error
