"""WebGym's task lists on the web sites that they name: instructions with facts that a judge must find on screenshots.

    export WEBGYM_JUDGE=http://localhost:8001/v1      # a vision-language model (envs/webgym_judge.py)
    python tools/eval.py --env-id webgym:train.jsonl+test.jsonl --policy http://localhost:8000/v1
    python webrl.py --env-id webgym --tasks train.jsonl --judge env --demos demos.jsonl --no-curriculum

The task format, the horizons and the steps of the judge are those of github.com/microsoft/webgym; docs/webgym.md lists
what differs. The tasks themselves are not part of this project (Hugging Face: microsoft/webgym_tasks).
"""

from urllib.parse import urlsplit

from common.errors import Blocked, UsageError
from envs import Task, webarena
from envs.site import SPLITS, Site, by_split, draw_split, web_address
from envs.webgym_judge import Episode, RubricJudge

EASY, MEDIUM = 3, 6  # the largest difficulty of these classes; what is above is hard
HORIZONS = {"train": (10, 20, 30), "eval": (10, 20, 30), "test": (30, 50, 70)}  # easy, medium, hard; in steps
SECOND_LEVEL = ("ac", "co", "com", "edu", "gov", "net", "org")  # example.co.uk is a website, co.uk is none


class WebGym(Site):
    """One episode slot; `fork()` gives another one on the same browser.

    `path` is a file of JSON lines, or two joined by "+": what follows is for the split "test" alone. A line has
    `task_name`, `website` and `evaluator_reference` (a text, a list of texts, of {description}, or of {id, description,
    facts}), and may have `difficulty` (without it: the number of facts), `definite_answer` or `reference_answer`,
    `domain`, `subdomain`, `task_id`, `max_steps` and `split`. Where a file says no `split`, websites are drawn: those
    of test are never seen in training or eval, nor those of eval in training.

    The agent may visit the website's host and all below it, or `hosts` (joined by commas) and all below them. The other
    options are those of Site and Browser.start; screenshots are always taken, and the clock is the real one.
    Raises UsageError, one line, for a file that cannot be used.
    """

    title = "WebGym"
    scores_without_exit = True  # a site may have shut out an agent that gave no answer

    def __init__(self, path, **options):
        self._judge = RubricJudge.from_environment()
        super().__init__(path, **{"virtual_clock": False, "timeout": 60.0} | options | {"screenshots": True})

    def _read(self, start_url, hosts):
        if start_url:
            raise UsageError("--start-url is for --env-id site: WebGym's tasks start at their website")
        return read_tasks(self.path, hosts)

    def _clear(self):
        super()._clear()
        self._seen = []  # (screenshot, address) of every observation

    @property
    def notes(self):
        """What is in force, as lines: how many tasks on how many websites, whether test's are new, which judge."""
        websites = {split: {website_of(task.site) for task in tasks} for split, tasks in self._splits.items()}
        counts = [f"{split} {len(self._splits[split])} on {len(names)}" for split, names in websites.items()]
        known = len(websites["test"] & (websites["train"] | websites["eval"]))
        caps = [f"at most {most} {name.lower()}" for name, most in self._judge.most.items() if most]
        return [
            f"tasks on websites: {', '.join(counts)}; of test's, {known} are in train or eval",
            f"judged at {self._judge.url} ({', '.join(caps) or 'no cap on calls or tokens'})",
        ]

    def tasks(self, split):
        """The tasks of "train", "eval" or "test" in the file's order. Raises UsageError where there are none, and where
        there is no judge: after the first episodes would be late."""
        self._judge.require()
        return super().tasks(split)

    async def _begin(self, task):
        await self._judge.start()
        await super()._begin(task)
        self._seen = []

    async def _start(self):
        try:
            return await super()._start()
        except UsageError as error:  # robots.txt, or a start page that does not open: of one website among thousands
            raise Blocked(str(error)) from None

    async def _observe(self, page, error=""):
        obs, info = await super()._observe(page, error)
        self._seen.append((obs["screenshot"], obs["url"]))
        return obs, info

    async def verdict(self, answer):
        """The score, 1.0 or 0.0, that an exit with `answer` gets from the judge. Raises as RubricJudge.score."""
        config = self._task.config
        actions = [f"{action} (on {url})" for action, (_, url) in zip(self._actions, self._seen, strict=False)]
        screenshots = [screenshot for screenshot, _ in self._seen]
        known = self._task.instruction, config["facts"], config["reference"]
        return await self._judge.score(Episode(*known, answer.strip(), actions, screenshots))

    async def close(self):
        """Free the slot; the first slot stops what all share. May be called again."""
        await super().close()
        if self._is_root:
            await self._judge.close()


