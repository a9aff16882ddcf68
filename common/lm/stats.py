"""Intervals for the numbers we report. Every function returns `Interval(estimate, low, high)`, 95 % by default."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple
from urllib.parse import urlsplit


class Interval(NamedTuple):
    """An estimate and its confidence interval; `low` and `high` are NaN where one value alone gives no spread."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a success rate (Wilson 1927): sound near 0 and 1 and for small n."""
    if n == 0:
        return Interval(math.nan, 0.0, 1.0)
    from scipy.stats import binomtest  # a second

    interval = binomtest(successes, n).proportion_ci(level, method="wilson")
    return Interval(successes / n, float(interval.low), float(interval.high))


def mean_ci(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean of a few independent values (seeds) with Student's t interval."""
    values = [float(value) for value in values]
    if len(values) < 2:
        return Interval(values[0] if values else math.nan, math.nan, math.nan)
    from scipy.special import stdtrit  # quantiles of Student's t

    mean = fmean(values)
    half = float(stdtrit(len(values) - 1, 0.5 + level / 2)) * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def paired_difference(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Interval:
    """Mean of `a - b` where a[i] and b[i] are of the same task (or seed). Raises ValueError on unequal lengths."""
    return mean_ci([x - y for x, y in zip(a, b, strict=True)], level)


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """P(a positive's score is above a negative's), ties counting half: the Mann-Whitney statistic."""
    if not positive or not negative:
        return math.nan
    from scipy.stats import mannwhitneyu

    test = mannwhitneyu(positive, negative, method="asymptotic")  # the p-value is not used: no exact one
    return float(test.statistic) / (len(positive) * len(negative))


MANY = 50  # groups with a figure each
BACK = "go_backward", 'argument="Back"', "PRESS_BACK"  # in the web's grammar and the phones'
ERRORS = ("get stuck midway", "fail to make reasonable attempt", "fail to recover", "stop at wrong page")


def error_type(trajectory) -> str | None:
    """The kind of failure (WebRL, Figure 3) by rule, the first that fits; None for a success.

    Stuck: out of steps, or the last three actions equal. No attempt: stopped before it had seen a second page. Fail to
    recover: an action was refused or taken back on the way. Wrong page: it stopped, and the page or answer was wrong.
    """
    if trajectory.success:
        return None
    actions = [step.action for step in trajectory.steps]
    if trajectory.ending != "exit" or (len(actions) >= 3 and len(set(actions[-3:])) == 1):
        return ERRORS[0]
    if len({step.observation for step in trajectory.steps}) <= 1:
        return ERRORS[1]
    if any(step.error or any(back in step.action for back in BACK) for step in trajectory.steps):
        return ERRORS[2]
    return ERRORS[3]


def site_name(site: str) -> str:
    """A task's `site` as figures are kept by it: of an address the host, "several" for a task that crosses sites."""
    if "://" in site:
        return urlsplit(site).netloc.rpartition("@")[2]
    return "several" if "+" in site else site  # "forum+code"


def evaluation_metrics(trajectories: Sequence, prefix: str) -> dict[str, float]:
    """Success (by the judge where no true verdict is known) over evaluated trajectories: overall with its interval, of
    those with and without a check where there are both, per site, per number of requirements, per required steps (of
    the oracle, where known; each where its values are not MANY), the mean length and graded score, and the shares of
    the error types. Metrics by name, `prefix/...`; none without trajectories."""
    if not trajectories:
        return {}

    def rate(group):
        return fmean(t.success for t in group)

    errors = [error_type(t) for t in trajectories]
    overall = wilson(sum(t.success for t in trajectories), len(trajectories))
    metrics = {f"{prefix}/success": overall.estimate, f"{prefix}/low": overall.low, f"{prefix}/high": overall.high}
    for name, group in zip(("checked", "judged"), by_check(trajectories), strict=True):
        if 0 < len(group) < len(trajectories):
            metrics[f"{prefix}/{name}_success"] = rate(group)
    metrics[f"{prefix}/episodes"] = len(trajectories)
    metrics[f"{prefix}/length"] = fmean(len(t.steps) for t in trajectories)
    if all(t.score is not None for t in trajectories):
        metrics[f"{prefix}/score"] = fmean(t.score for t in trajectories)
    keys = {
        "site": lambda t: site_name(t.task.site),
        "requirements": lambda t: t.task.requirements,
    }
    if all(t.task.steps for t in trajectories):  # 0: unknown
        keys["steps"] = lambda t: "1-3" if t.task.steps <= 3 else "4-6" if t.task.steps <= 6 else "7+"
    for name, key in keys.items():
        values = sorted({key(t) for t in trajectories}, key=str)
        for value in values if len(values) <= MANY else ():
            metrics[f"{prefix}/{name}_{value}"] = rate([t for t in trajectories if key(t) == value])
    shares = {f"{prefix}/error_{kind.replace(' ', '_')}": errors.count(kind) / len(errors) for kind in ERRORS}
    return metrics | shares


def by_check(trajectories: Sequence) -> tuple[list, list]:
    """Those whose success a check knows, and those whose success is a judge's opinion."""
    return [t for t in trajectories if t.verdict is not None], [t for t in trajectories if t.verdict is None]


def unrewarded(trajectories: Sequence) -> str:
    """Why none of a batch's rollouts was rewarded, in words; "" where one was."""
    if any(t.reward for t in trajectories):
        return ""

    def reason(t):
        if t.ending != "exit":
            return "ran out of steps" if t.ending == "truncated" else "ran out of room in the prompt"
        if t.judged is not None:
            return "the judge called failures"
        return "nobody judged" if t.verdict is None else "the check called failures"

    counts = Counter(map(reason, trajectories)).most_common()
    why = ", ".join(f"{count} {reason}" for reason, count in counts)
    return f"no rollout was rewarded: {why or 'none is left, all were lost to faults or got no judgement'}"


def rollout_metrics(trajectories: Sequence) -> dict[str, float | str]:
    """What a batch of training rollouts was like: reward, true success where a checker knows it (of all, and of those
    that were rewarded), length, ends; and why none was rewarded, where none was."""
    known = [t.verdict for t in trajectories if t.verdict is not None]
    paid = [t.verdict for t in trajectories if t.verdict is not None and t.reward]
    count, steps = max(1, len(trajectories)), [step for t in trajectories for step in t.steps]
    note = unrewarded(trajectories)
    return ({"rollout/note": note} if note else {}) | {
        "rollout/episodes": len(trajectories),
        "rollout/reward": sum(t.reward for t in trajectories) / count,
        "rollout/true_success": fmean(known) if known else math.nan,
        "rollout/reward_precision": fmean(paid) if paid else math.nan,
        "rollout/length": len(steps) / count,
        "rollout/truncated": sum(t.ending == "truncated" for t in trajectories) / count,
        "rollout/action_errors": sum(bool(step.error) for step in steps) / max(1, len(steps)),
    }
