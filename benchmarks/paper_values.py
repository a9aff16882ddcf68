"""The defaults of `--preset paper` beside what the papers and their released code say: writes docs/paper_values.md.

    python benchmarks/paper_values.py

tests/test_paper_values.py fails where a default differs and DIFFERS does not say why.
"""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from common.lm.args import values_of

PAGE = ROOT / "docs/paper_values.md"
HEAD = """# Defaults and the papers

What `--preset paper` has, the default for models of the papers' size, beside the value of the paper or, where it gives
none, of the code that its authors (crps.py: verl-agent, whose prompts the paper uses) released. Made by `python
benchmarks/paper_values.py`; a test fails where a default differs without a reason here. Fields that neither gives are
not in the tables: `--help` says why they are what they are. Rates are of full weights: `--lora-rank` makes them ten
times as large.
"""
TITLES = {
    "webrl": "WebRL",
    "grpo_async": "AsyncWebRL",
    "crps": "CRPS",
    "distrl": "DistRL",
    "digirl": "DigiRL",
}

# {script: {field: (value, where it stands)}}
SAID = {
    "webrl": {
        "sft_learning_rate": (1e-5, "Table 5"),
        "sft_batch_size": (128, "Table 5"),
        "sft_epochs": (1, "Table 5"),
        "num_demos": (1186, "section B.3: its training samples"),
        "train_tasks": (1186, "WebArena-Lite"),
        "orm_learning_rate": (5e-6, "Table 6"),
        "orm_batch_size": (128, "Table 6"),
        "orm_epochs": (4, "Table 6"),
        "orm_episodes": (12200, "section B.3"),
        "orm_threshold": (0.5, "section 2: YES is likelier than NO"),
        "learning_rate": (1e-6, "Table 5"),
        "anneal_lr": (False, "Table 5: constant"),
        "critic_learning_rate": (1e-6, "Table 5"),
        "batch_size": (128, "Table 5"),
        "actor_epochs": (1, "Table 5"),
        "critic_epochs": (1, "Table 5"),
        "gamma": (0.9, "Table 5"),
        "advantage_lambda": (0.5, "Eq. 8"),
        "temperature": (1.0, "Table 5"),
        "num_phases": (8, "appendix C: eight phases"),
        "instructions_per_phase": (500, "section B.1"),
        "filter_low": (0.05, "section 2.1"),
        "filter_high": (0.75, "section 2.1"),
        "perplexity_low": (1 / 0.95, "section 2.2"),
        "perplexity_high": (1 / 0.5, "section 2.2"),
        "replay_ratio": (2.0, "section B.1: at most twice"),
        "max_grad_norm": (1.0, "released code"),
        "generator_model": ("gpt-4o-2024-05-13", "appendix D"),
        "eval_tasks": (165, "WebArena-Lite"),
        "test_tasks": (165, "WebArena-Lite"),
        "filter_quantile": (0.9, "DigiRL's released code"),
    },
    "grpo_async": {
        "group_size": (8, "released code"),
        "batch_trajectories": (128, "released code"),
        "iterations": (300, "released code"),
        "update_epochs": (3, "released code"),
        "minibatches": (2, "released code"),
        "learning_rate": (5e-6, "released code"),
        "clip_eps": (0.2, "released code"),
        "dual_clip": (3.0, "released code"),
        "behave_cap": (5.0, "released code"),
        "staleness": (2, "the paper's eta"),
        "k": (10.0, "Eq. 1"),
        "step_weight": ("constant", "Eq. 1"),
        "loss_mean": ("tokens", "released code"),
        "dynamic_sampling": (True, "released code"),
        "max_grad_norm": (1.0, "released code"),
        "temperature": (1.0, "released code"),
        "max_new_tokens": (4096, "released code"),
        "max_tokens": (16384, "released code"),
        "envs_per_worker": (32, "released code"),
        "history_images": (2, "released code: history_window 1"),
    },
    "crps": {
        "group_size": (8, "verl-agent"),
        "groups_per_iteration": (16, "verl-agent"),
        "iterations": (150, "verl-agent"),
        "batch_size": (64, "verl-agent, WebShop"),
        "learning_rate": (1e-6, "verl-agent"),
        "critic_learning_rate": (1e-5, "verl-agent"),
        "clip_eps": (0.2, "verl-agent"),
        "kl_coef": (0.01, "verl-agent"),
        "update_epochs": (1, "verl-agent"),
        "eval_every": (5, "verl-agent"),
        "eval_tasks": (128, "verl-agent"),
        "eval_temperature": (0.4, "verl-agent"),
        "temperature": (1.0, "verl-agent"),
        "num_demos": (0, "the paper starts from instruct models"),
        "history_length": (2, "appendix B"),
        "p_replay": (0.2, "Eq. 13"),
        "rho_low": (0.2, "Eq. 12"),
        "rho_high": (0.8, "Eq. 12"),
        "smoothing": (0.9, "Eq. 11"),
        "k_step": (2, "Eq. 12"),
    },
    "distrl": {
        "num_demos": (0, "the paper starts from AutoUI"),
        "retrace": (True, "section 5.2"),
        "prioritised": (True, "section 5.3"),
        "priority_alpha": (0.5, "A.4.2"),
        "trajectory_value": ("terminal", "section 5.1"),
        "warmup_trajectories": (128, "A.5.2"),
        "replay_ratio": (0.0, "section 4: the host never waits"),
        "max_staleness": (0, "section 4: none"),
        "judge_images": (1, "section 6.3"),
        "test_tasks": (128, "section 6"),
        "reward": ("return", "A.4.2"),
        "temperature": (1.0, "released code"),
        "gamma": (0.5, "released code"),
        "repeat_penalty": (0.4, "released code"),
        "invalid_penalty": (1.0, "released code"),
        "beta": (0.0, "released code: 0.05, switched off"),
        "filter_quantile": (0.9, "released code"),
        "w1": (50.0, "released code"),
        "w2": (1.0, "released code"),
        "w3": (0.01, "released code"),
        "learning_rate": (1e-4, "released code"),
        "critic_learning_rate": (1e-4, "released code"),
        "max_grad_norm": (0.01, "released code"),
        "iterations": (400, "released code"),
        "batch_size": (192, "released code: the actor's 64 sequences of 3 steps"),
        "actor_epochs": (20, "released code: 20 updates"),
        "critic_epochs": (5, "released code: 5 updates"),
        "buffer_steps": (10000, "released code"),
        "judge_states": (True, "section 3"),
        "max_new_tokens": (128, "released code"),
    },
    "digirl": {
        "num_demos": (0, "the paper starts from AutoUI"),
        "num_envs": (8, "released code"),
        "batch_trajectories": (16, "released code"),
        "iterations": (600, "released code"),
        "gamma": (0.5, "released code"),
        "step_cost": (0.05, "released code"),
        "filter_quantile": (0.9, "released code"),
        "instruction_updates": (5, "released code"),
        "step_updates": (5, "released code"),
        "actor_updates": (20, "released code"),
        "batch_size": (128, "released code: 32 times 4"),
        "instruction_batch_size": (256, "released code: 32 times 8"),
        "buffer_steps": (2000, "released code"),
        "judge_states": (True, "released code"),
        "critic_max_grad_norm": (0.01, "released code"),
        "learning_rate": (1e-4, "released code"),
        "critic_learning_rate": (1e-4, "released code"),
        "max_grad_norm": (0.01, "released code"),
        "test_tasks": (96, "released code"),
        "max_new_tokens": (128, "released code"),
        "temperature": (1.0, "released code"),
    },
}

