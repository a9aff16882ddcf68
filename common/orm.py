"""The outcome reward model: does a trajectory complete its instruction? (WebRL, section 2; the prompt is the script's.)

A language model is asked for YES or NO; the logits of the two answers are compared.
"""

import math
import random
from concurrent.futures import ThreadPoolExecutor

from common.errors import UsageError
from common.lm import parallel
from common.lm.stats import auc

JUDGE_SECONDS, JUDGE_CALLS = 60, 16  # of a served judge: for one answer, and at once
UNKNOWN = "Nobody knows how good the judge is: it judged no episode that a check knows, too"


def answer_ids(tokenizer, prompt):
    """The token ids of the two answers after this prompt (token ids): with a space where it does not end in one."""
    space = "" if tokenizer.decode(prompt[-1:])[-1:].isspace() else " "
    ids = [tokenizer.encode(space + text, add_special_tokens=False) for text in ("YES", "NO")]
    if any(len(i) != 1 for i in ids):
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in ("YES", "NO")]
    return ids[0][0], ids[1][0]


def yes_logits(net, prompts, answers):
    """(log P(YES) - log P(NO) as the next token of each prompt (token id lists) [N], the last hidden states [N, L, D]),
    with gradient. `answers`: `answer_ids`."""
    import torch

    from common.lm import llm

    hidden, lengths = llm.hidden_states(net.model, net.reader, prompts)
    last = hidden[torch.arange(len(prompts), device=hidden.device), lengths - 1]
    logits = llm.Head(net.model)(last, list(answers))
    return logits[:, 0] - logits[:, 1], hidden


def p_yes(net, prompts):
    """P(YES) / (P(YES) + P(NO)) for each prompt by a common.lm.net.Net, as a list of floats."""
    from common.lm import learn

    def score(part):
        return yes_logits(net, part, answer_ids(net.tokenizer, part[0]))[0].sigmoid()

    return learn.map_batches(score, prompts, [len(p) for p in prompts], net.tokens)


def ask_p_yes(url, prompts):
    """`p_yes` by a served ORM, for prompts as text: None for each that gets no answer, or neither YES nor NO.

    Raises UsageError where the server gives no log-probs.
    """
    if not parallel.is_main():
        return parallel.broadcast(None)
    import openai

    from common.lm import serve

    client, model = serve.client(url, JUDGE_SECONDS), serve.served_model(url, "--judge")

    def ask(prompt):
        settings = {"max_tokens": 1, "temperature": 0.0, "logprobs": 20, "extra_body": {"add_special_tokens": False}}
        try:
            (choice, *_) = client.completions.create(model=model, prompt=prompt, **settings).choices
        except (openai.OpenAIError, AttributeError, TypeError, ValueError):  # no answer, or none in the API's form
            return None
        if not isinstance(getattr(choice, "text", None), str):
            return None
        logprobs = choice.logprobs
        if not logprobs or not logprobs.top_logprobs:
            raise UsageError(f"--judge {url}: it does not return log-probs")
        said = {"YES": 0.0, "NO": 0.0}
        for token, logprob in logprobs.top_logprobs[0].items():
            if token.strip().upper() in said:
                said[token.strip().upper()] += math.exp(logprob)
        return said["YES"] / sum(said.values()) if sum(said.values()) else None

    with ThreadPoolExecutor(JUDGE_CALLS) as pool:
        return parallel.broadcast(list(pool.map(ask, prompts)))