# --- task files ------------------------------------------------------------------------------------------------------


def read_tasks(path, hosts=""):
    """The tasks of one file, or of two joined by "+", by split, and a config for each address where tasks start
    (`Task.site`). Raises UsageError, one line that names file, line and task."""
    train, _, test = str(path).partition("+")
    tasks = _read_file(train, hosts, ("train", "eval") if test else SPLITS)
    if test:
        tasks += _read_file(test, hosts, ("test",))
    return by_split(tasks), {task.site: task.config for task in tasks}


def _read_file(path, hosts, splits):
    tasks, said = [], None
    for number, row in webarena.read_entries(path):
        name = f", task {str(row.get('task_id', row.get('task_name')))[:60]!r}"
        try:
            said = "split" in row if said is None else said
            if ("split" in row) != said:
                raise ValueError("some lines have a split and some have none: all or none must say it")
            tasks.append(_task(row, number, hosts, splits))
        except ValueError as error:
            raise UsageError(f"{path}: line {number}{name}: {error}") from None
    return tasks


def _task(row, number, hosts, splits):
    """A line as a Task. Raises ValueError for what is missing or of the wrong type."""
    website = _field(row, "website", str)
    start = web_address("website", website if "://" in website else f"https://{website}")
    facts = _facts(row.get("evaluator_reference"))
    difficulty = _field(row, "difficulty", int, len(facts))
    split = _field(row, "split", str, "") or _draw(website_of(start), splits)
    if split not in splits:
        raise ValueError(f"the split is {split!r}; here it may be {', '.join(splits)}")
    steps = HORIZONS[split][(difficulty > EASY) + (difficulty > MEDIUM)]
    config = {
        "start_url": start,
        "sites": _sites(start, [host.strip().lower() for host in hosts.split(",") if host.strip()]),
        "facts": facts,
        "reference": _field(row, "definite_answer", str, "") or _field(row, "reference_answer", str, ""),
    }
    return Task(
        task_id=str(number if row.get("task_id") is None else row["task_id"]),
        site=start,
        instruction=_field(row, "task_name", str),
        max_steps=_field(row, "max_steps", int, steps),
        split=split,
        template="/".join(filter(None, (_field(row, key, str, "") for key in ("domain", "subdomain")))),
        requirements=difficulty,
        config=config,
    )


def _field(row, key, kind, default=None):
    """`row[key]`, a text that is not blank or a positive number; `default`, if there is one, where it is missing, null
    or blank. Raises ValueError."""
    value = row.get(key)
    value = value.strip() if isinstance(value, str) else value
    if value in (None, "") and default is not None:
        return default
    if value in (None, ""):
        raise ValueError(f"{key} is missing")
    if type(value) is not kind or (kind is int and value < 1):
        raise ValueError(f"{key} is {value!r}, not {'a positive whole number' if kind is int else 'a text'}")
    return value


def _facts(reference):
    """One flat list of all forms of `evaluator_reference`; a fact of a group says what the group is about."""
    facts = []
    for item in reference if isinstance(reference, list) else [reference]:
        if not isinstance(item, dict):
            facts.append(item)
        elif "facts" not in item:
            facts.append(item.get("description"))
        elif isinstance(item["facts"], list):
            about = f"[Group {item.get('id', '')}: {item.get('description', '')}]"
            facts += [f"{about} {fact}" if isinstance(fact, str) and fact.strip() else None for fact in item["facts"]]
        else:
            facts.append(None)
    if not facts or not all(isinstance(fact, str) and fact.strip() for fact in facts):
        raise ValueError("evaluator_reference is missing, or not a text, nor a list of texts, descriptions or facts")
    return facts


def _sites(start, hosts):
    """Where the agent may go: origins, whose robots.txt is read, and everything below the hosts."""
    parts = urlsplit(start)
    origins = [f"{parts.scheme}://{host}" for host in (parts.netloc, *hosts)]
    return origins + [f"*.{host.removeprefix('www.')}" for host in hosts or [parts.netloc]]


def website_of(url):
    """What counts as one website: the part of the host that somebody registered, and the port."""
    labels = urlsplit(url).netloc.split(".")
    kept = 3 if len(labels[-1]) == 2 and labels[-2:-1] and labels[-2] in SECOND_LEVEL else 2
    return ".".join(labels[-kept:])


def _draw(website, splits):
    split = draw_split(website)
    return split if split in splits else splits[0]
