"""A model behind an OpenAI-compatible URL that compares answers by their meaning, as WebArena's fuzzy matches ask for.

It says whether an answer means the same as the reference, and whether a reported reason why a task cannot be done is
the true one. Verdicts are read as the original reads its judge's: by the words it must use. The prompts are our own.
"""

from common.errors import EnvFault, UsageError
from common.lm import serve

SECONDS, RETRIES = 120, 4

SAME_ANSWER = """Grade an answer to a question against the reference answer. What counts is the meaning, not the words:
an answer in other words, in another format or with more detail is correct as long as it says what the reference says
and nothing that contradicts it. N/A, wherever it occurs, means "this cannot be done".
Question: {question}
Reference answer: {reference}
Answer to grade: {answer}
Reply with one of these and nothing else: correct, incorrect, partially correct."""

SAME_REASON = """The task below cannot be done; the actual reason is given. Somebody tried it and reported why it could
not be done. Decide whether the report agrees with the actual reason, be it only implicitly.
Task: {question}
Actual reason: {reference}
Reported reason: {answer}
Reply with one word: same, if it agrees, or different."""


async def connect(variable, url, model, seconds, retries):
    """(client, model) for a judge at `url`; with an empty name the one model that is served there. The key is read from
    OPENAI_API_KEY. Raises UsageError, one line that names the `variable`."""
    import openai

    client = serve.async_client(url, seconds, retries)
    try:
        served = [model] if model else [model.id async for model in client.models.list()]
    except openai.OpenAIError as error:
        raise UsageError(f"{variable}={url}: {error}") from None
    if len(served) != 1:
        raise UsageError(f"{variable}={url}: {len(served)} models there, name one (_MODEL)")
    return client, served[0]


class Judge:
    """`model` at `url`; with an empty name the one model that is served there. The key is read from OPENAI_API_KEY."""

    def __init__(self, url, model=""):
        self.url, self.model, self.client = url, model, None

    async def start(self):
        """Connect, and put a question of which the answer is known. Raises UsageError, one line, where that fails."""
        if self.client is not None:
            return
        self.client, self.model = await connect("WEBARENA_JUDGE", self.url, self.model, SECONDS, RETRIES)
        try:
            sound = await self.same_answer("What is 2 + 3?", "5", "It is 5.")
        except EnvFault as error:
            self.client = None
            raise UsageError(f"WEBARENA_JUDGE={self.url}: {error}") from None
        if not sound:
            raise UsageError(f"WEBARENA_JUDGE={self.url}: {self.model} calls 5 a wrong answer to 2 + 3")

    async def same_answer(self, question, reference, answer):
        """Whether the answer means the same as the reference. Raises EnvFault where there is no verdict."""
        return await self._ask(SAME_ANSWER, question, reference, answer, "correct", ("incorrect", "partially correct"))

    async def same_reason(self, question, reason, answer):
        """Whether the answer says, for the same reason, that the task cannot be done. Raises EnvFault as above."""
        return await self._ask(SAME_REASON, question, reason, answer, "same", ("different",))

    async def _ask(self, prompt, question, reference, answer, yes, no):
        import openai

        text = prompt.format(question=question, reference=reference, answer=answer)
        turns = [{"role": "user", "content": text}]
        try:
            reply = await self.client.chat.completions.create(model=self.model, temperature=0.0, messages=turns)
        except openai.OpenAIError as error:
            raise EnvFault(f"the judge at {self.url}: {error}") from None
        said = (reply.choices[0].message.content or "").lower()
        if any(word in said for word in no):
            return False
        if yes not in said:
            raise EnvFault(f"the judge at {self.url} says neither {yes!r} nor {no[0]!r}: {said[:80]!r}")
        return True
