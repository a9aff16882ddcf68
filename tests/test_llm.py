"""common/lm/llm.py and common/orm.py on small models that the tests make, and on the committed tiny base."""

import math
import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import webrl
from common import orm
from common.errors import UsageError
from common.lm import learn, llm
from common.lm.net import Net
from tests.nets import net_of


@pytest.fixture(scope="module")
def tiny():
    return llm.load("assets/tiny")


PAGES = [
    'Task Instruction: price of red lamp\nAction History:\npage "home"\n"red lamp" link [1]\nAction:\n',
    'Task Instruction: log out\nAction History:\npage "account"\n"orders" link [1]\n"log out" button [2]\nAction:\n',
    'Task Instruction: x\nAction History:\npage "a"\nAction:\n',
]


def test_sampling_logprobs_are_those_of_a_forward_pass(tiny):
    model, tokenizer = tiny
    prompts = [tokenizer.encode(p) for p in PAGES]
    for temperature in (1.0, 0.7, 0.0):
        done = llm.generate(model, tokenizer, prompts, [1, 2, 3], temperature, max_new_tokens=24)
        with torch.no_grad():
            logprobs, mask = llm.token_logprobs(model, tokenizer, prompts, [c.ids for c in done], temperature)
        for row, completion in enumerate(done):
            got = logprobs[row][mask[row]]
            assert len(got) == len(completion.ids)
            torch.testing.assert_close(got, torch.tensor(completion.logprobs), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("load", "set_by_hand", "threads"), [(0.2, "", 4), (2.6, "", 1), (40.0, "", 1), (1.1, "", 3), (40.0, "4", 4)]
)
def test_torch_leaves_busy_cores_to_others(monkeypatch, load, set_by_hand, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if set_by_hand:
        monkeypatch.setenv("OMP_NUM_THREADS", set_by_hand)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    now = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: now.__setitem__(0, count))
    learn.leave_busy_cores(load)
    assert now == [threads]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_answers_in_parts_are_in_the_order_of_the_questions(monkeypatch, count):
    parts = []

    def answer(part):
        parts.append(part)
        return [10 * item for item in part]

    with ThreadPoolExecutor(3) as threads:
        monkeypatch.setattr(learn, "_threads", threads)
        assert learn.in_parts(answer, list(range(count))) == [10 * item for item in range(count)]
    assert len(parts) == min(3, count) and sorted(item for part in parts for item in part) == list(range(count))


@pytest.mark.parametrize("count, gpu, side_by_side", [(2, False, True), (1, False, False), (2, True, False)])
def test_micro_batches_go_side_by_side_on_a_cpu_only(monkeypatch, count, gpu, side_by_side):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    learn.use_threads(count)
    threads = learn._threads
    learn.use_threads(1)
    assert (threads is not None) == side_by_side


def test_a_sample_does_not_depend_on_its_batch(tiny):
    model, tokenizer = tiny
    prompts = [tokenizer.encode(p) for p in PAGES]
    together = llm.generate(model, tokenizer, prompts, [1, 2, 3], 1.0, 24)
    for i in range(3):
        alone = llm.generate(model, tokenizer, [prompts[i]], [i + 1], 1.0, 24)[0]
        assert alone.ids == together[i].ids
    other = llm.generate(model, tokenizer, prompts, [4, 5, 6], 1.0, 24)
    assert [c.ids for c in other] != [c.ids for c in together]
    twice = llm.generate(model, tokenizer, [*prompts, *prompts[:2]], [1, 2, 3, 1, 2], 1.0, 24)
    assert [c.ids for c in twice] == [together[i].ids for i in (0, 1, 2, 0, 1)]


