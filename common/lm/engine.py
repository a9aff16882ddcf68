"""A generation server by URL: vLLM's OpenAI-compatible API, tokens in, tokens out (or a chat with pictures in), LoRA
adapters loaded at run time.

docs/gpu.md says how to start one. The log-probs at sampling are the server's own; the scripts log how far they are from
ours.
"""

import asyncio
import contextlib
import threading
import time
from pathlib import Path

from common.errors import Blocked, EnvFault, UsageError
from common.lm import llm, serve
from common.screen import message_part


class Engine:
    """A client of the server at `url` (`http://host:port/v1`). `model` is the name of what it samples from: the served
    base model at first, then the adapter that was loaded last. `adapters`: the folders of those that are loaded."""

    def __init__(self, url, stop_ids):
        self.url, self.stop_ids, self.adapters, self.lock = url, list(stop_ids), {}, threading.Lock()
        self.client, self.setup = serve.async_client(url), serve.client(url, retries=2)
        self.model = serve.served_model(url, "--engine")

    async def complete(self, prompt_ids, seed, temperature, max_new_tokens, version):
        """One prompt's Completion. Raises EnvFault where the server is lost."""
        settings = {"seed": seed, "temperature": temperature, "max_tokens": max_new_tokens}
        settings |= {"prompt": list(prompt_ids), "logprobs": 0}  # of the sampled token alone
        choice = (await self._create(self.client.completions, settings)).choices[0]
        return self._completion(choice, choice.logprobs and choice.logprobs.token_logprobs, version)

    async def complete_chat(self, turns, pictures, seed, temperature, max_new_tokens, version):
        """The same of a chat with pictures, as chat templates take it: `turns` are its messages, `pictures` the files'
        bytes in the order of their places. Returns (Completion, the prompt's token ids as the server made them)."""
        left = iter(pictures)
        messages = [{**turn, "content": [_part(part, left) for part in turn["content"]]} for turn in turns]
        settings = {"seed": seed, "temperature": temperature, "max_tokens": max_new_tokens}
        settings |= {"messages": messages, "logprobs": True, "top_logprobs": 0}
        reply = await self._create(self.client.chat.completions, settings)
        choice = reply.choices[0]
        logprobs = choice.logprobs and [token.logprob for token in choice.logprobs.content]
        return self._completion(choice, logprobs, version), list(getattr(reply, "prompt_token_ids", None) or [])

    async def _create(self, endpoint, settings):
        """The reply. Raises EnvFault where the server is lost."""
        import openai

        extra = {
            "return_token_ids": True,
            "stop_token_ids": self.stop_ids,
            # a model's generation config must not change what is sampled from
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }
        model = self.model
        try:
            try:
                return await endpoint.create(model=model, **settings, extra_body=extra)
            except openai.NotFoundError:  # it was started anew, without our adapter
                if not await asyncio.to_thread(self._load_again, model):
                    raise
                return await endpoint.create(model=model, **settings, extra_body=extra)
        except openai.OpenAIError as error:
            fault = Blocked if isinstance(error, openai.BadRequestError) else EnvFault
            raise fault(f"the engine at {self.url}: {error}") from error

    def _completion(self, choice, logprobs, version):
        ids = getattr(choice, "token_ids", None)
        if ids is None or logprobs is None or len(ids) != len(logprobs):
            raise UsageError(f"--engine {self.url}: it does not return token ids with log-probs (vLLM 0.10.2 or later)")
        return llm.Completion(list(ids), list(logprobs), version)

    def load_adapter(self, folder, name, kept=0):
        """From now on sample from the LoRA adapter in `folder`, a path that the server can read. As many of the earlier
        ones as `kept` says stay loaded, for requests that are on their way. Raises EnvFault where the server is lost,
        UsageError where it refuses."""
        import openai

        try:
            with self.lock:
                there = self._served()
                if name in there:  # of a run that was killed and resumed
                    self._unload(name)
                self._load(name, folder)
                self.adapters = {earlier: path for earlier, path in self.adapters.items() if earlier != name}
                self.adapters[name] = folder
                while len(self.adapters) > kept + 1:
                    oldest = next(iter(self.adapters))
                    del self.adapters[oldest]
                    if oldest in there:  # else it was started anew
                        self._unload(oldest)
        except openai.APIConnectionError as error:  # time-outs are such, too
            raise EnvFault(f"the engine at {self.url} did not load an adapter: {error}") from error
        except openai.OpenAIError as error:
            raise UsageError(
                f"--engine {self.url}: it does not load adapters ({error}); start it with --enable-lora, a "
                "--max-lora-rank that is large enough and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
            ) from error
        self.model = name

    def _load_again(self, name):
        """Load a lost adapter from its folder; whether it is there then. Several requests may miss it at once."""
        with self.lock:
            if name in self.adapters and name not in self._served():
                self._load(name, self.adapters[name])
        return name in self.adapters

    def close(self):
        """Unload what was loaded, where the server is still there."""
        import openai

        with contextlib.suppress(openai.OpenAIError), self.lock:
            for name in set(self.adapters) & self._served():
                self._unload(name)

    def _served(self):
        return {model.id for model in self.setup.models.list().data}

    def _load(self, name, folder):
        body = {"lora_name": name, "lora_path": str(Path(folder).resolve())}
        self.setup.post("/load_lora_adapter", body=body, cast_to=str)

    def _unload(self, name):
        self.setup.post("/unload_lora_adapter", body={"lora_name": name}, cast_to=str)


