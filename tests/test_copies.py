"""What two scripts have under the same name is the same, word for word but for the docstring, or stands here with the
reason why it is not: a mend in one of the copies that the others lack shows."""

import ast
from collections import defaultdict
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = "webrl", "crps", "digirl", "distrl", "grpo_async"
# name: why it differs, and between whom where the others are copies
DIFFER = {
    "Args": "every script's own flags",
    "Entry": "what the method's buffer keeps",
    "Group": "crps: suffixes of one trajectory; grpo_async: admission",
    "Learner": "the method's networks",
    "RolloutWorker": "phones with a policy each; browsers with policy servers",
    "System": "who has the weights, and when a rollout may begin",
    "advantages": "WebRL's equation, DistRL's",
    "agent_prompt": "the papers' prompts; digirl and distrl are the same",
    "collect": "crps plays the groups itself",
    "critic_loss": "WebRL's outcomes, DistRL's targets",
    "digirl_advantages": "webrl: of one outcome; distrl: of the rewards",
    "evaluate": "what is judged, kept and shown",
    "fine_tune": "distrl and grpo_async give it all threads, grpo_async's has pictures",
    "fit": "digirl draws batches, distrl goes through all",
    "is_chat": "of a processor, of a tokenizer",
    "keep": "what a record holds, and where screenshots are",
    "main": "the method's parts",
    "make_env": "browsers, phones, text",
    "make_learner": "the method's networks",
    "make_optimizer": "grpo_async: the released betas",
    "policy_loss": "each paper's equation",
    "restore": "what a checkpoint holds",
    "restore_learner": "what a checkpoint holds",
    "run_iteration": "the method's loop",
    "save": "what a checkpoint holds",
    "set_advantages": "the method's",
    "staleness": "of entries, of groups",
    "start_actor": "which tests stand before it",
    "train": "the method's loop",
    "update_actor": "the method's loss",
    "update_critic": "webrl: classification; crps: regression",
    "value_metrics": "which values the method has",
    "variant": "which defaults a flag changes",
}
# those of DIFFER in which some scripts agree
ALIKE = {
    "agent_prompt": {"digirl", "distrl"},
    "fine_tune": {"webrl", "crps", "digirl"},
    "make_optimizer": {"webrl", "crps", "digirl", "distrl"},
}


def without_docstring(node):
    """A definition's code."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return ast.unparse(ast.Module(body, [])), ast.unparse(node.args) if hasattr(node, "args") else ""


def definitions():
    """{name: {script: code}} of top-level functions and classes."""
    found = defaultdict(dict)
    for script in SCRIPTS:
        for node in ast.parse((ROOT / f"{script}.py").read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[node.name][script] = without_docstring(node)
    return found


def test_copies_are_the_same():
    changed = [
        f"{name}: {one}.py and {other}.py"
        for name, codes in definitions().items()
        for one, other in combinations(codes, 2)
        if codes[one] != codes[other] and (name not in DIFFER or {one, other} <= ALIKE.get(name, set()))
    ]
    assert not changed, "differ under the same name: " + "; ".join(changed)


def test_what_is_said_to_differ_does():
    codes = definitions()
    alike = [name for name in DIFFER if len(set(codes[name].values())) < 2]
    assert not alike, f"no longer differ: {alike}"
