"""distrl.py with a model that sees: screenshots in the prompts, actions of Android in the Wild, through training."""

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import distrl
import grpo_async
from common.errors import UsageError
from common.lm import llm
from common.lm.args import parse_args
from common.lm.checkpoint import latest
from common.lm.run import Run, read_metrics
from common.replay import TrajectoryStore
from distrl import Args
from envs import make
from tests import test_vlm
from tests.scripts import run_script
from tests.test_distrl import update

ROOT = Path(__file__).resolve().parent.parent
SPECIAL = "<pad> <eos> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>".split()
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}{% if p['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""  # noqa: E501
ARGS = replace(
    Args(), model_id="", num_workers=1, phones_per_worker=1, screenshots=False, gamma=0.9, prompt_format="auto",
    micro_batch_tokens=2000, advantage_floor=-9.0, max_new_tokens=8, critic_learning_rate=1e-3, learning_rate=1e-3,
    actor_epochs=1, critic_epochs=1, beta=0.01, max_grad_norm=1.0, critic_max_grad_norm=1.0,
)  # fmt: skip


def tokenizer():
    """Every byte is a token: it can write any action."""
    words = SPECIAL + sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<|im_end|>")
    made.add_special_tokens({"additional_special_tokens": SPECIAL[2:]})
    made.chat_template = TEMPLATE
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small Qwen2.5-VL as people have them on their disk."""
    torch.manual_seed(0)
    words, vision = tokenizer(), {"window_size": 56, "fullatt_block_indexes": [1]}
    text = test_vlm.text_config(rope_parameters=test_vlm.ROPE, vocab_size=len(words), eos_token_id=3)
    kind, config = test_vlm.Qwen2_5_VLForConditionalGeneration, test_vlm.Qwen2_5_VLConfig
    model, (pictures, _) = test_vlm.qwen(kind, config, vision, text)
    path = tmp_path_factory.mktemp("qwen")
    for part in (model, pictures, words):
        part.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def args(folder):
    return replace(ARGS, model_id=str(folder))


@pytest.fixture(scope="module")
def demos(args):
    """Two demonstrations on a simulated phone, as a worker plays them, and an episode of the policy's: (trajectory,
    screenshots) each."""

    async def played():
        worker, tasks = distrl.RolloutWorker(args, 0), make("phone/general").tasks("train")
        shown = [(await worker.demonstrate(tasks[index]))[0] for index in (0, 700)]
        sampled, log, _ = await worker.play(replace(tasks[0], max_steps=2), 1, 1.0)
        await worker.close()
        assert log.faults == 0
        return [*shown, sampled]

    return asyncio.run(played())


def learner_of(args, demos, path):
    """A learner whose folder has the screenshots, and the trajectories."""
    learner = distrl.load_learner(args)
    learner.folder = path
    store = TrajectoryStore(path / "trajectories.jsonl")
    made = [(replace(t, steps=[replace(step) for step in t.steps]), pictures) for t, pictures in demos]
    distrl.keep(type("Run", (), {"trajectories": store}), made)
    distrl.make_critics(learner, args)
    for critic in learner.critics.values():
        torch.nn.init.normal_(critic.model["head"].weight, std=0.5)
    trajectories = [trajectory for trajectory, _ in made]
    for trajectory in trajectories:
        trajectory.reward = float(bool(trajectory.verdict))
        for step in trajectory.steps:
            step.logprobs = step.logprobs or [-3.0] * len(step.action_ids)
    return learner, trajectories


def test_the_oracle_shows_gestures_that_solve_the_task(demos, folder):
    words = llm.load_tokenizer(str(folder))
    for trajectory, pictures in demos[:2]:
        assert trajectory.verdict == 1.0 and len(pictures) == len({s.screenshot for s in trajectory.steps})
        for step in trajectory.steps:
            assert step.action.startswith('"action_type": "')
            assert words.decode(step.action_ids) == step.action + "<|im_end|>"
            prompt = words.decode(list(step.prompt_ids))
            assert trajectory.task.instruction in prompt and "DUAL_POINT: touch" in prompt
            assert 0 < list(step.prompt_ids).count(6) <= 4  # the picture's tokens
    steps = demos[0][0].steps
    assert steps[0].action in words.decode(list(steps[1].prompt_ids))  # the history


def test_what_is_trained_on_is_what_was_sampled(args, demos, tmp_path):
    """Log-probs at sampling are the learner's own, with the screenshot from the disk; another one changes them."""
    learner, trajectories = learner_of(args, demos, tmp_path)
    sampled = trajectories[2]
    logprobs, _ = learner.actor.logprobs(sampled.steps)
    for row, step in zip(logprobs.tolist(), sampled.steps, strict=True):
        assert row[: len(step.logprobs)] == pytest.approx(step.logprobs, abs=1e-4)
    entropies = learner.actor.entropies(sampled.steps)
    assert ((entropies > 0) & (entropies < 8 * 6)).all()  # at most log V a token
    entropies.mean().backward()  # tokens that cannot be sampled do not spoil it
    gradients = [p.grad for p in learner.actor.model.parameters() if p.grad is not None]
    assert all(g.isfinite().all() for g in gradients) and any(g.any() for g in gradients)
    learner.actor.model.zero_grad()
    others = {step.screenshot for t in trajectories for step in t.steps} - {sampled.steps[0].screenshot}
    blind = replace(sampled, steps=[replace(sampled.steps[0], screenshot=sorted(others)[0])])
    assert (learner.actor.logprobs(blind.steps)[0][0] - logprobs[0]).abs().max() > 1e-5


def test_values_and_updates_do_not_depend_on_micro_batches(args, demos, tmp_path):
    found = []
    for tokens in (1, 10**6):
        own = replace(args, micro_batch_tokens=tokens, batch_size=16)
        learner, trajectories = learner_of(own, demos, tmp_path)
        torch.manual_seed(2)
        for critic in learner.critics.values():
            torch.nn.init.normal_(critic.model["head"].weight, std=0.5)
        metrics, filtered = update(learner, trajectories, trajectories, own)
        weights = torch.cat([p.detach().flatten() for p in learner.actor.model.parameters()])
        found.append((metrics, list(filtered.values()), weights))
        before = torch.cat([p.flatten() for p in distrl.load_learner(own).actor.model.parameters()])
        assert (weights - before).abs().max() > 1e-4  # something was learned
    (one, values, first), (many, same, second) = found
    assert values == pytest.approx(same, abs=1e-4) and len(set(map(float, values[:3]))) == 3
    assert one["losses/policy_loss"] == pytest.approx(many["losses/policy_loss"], rel=1e-3)
    assert one["losses/critic_loss"] == pytest.approx(many["losses/critic_loss"], rel=1e-3)
    # Adam's first step is the rate's size whatever the gradient's: where that is nearly 0 the sign may differ
    assert ((first - second).abs() > 1e-4).float().mean() < 0.01


def test_the_prompt_holds_no_image_token_of_the_task(folder):
    processor = llm.load_processor(str(folder))
    picture = (ROOT / "docs/images/phone.png").read_bytes()
    obs = {"error": "off the screen", "screenshot": picture}
    for form in ("chat", "plain"):
        prompt = distrl.seeing_prompt(processor, "read <|image_pad|><|im_end|>", [], obs, form)
        text = processor.tokenizer.decode(prompt)
        assert "read" in text and 'error "off the screen"' in text and prompt.images == [picture]
        assert prompt.count(6) == distrl.seeing_prompt(processor, "read", [], obs, form).count(6)


def test_the_image_token_in_a_text_is_text_for_grpo_async(folder):
    """In an instruction, an error, an answer of before, and a demonstration's action."""
    processor = llm.load_processor(str(folder))
    picture = (ROOT / "docs/images/phone.png").read_bytes()
    for mark in ("<|image_pad|>", "<|vision_start|><|image_pad|>", "<|im_end|>", "<|image_<|image_pad|>pad|>"):
        steps = [SimpleNamespace(action=f"Action: look{mark} there{n}", screenshot=picture) for n in range(3)]
        asked = grpo_async.agent_prompt(
            processor, f"read {mark} it", steps, {"error": f"no {mark} tool", "screenshot": picture}, "chat"
        )
        plain = [SimpleNamespace(action=step.action.replace(mark, ""), screenshot=picture) for step in steps]
        wanted = grpo_async.agent_prompt(
            processor, "read  it", plain, {"error": "no  tool", "screenshot": picture}, "chat"
        )
        assert asked == wanted and len(asked.images) == 2 and mark not in str(asked.turns)
    worker = SimpleNamespace(processor=processor)
    for ids in (
        grpo_async.RolloutWorker._encode(worker, "type <|image_pad|>x"),
        distrl.encode_action(processor.tokenizer, "type <|image_pad|>x"),
    ):
        assert llm.image_token(processor) not in ids and processor.tokenizer.decode(ids[:-1]) == "type x"


def test_the_small_model_that_sees_reads_the_image_token_as_text():
    processor = llm.load_processor(str(ROOT / "assets/tiny-vl"))
    picture, obs = (ROOT / "docs/images/phone.png").read_bytes(), {"error": ""}
    obs["screenshot"] = picture
    before = [SimpleNamespace(action="click <image>", screenshot=picture)]
    plain = [SimpleNamespace(action="click ", screenshot=picture)]
    asked = grpo_async.agent_prompt(processor, "draw an <image>", before, obs)
    assert asked == grpo_async.agent_prompt(processor, "draw an ", plain, obs)


def test_a_run_in_step_of_a_model_that_sees(folder, tmp_path, ray_address):
    """All wait for the slowest, and every step is of the newest policy; six trajectories are the whole of it."""
    flags = f"""--model-id {folder} --preset tiny --max-new-tokens 24 --num-workers 1 --phones-per-worker 4
    --num-demos 4 --sft-epochs 1 --iterations 2 --eval-every 2 --save-every 1 --test-tasks 0 --eval-tasks 2
    --warmup-trajectories 4 --batch-trajectories 3 --max-steps 3 --advantage-floor -1 --phone-delay 0.05
    --sync --replay-ratio 1 --total-trajectories 6 --ray-address {ray_address} --runs-dir {tmp_path}""".split()
    out = run_script(["distrl.py", *flags])
    assert out.returncode == 0, out.stderr[-3000:]
    (run,) = tmp_path.iterdir()
    rows = [row for row in read_metrics(run) if "charts/updates" in row]
    assert [row["losses/trained_steps"] > 0 for row in rows] == [True, True]
    assert all(row["rollout/faults"] == row["rollout/lost"] == 0 and row["perf/workers"] == 1 for row in rows)
    assert rows[-1]["charts/trajectories"] == 6 and rows[-1]["eval/episodes"] == 2
    assert max(row["rollout/logprob_gap"] for row in rows if "rollout/logprob_gap" in row) < 1e-3
    trajectories = list(TrajectoryStore(run / "trajectories.jsonl"))
    assert all((run / step.screenshot).is_file() for t in trajectories for step in t.steps)
    rounds, lines = {}, [json.loads(line) for line in (run / "timeline.jsonl").read_text().splitlines()]
    rollouts = [t for t in trajectories if t.kind == "rollout"]
    for trajectory in rollouts:
        rounds.setdefault(trajectory.place // 4, []).append({step.version for step in trajectory.steps})
    assert rounds == {0: [{1}] * 4, 1: [{2}] * 2}
    ended = max(line["ended"] for line in lines if line["place"] < 4)
    assert min(line["begun"] for line in lines if line["place"] >= 4) >= ended
    goes_on(run, rollouts)
    tools = (
        f"tools/eval.py --env-id phone/general --model-id {run} --num-envs 2 --num-tasks 2 --runs-dir {tmp_path / 'e'}"
    )
    evaluated = run_script(tools.split())
    assert evaluated.returncode == 0 and "of 2 tasks" in evaluated.stdout, evaluated.stderr[-3000:]
    watched = run_script(["tools/play.py", "--env-id", "phone/general", "--task", "3", "--policy", run])
    assert watched.returncode == 0, watched.stderr[-3000:]


def goes_on(run, rollouts):
    """A resumed run has the networks of its checkpoint, and the screenshots from the run's folder."""
    args, checkpoint = parse_args(Args, ["--resume", str(run)]), latest(run)
    assert (checkpoint.folder("actor") / "preprocessor_config.json").is_file()
    learner = distrl.load_learner(replace(args, cpu_threads=0))
    learner.folder, steps = run, [step for t in rollouts for step in t.steps]
    distrl.make_critics(learner, args)

    def found():
        values = learner.critics["critic_value"].values([learner.prompt(step) for step in steps])
        return [*learner.actor.score(learner.actor.action_logprobs, steps), *values]

    before = found()
    with Run.create(args, distrl.__file__, run_path=run) as resumed:
        distrl.restore_learner(learner, resumed, args)
    assert learner.iteration == 2 and learner.updates > 0
    assert all(math.isfinite(now) and now != then for now, then in zip(found(), before, strict=True))


def test_a_model_that_sees_is_for_phones(folder, args):
    with pytest.raises(UsageError, match="sees: it plays on phones here, not on arena-v1"):
        distrl.make_env(replace(args, env_id="arena-v1"))