def _part(part, pictures):
    """A part of a message for the API: a picture's place becomes the picture."""
    return message_part(next(pictures)) if part["type"] == "image" else part


class EnginePolicy:
    """What `rollout.play` asks for an action: every prompt is a request, the server makes the batches. While half of
    the active episodes wait for it the time is the `timer`'s "generation"."""

    def __init__(self, engine, temperature, max_new_tokens, version, timer):
        self.engine, self.settings, self.timer = engine, (temperature, max_new_tokens, version), timer
        self.tokens = self.active = self.waiting = 0
        self.generation = None

    def enter(self):
        self._count(active=1)

    def leave(self):
        self._count(active=-1)

    async def __call__(self, prompt_ids, seed):
        """One prompt's Completion."""
        self._count(waiting=1)
        try:
            completion = await self.engine.complete(prompt_ids, seed, *self.settings)
        finally:
            self._count(waiting=-1)
        self.tokens += len(completion.ids)
        return completion

    def _count(self, active=0, waiting=0):
        self.active, self.waiting = self.active + active, self.waiting + waiting
        most = self.waiting > 0 and 2 * self.waiting >= self.active
        if most and self.generation is None:
            self.generation = self.timer("generation")
            self.generation.__enter__()
        elif not most and self.generation is not None:
            self.generation.__exit__(None, None, None)
            self.generation = None


class AnswerServer:
    """A Ray actor that answers prompts by the weights that it is handed; screenshots come from the actor of the name
    `store` (a handle in its place may be lost as Ray starts it anew). A child has `weights_of(model, folder)`: what it
    is handed; `load(weights, version)`; and `answer(prompt, seed, temperature, version)`: the Completion of an
    llm.Prompt. `lock` is held as weights come."""

    def __init__(self, args, store):
        import ray

        self.args, self.store, self.lock = args, ray.get_actor(store), asyncio.Lock()
        self.version, self.tokens, self.busy, self.asked = -1, 0, 0.0, 0
        self.given = asyncio.Event()  # weights

    def close(self):
        """The end of the run."""

    async def without_weights(self):
        """Returns where this server has no weights yet: it may take a lost one's place, which Ray asks this again."""
        if self.given.is_set():
            await asyncio.Event().wait()  # until it is lost

    async def complete(self, prompt, seed, temperature, version=None):
        """The Completion of an llm.Prompt whose pictures are names of the store's. With a `version` by the weights of
        that one. Raises EnvFault where a picture is lost."""
        await self.given.wait()
        pictures = await self.store.get.remote(prompt.images)
        if None in pictures:
            raise EnvFault("a screenshot is lost")
        self.asked += 1
        try:
            done = await self.answer(llm.Prompt(prompt, pictures, prompt.turns), seed, temperature, version)
        finally:
            self.asked -= 1
        self.tokens += len(done.ids)
        return done

    async def set_weights(self, weights, version):
        """Answer by these from now on, as this version."""
        async with self.lock:
            if version > self.version:  # else they come late
                await self.load(weights, version)
                self.version = version
        self.given.set()

    def statistics(self):
        """Tokens sampled and seconds spent on it so far, and how many prompts wait or are answered now."""
        return {"tokens": self.tokens, "busy": self.busy, "asked": self.asked}


class EngineServer(AnswerServer):
    """The generation server of --engine gives the answers: it makes the batches, and loads each version's adapter."""

    def __init__(self, args, store):
        super().__init__(args, store)
        processor = llm.load_processor(llm.find_model(args.model_id))
        self.image_token = llm.image_token(processor)
        stops = {processor.tokenizer.eos_token_id, llm.end_of_turn(processor.tokenizer)}
        self.engine = Engine(args.engine, sorted(stops))

    @staticmethod
    def weights_of(model, folder):
        """The adapter's folder."""
        model.save_pretrained(folder)
        return str(folder)

    async def load(self, folder, version):
        """Answers on their way end with the adapter that they began with."""
        await asyncio.to_thread(self.engine.load_adapter, folder, f"cleangui-{version}", kept=1)

    def close(self):
        self.engine.close()

    async def answer(self, prompt, seed, temperature, version):
        """Of a chat; the prompt's token ids are what training takes it for. Raises UsageError where the server reads it
        in another way."""
        longest, begun = min(self.args.max_new_tokens, self.args.max_tokens - len(prompt)), time.monotonic()
        settings = {"max_new_tokens": longest, "version": self.version}
        done, ids = await self.engine.complete_chat(prompt.turns, prompt.images, seed, temperature, **settings)
        self.busy += time.monotonic() - begun
        if self._text(ids) != self._text(prompt):
            raise UsageError(f"--engine {self.engine.url}: it reads a chat in another way than the model's processor")
        if self.image_token in done.ids:  # without a picture it breaks the next forward pass; our log-prob is -inf
            raise EnvFault(f"the engine at {self.engine.url} sampled an image token")
        return done

    def _text(self, ids):
        """Token ids without images: a server may give one token for each, or one for each of its patches."""
        return [token for token in ids if token != self.image_token]