@pytest.mark.parametrize("shared", [0, 9])
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Mistral"])
def test_greedy_tokens_in_a_batch_are_those_of_single_prompts(family, shared, monkeypatch):
    """Rows that end early, prompts that go through in parts, that begin with the same tokens, a sliding window."""
    import transformers

    shape = dict(
        vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.6, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    if family == "Mistral":
        shape["sliding_window"] = 6
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**shape)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight[1] *= 3  # an end that comes early in some rows
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=1, chat_template=None)
    monkeypatch.setattr(llm, "end_of_turn", lambda tokenizer: tokenizer.eos_token_id)
    rng = random.Random(0)
    first = [rng.randint(2, 59) for _ in range(shared)]
    prompts = [first + [rng.randint(2, 59) for _ in range(rng.randint(3, 20))] for _ in range(12)]
    monkeypatch.setattr(llm, "SHARED_TOKENS", 50)
    cache = llm.shared_cache(model, prompts)
    assert (cache is not None) == (shared > 0 and family != "Mistral")
    if cache is not None:
        assert (cache.get_seq_length(), len(cache.layers[0].keys)) == (9, 12)
    slow = []
    for prompt in prompts:
        out = model.generate(torch.tensor([prompt]), max_new_tokens=15, do_sample=False, eos_token_id=[1])
        slow.append(out[0, len(prompt) :].tolist())
    lengths = {len(tokens) for tokens in slow}
    assert len(lengths) > 3 and min(lengths) < 6
    for tokens in (24, 100, 10_000):
        monkeypatch.setattr(llm, "PREFILL_TOKENS", tokens)
        got = llm.generate(model, tokenizer, prompts, [0] * 12, 0.0, 15)
        assert [c.ids for c in got] == slow
        for prompt, completion in zip(prompts, got, strict=True):
            with torch.no_grad():
                logprobs, _ = llm.token_logprobs(model, tokenizer, [prompt], [completion.ids])
            assert completion.logprobs == pytest.approx(logprobs[0].tolist(), abs=1e-4)


def test_sampling_follows_the_softmax(tiny):
    model, tokenizer = tiny
    prompt = tokenizer.encode(PAGES[0])
    count = 2000
    first = [c.ids[0] for c in llm.generate(model, tokenizer, [prompt] * count, list(range(count)), 1.0, 1)]
    with torch.no_grad():
        p = model(input_ids=torch.tensor([prompt])).logits[0, -1].float().softmax(-1)
    token = int(p.argmax())
    expected, sd = p[token].item(), (p[token] * (1 - p[token]) / count).sqrt().item()
    assert abs(first.count(token) / count - expected) < 5 * sd + 1e-9


def test_logprobs_do_not_depend_on_padding_and_carry_gradient(tiny):
    model, tokenizer = tiny
    prompts = [tokenizer.encode(p) for p in PAGES]
    actions = [tokenizer.encode('exit(message="24")'), tokenizer.encode("go_backward()"), [5, 6, 7, 8, 9, 10]]
    together, mask = llm.token_logprobs(model, tokenizer, prompts, actions)
    for i in range(3):
        alone, _ = llm.token_logprobs(model, tokenizer, [prompts[i]], [actions[i]])
        torch.testing.assert_close(together[i][mask[i]], alone[0], atol=1e-4, rtol=0)
    assert together.requires_grad and (together[~mask] == 0).all()
    # against the plain definition
    ids = torch.tensor([prompts[1] + actions[1]])
    full = model(input_ids=ids).logits.float().log_softmax(-1)
    start = len(prompts[1])
    slow = [full[0, start - 1 + i, token].item() for i, token in enumerate(actions[1])]
    assert together[1][mask[1]].tolist() == pytest.approx(slow, abs=1e-4)


def test_batches_cover_everything_once():
    batches = learn.shuffled(range(53), 8, 1, random.Random(1))
    assert sorted(i for b in batches for i in b) == list(range(53))
    assert {len(b) for b in batches} == {7, 8}
    assert batches != learn.shuffled(range(53), 8, 1, random.Random(2))


def test_micro_batches_keep_to_their_size_and_pad_little():
    rng = random.Random(0)
    lengths = [int(rng.lognormvariate(5, 0.6)) for _ in range(200)]
    parts = learn.micro_batches(lengths, 1024)
    assert sorted(i for part in parts for i in part) == list(range(200))
    padded = [max(lengths[i] for i in part) * len(part) for part in parts]
    assert all(size <= 1024 or len(part) == 1 for size, part in zip(padded, parts, strict=True))
    assert sum(lengths) > 0.85 * sum(padded)
    assert learn.micro_batches([3000, 5], 1024) == [[0], [1]]


def test_the_tiny_tokenizer_gives_text_back(tiny):
    _, tokenizer = tiny
    text = (
        'page "red lamp"\n"home" link [1]\n"search" box [2] = "blue mug"\n"size" select [4] = "s" of "s" "l"\n'
        '"gift wrap" check [5] on\n# Element: "home" link [12]\ndo(action="Click", element="12")\n'
        'do(action="Type", argument="two red lamps", element="2")\nexit(message="24")\n'
    )
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (
        tokenizer.encode('"red')[-1] == tokenizer.encode(" red")[-1]
        or tokenizer.encode('= "red')[-1] == tokenizer.encode(" red")[-1]
    )


def test_a_missing_model_is_one_clear_line():
    for name in ("no/such/folder/here", "./nothing", "gone", "models/gone"):
        with pytest.raises(UsageError, match="no model at"):
            llm.find_model(name)
    with pytest.raises(UsageError, match="needs a GPU"):
        llm.load("assets/tiny", lora_rank=2, load_in_4bit=True, device="cpu")
    with pytest.raises(UsageError, match="needs --lora-rank"):
        llm.load("assets/tiny", load_in_4bit=True)