def train(net, prompts, labels, batch_size, epochs, seed, lm_mask=None, lm_weight=0.0, schedule=None):
    """Cross-entropy of YES against NO on labelled trajectories.

    net: a common.lm.net.Net with its optimiser, whose rate is the highest; prompts: token id lists; labels: 0 or 1
    each. `lm_mask` (a list of 0/1 lists as long as the prompts) adds a language model loss on the marked tokens, a mean
    per prompt weighted `lm_weight`: what makes a tiny judge read the instruction (docs/webrl.md).
    `schedule(progress, updates=their number) -> factor` scales the learning rate. Returns the last epoch's mean loss.
    """
    import torch
    import torch.nn.functional as F

    from common.lm import learn, llm

    answers = answer_ids(net.tokenizer, prompts[0]) if prompts else (0, 0)
    rate, head = net.optimizer.param_groups[0]["lr"], llm.Head(net.model)

    def loss_sum(rows):
        """Summed loss of the prompts with these indices."""
        logit, hidden = yes_logits(net, [prompts[i] for i in rows], answers)
        target = torch.tensor([float(labels[i]) for i in rows], device=hidden.device)
        loss = F.binary_cross_entropy_with_logits(logit, target, reduction="sum")
        if not lm_weight:
            return loss
        marked = [(row, c) for row, i in enumerate(rows) for c, mark in enumerate(lm_mask[i]) if mark and c]
        if not marked:  # formats that mark no words
            return loss
        words = torch.tensor([prompts[rows[row]][c] for row, c in marked], device=hidden.device)
        share = torch.tensor([1 / sum(lm_mask[rows[row]]) for row, _ in marked], device=hidden.device)
        logits = head(hidden[[row for row, _ in marked], [c - 1 for _, c in marked]])
        return loss + lm_weight * (share * F.cross_entropy(logits, words, reduction="none")).sum()

    batches = learn.shuffled(list(range(len(prompts))), batch_size, epochs, random.Random(seed))
    count = len(batches)
    rates = [rate * (schedule(number / count, updates=count) if schedule else 1.0) for number in range(count)]

    def lengths(rows):
        return [len(prompts[i]) for i in rows]

    losses, _ = net.descend(loss_sum, batches, lengths, rates=rates, title="reward model")
    learn.set_learning_rate(net.optimizer, rate)
    return learn.mean_loss(losses[-(len(losses) // epochs) :] if epochs else [], "reward model")


def quality(scores, labels, threshold=0.5):
    """What a judge is worth: dict of accuracy, precision, recall, balanced accuracy, AUC and the base rate.

    scores: P(YES) each, a success above `threshold`; labels: the true verdicts (0 or 1). A figure that its data do not
    define is NaN.
    """
    nan = float("nan")
    positive = [s for s, y in zip(scores, labels, strict=True) if y]
    negative = [s for s, y in zip(scores, labels, strict=True) if not y]
    tp, tn = sum(s > threshold for s in positive), sum(s <= threshold for s in negative)
    fp = len(negative) - tn
    recall = tp / len(positive) if positive else nan
    specificity = tn / len(negative) if negative else nan
    return {
        "accuracy": (tp + tn) / len(labels) if labels else nan,
        "precision": tp / (tp + fp) if tp + fp else nan,
        "recall": recall,
        "balanced_accuracy": (recall + specificity) / 2,
        "auc": auc(positive, negative),
        "base_rate": len(positive) / len(labels) if labels else nan,
    }


def judge_metrics(trajectories, prefix, threshold=0.5):
    """`quality` of the judged trajectories whose true verdict is known, by metric name; empty where none is."""
    known = [t for t in trajectories if t.verdict is not None and t.judged is not None]
    if not known:
        return {}
    figures = quality([t.judged for t in known], [t.verdict for t in known], threshold) | {"episodes": len(known)}
    return {f"{prefix}/{name}": value for name, value in figures.items()}


def record(trajectories):
    """In words: how often the judge was right on the episodes that a check knows, too."""
    known = [t for t in trajectories if t.verdict is not None and t.judged is not None]
    if not known:
        return UNKNOWN
    found = quality([t.judged for t in known], [t.verdict for t in known])
    shown = ((name, found[name]) for name in ("accuracy", "precision", "recall"))
    figures = ", ".join(f"{name} {'unknown' if math.isnan(value) else f'{value:.3f}'}" for name, value in shown)
    return f"The judge on the {len(known)} episodes of this run that a check knows: {figures}"
