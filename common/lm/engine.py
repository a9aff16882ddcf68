"""A generation server by URL: vLLM's OpenAI-compatible API, tokens in, tokens out (or a chat with pictures in), LoRA
adapters loaded at run time.

docs/gpu.md says how to start one. The log-probs at sampling are the server's own; the scripts log how far they are from
ours.
"""

import asyncio
import time
from pathlib import Path

from common.errors import EnvFault, UsageError
from common.lm import llm, serve
from common.screen import message_part


class Engine:
    """A client of the server at `url` (`http://host:port/v1`). `model` is the name of what it samples from: the served
    base model at first, then the adapter that was loaded last."""

    def __init__(self, url, stop_ids):
        self.url, self.stop_ids, self.adapters = url, list(stop_ids), []
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
        try:
            return await endpoint.create(model=self.model, **settings, extra_body=extra)
        except openai.OpenAIError as error:
            raise EnvFault(f"the engine at {self.url}: {error}") from error

    def _completion(self, choice, logprobs, version):
        ids = getattr(choice, "token_ids", None)
        if ids is None or logprobs is None or len(ids) != len(logprobs):
            raise UsageError(f"--engine {self.url}: it does not return token ids with log-probs (vLLM 0.10.2 or later)")
        return llm.Completion(list(ids), list(logprobs), version)

    def load_adapter(self, folder, name, kept=0):
        """From now on sample from the LoRA adapter in `folder`, a path that the server can read. As many of the earlier
        ones as `kept` says stay loaded, for requests that are on their way."""
        import openai

        body = {"lora_name": name, "lora_path": str(Path(folder).resolve())}
        try:
            there = [model.id for model in self.setup.models.list().data]
            if name in there:  # of a run that was killed and resumed
                self.setup.post("/unload_lora_adapter", body={"lora_name": name}, cast_to=str)
            self.setup.post("/load_lora_adapter", body=body, cast_to=str)
            self.adapters = [*(earlier for earlier in self.adapters if earlier != name), name]
            while len(self.adapters) > kept + 1:
                self.setup.post("/unload_lora_adapter", body={"lora_name": self.adapters.pop(0)}, cast_to=str)
        except openai.OpenAIError as error:
            raise UsageError(
                f"--engine {self.url}: it does not load adapters ({error}); start it with --enable-lora, a "
                "--max-lora-rank that is large enough and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
            ) from error
        self.model = name


def _part(part, pictures):
    """A part of a message for the API: a picture's place becomes the picture."""
    return message_part(next(pictures)) if part["type"] == "image" else part


class EnginePolicy:
    """What `rollout.play` asks for an action: every prompt is a request, the server makes the batches."""

    def __init__(self, engine, temperature, max_new_tokens, version):
        self.engine, self.settings = engine, (temperature, max_new_tokens, version)
        self.tokens = 0

    def enter(self):
        """An episode begins: nothing to do."""

    def leave(self):
        """An episode ends: nothing to do."""

    async def __call__(self, prompt_ids, seed):
        """One prompt's Completion."""
        completion = await self.engine.complete(prompt_ids, seed, *self.settings)
        self.tokens += len(completion.ids)
        return completion


class EngineServer:
    """A Ray actor with the methods of grpo_async.py's PolicyServer, of whose `args` it has --engine, --model-id,
    --max-new-tokens and --max-tokens: the generation server gives the answers, makes the batches and loads each
    version's adapter. Screenshots come from the actor `store`."""

    def __init__(self, args, store):
        processor = llm.load_processor(llm.find_model(args.model_id))
        self.image_token = llm.image_token(processor)
        stops = {processor.tokenizer.eos_token_id, llm.end_of_turn(processor.tokenizer)}
        self.engine, self.args, self.store = Engine(args.engine, sorted(stops)), args, store
        self.version, self.tokens, self.busy, self.asked = -1, 0, 0.0, 0
        self.given, self.lock = asyncio.Event(), asyncio.Lock()  # whether it has weights; held as they come

    @staticmethod
    def weights_of(model, folder):
        """What `set_weights` takes: the adapter's folder."""
        model.save_pretrained(folder)
        return str(folder)

    async def without_weights(self):
        """Returns where this server has no weights yet: it may take a lost one's place, which Ray asks this again."""
        if self.given.is_set():
            await asyncio.Event().wait()  # until it is lost

    async def complete(self, prompt, seed, temperature, version=None):
        """The Completion of an llm.Prompt with its chat, whose pictures are names of the store's; its token ids are
        what training takes it for. Raises UsageError where the server reads it in another way."""
        await self.given.wait()
        pictures, begun = await self.store.get.remote(prompt.images), time.monotonic()
        if None in pictures:
            raise EnvFault("a screenshot is lost")
        self.asked += 1
        try:
            longest = min(self.args.max_new_tokens, self.args.max_tokens - len(prompt))
            settings = seed, temperature, longest, self.version
            done, ids = await self.engine.complete_chat(prompt.turns, pictures, *settings)
        finally:
            self.asked -= 1
            self.busy += time.monotonic() - begun
        if self._text(ids) != self._text(prompt):
            raise UsageError(f"--engine {self.engine.url}: it reads a chat in another way than the model's processor")
        if self.image_token in done.ids:  # without a picture it breaks the next forward pass; our log-prob is -inf
            raise EnvFault(f"the engine at {self.engine.url} sampled an image token")
        self.tokens += len(done.ids)
        return done

    def _text(self, ids):
        """Token ids without images: a server may give one token for each, or one for each of its patches."""
        return [token for token in ids if token != self.image_token]

    async def set_weights(self, folder, version):
        """From now on sample from the adapter in a folder. Answers on their way end with the one they began with."""
        async with self.lock:
            if version > self.version:  # else it comes late
                await asyncio.to_thread(self.engine.load_adapter, folder, f"cleangui-{version}", kept=1)
                self.version = version
        self.given.set()

    def statistics(self):
        """Tokens sampled and seconds spent on it so far, and how many prompts are answered now."""
        return {"tokens": self.tokens, "busy": self.busy, "asked": self.asked}