# {script: {field: why ours is another}}
DIFFERS = {
    "webrl": {},
    "grpo_async": {
        "loss_mean": "Eq. 1 as printed: a sum over tokens by G k; the code's mean is `--loss-mean tokens`",
    },
    "crps": {"num_demos": "models that were not trained on such prompts need a start; 0 for instruct models"},
    "distrl": {"num_demos": "the paper starts from AutoUI, trained on phones; 0 for such a model"},
    "digirl": {"num_demos": "the paper starts from AutoUI, trained on phones; 0 for such a model"},
}


def default(script, field):
    """What --preset paper has."""
    return importlib.import_module(script).Args.__dataclass_fields__[field].default


def tiny(script, field):
    args_class = importlib.import_module(script).Args
    return values_of(args_class, "tiny").get(field, default(script, field))


def page():
    """The page's text."""
    parts = [HEAD]
    for script, fields in SAID.items():
        parts.append(f"## {script}.py: {TITLES[script]}\n")
        head = ["field", "paper or code", "where", "`--preset paper`", "`tiny`", "why another"]
        parts.append("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
        for field, (value, where) in fields.items():
            ours = default(script, field)
            cells = [f"`{field}`", shown(value), where, shown(ours), shown(tiny(script, field))]
            parts.append("| " + " | ".join([*cells, DIFFERS[script].get(field, "")]) + " |")
        parts.append("")
    return "\n".join(parts)


def shown(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