def test_lora_trains_adapters_only():
    model, tokenizer = llm.load("assets/tiny", lora_rank=4)
    trainable = [n for n, p in model.named_parameters() if p.requires_grad]
    assert trainable and all("lora_" in n for n in trainable)
    logprobs, _ = llm.token_logprobs(model, tokenizer, [[5, 6, 7]], [[8, 1]])
    logprobs.sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.requires_grad)


def small_model(name, **settings):
    """A random model of two layers, of a family that transformers knows."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    shape = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    shape |= dict(num_key_value_heads=2, head_dim=16, pad_token_id=0, eos_token_id=1, bos_token_id=2)
    config = AutoConfig.for_model(name, **shape, **settings)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)  # or no cap would be felt
    return model


@pytest.mark.parametrize(
    "name, settings",
    [
        ("llama", {}),
        ("gemma2", dict(final_logit_softcapping=2.0)),
        ("granite", dict(logits_scaling=4.0)),
        ("cohere", dict(logit_scale=0.25)),
    ],
)
def test_logprobs_are_those_of_the_models_own_forward(name, settings):
    model, tokenizer = small_model(name, **settings), SimpleNamespace(pad_token_id=0)
    prompt, action = [5, 6, 7, 8], [9, 10, 11]
    with torch.no_grad():
        own = model(input_ids=torch.tensor([prompt + action])).logits.log_softmax(dim=-1)[0, 3:6]
        ours, _ = llm.token_logprobs(model, tokenizer, [prompt], [action])
        (whole,) = llm.action_logits(model, tokenizer, [prompt], [action])
        head = llm.Head(model)
        hidden, _ = llm.hidden_states(model, tokenizer, [prompt], [action])
    assert torch.allclose(ours[0], own[range(3), action], atol=1e-5)
    assert torch.allclose(whole.log_softmax(dim=-1), own, atol=1e-5)
    assert torch.allclose(head(hidden, [3, 4]), head(hidden)[..., [3, 4]], atol=1e-5)  # what the judge compares
    plain = model.get_output_embeddings()(hidden).log_softmax(dim=-1)[0, 3:6]
    assert (plain - own).abs().max() > 0.1 or name == "llama"  # the matrix alone is not enough
    llm.check_head(model, name)


def halving_model():
    """A small model whose own forward halves its logits, which no field of its configuration says."""
    model = small_model("llama")
    own = model.forward

    def halved(*args, **settings):
        out = own(*args, **settings)
        out.logits = out.logits * 0.5
        return out

    model.forward = halved
    return model


def test_a_model_that_changes_its_logits_in_an_unknown_way_is_refused():
    with pytest.raises(UsageError, match="'mine' caps or scales its logits"):
        llm.check_head(halving_model(), "mine")


def test_adapters_take_their_inputs_as_they_are(monkeypatch):
    """As on a GPU: a base in bfloat16, adapters in float32, autocast. PEFT's widening of every input changes nothing
    but the time."""
    from peft.tuners.lora import LoraLayer

    monkeypatch.setattr(llm, "autocast", lambda model: torch.autocast("cpu", torch.bfloat16))
    model, tokenizer = llm.load("assets/tiny", lora_rank=4)
    layers = [m for m in model.modules() if isinstance(m, LoraLayer)]
    for layer in layers:
        layer.base_layer.to(torch.bfloat16)
        torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.1)  # zero at the start: nothing would be said
    seen = []
    for layer in layers:
        layer.lora_A["default"].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))

    def logprobs():
        with torch.no_grad():
            return llm.token_logprobs(model, tokenizer, [[5, 6, 7]], [[8, 1]])[0]

    plain, dtypes = logprobs(), list(seen)
    seen.clear()
    for layer in layers:
        layer.cast_input_dtype_enabled = True
    assert torch.equal(plain, logprobs())
    assert torch.bfloat16 in dtypes and torch.bfloat16 not in seen


# ----------------------------------------------------------------------------------------------------------------- ORM
@pytest.mark.parametrize("rank", [0, 4])
def test_networks_share_what_is_frozen_and_train_apart(rank):
    actor, tokenizer = llm.load("assets/tiny", lora_rank=rank)
    prompt, action = tokenizer.encode(PAGES[0]), tokenizer.encode("log out")

    def score(model):
        return llm.token_logprobs(model, tokenizer, [prompt], [action])[0].sum()

    def step(model):
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
        Net(model, tokenizer, 1, optimizer=optimizer).descend(lambda _: -score(model), [[0]], lambda _: [1])

    at_first = score(actor).item()
    step(actor)
    critic = llm.copy_network(actor)
    args = webrl.Args(model_id="assets/tiny", lora_rank=rank)
    judge = webrl.make_orm(net_of(actor, tokenizer, args), args).model
    trained = score(actor).item()
    assert score(critic).item() == trained != at_first  # the critic starts as the trained actor ...
    assert score(judge).item() == pytest.approx(at_first, abs=1e-5)  # ... and the judge as the base
    earlier = webrl.make_orm(net_of(actor, tokenizer, args), replace(args, orm_model_id="assets/orm")).model
    assert score(earlier).item() == pytest.approx(score(llm.load("assets/orm")[0]).item(), abs=1e-5) != at_first
    for other in (critic, judge):
        step(other)
    assert score(actor).item() == trained != score(critic).item() and score(judge).item() != pytest.approx(at_first)
    frozen, trainable = (
        [{p.data_ptr() for p in m.parameters() if p.requires_grad is flag} for m in (actor, critic, judge)]
        for flag in (False, True)
    )
    assert bool(frozen[0]) == bool(rank) and frozen[0] == frozen[1] == frozen[2]
    assert not trainable[0] & trainable[1] and not trainable[0] & trainable[2] and not trainable[1] & trainable[2]


def test_adapters_on_adapters_are_refused(tmp_path):
    model, _ = llm.load("assets/tiny", lora_rank=2)
    model.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="merge it first"):
        llm.load(str(tmp_path), lora_rank=2)


@pytest.mark.parametrize("rank", [0, 4])
def test_trained_weights_come_back_from_a_checkpoint(tmp_path, rank):
    model, tokenizer = llm.load("assets/tiny", lora_rank=rank)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.01)
    model.save_pretrained(tmp_path)
    again, _ = llm.load("assets/tiny", lora_rank=rank)
    prompt = tokenizer.encode(PAGES[1])
    wanted = llm.hidden_states(model, tokenizer, [prompt])[0]
    assert not torch.equal(llm.hidden_states(again, tokenizer, [prompt])[0], wanted)
    llm.load_trained(again, tmp_path)
    assert torch.equal(llm.hidden_states(again, tokenizer, [prompt])[0], wanted)


def test_the_judge_compares_two_logits(tiny):
    model, tokenizer = tiny
    prompts = [tokenizer.encode(p) for p in PAGES]
    yes, no = orm.answer_ids(tokenizer, prompts[0])
    assert yes != no
    got = orm.p_yes(net_of(model, tokenizer, webrl.Args()), prompts)
    for prompt, p in zip(prompts, got, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt])).logits[0, -1]
        assert p == pytest.approx(torch.softmax(logits[[yes, no]], 0)[0].item(), abs=1e-4)


def test_the_judge_learns():
    model, tokenizer = llm.load("assets/tiny")
    rng = random.Random(0)
    words = ["red", "blue", "lamp", "mug"]
    prompts, labels = [], []
    for _ in range(64):
        a, b = rng.choice(words), rng.choice(words[:2])
        prompts.append(tokenizer.encode(f'page "{a}"\nTask Instruction: {b}\nSuccess:'))
        labels.append(a in words[:2])
    net = net_of(model, tokenizer, webrl.Args(), 3e-3)
    orm.train(net, prompts, labels, 16, 8, seed=0)
    quality = orm.quality(orm.p_yes(net, prompts), labels)
    assert quality["accuracy"] > 0.95 and quality["auc"] > 0.95
    unmarked = [[0] * len(prompt) for prompt in prompts]  # chat formats mark no words of the instruction
    assert math.isfinite(orm.train(net, prompts, labels, 16, 1, 0, unmarked, lm_weight=0.3))


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_quality_against_slow_counts(threshold):
    rng = random.Random(1)
    scores = [round(rng.random(), 1) for _ in range(60)]
    labels = [rng.random() < 0.3 + 0.4 * s for s in scores]
    got = orm.quality(scores, labels, threshold)
    positive = [s for s, y in zip(scores, labels, strict=True) if y]
    negative = [s for s, y in zip(scores, labels, strict=True) if not y]
    pairs = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    assert got["auc"] == pytest.approx(sum(pairs) / len(pairs))
    said_yes = [y for s, y in zip(scores, labels, strict=True) if s > threshold]
    assert got["precision"] == pytest.approx(sum(said_yes) / len(said_yes))
    assert got["accuracy"] == pytest.approx(sum((s > threshold) == y for s, y in zip(scores, labels, strict=True)) / 60)
