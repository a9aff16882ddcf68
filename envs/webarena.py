"""WebArena's task JSON and its evaluators; the arena uses the same ones.

Three evaluators, `string_match`, `url_match` and `program_html`, whose scores are multiplied. WebArena (Zhou et al.
2024) and WebArena-Lite (VisualAgentBench) score by code that differs in places; `rules` says whose is meant:

    own       the arena's and your own sites': WebArena-Lite's, but base path and query of a url_match are compared
              separately, as WebArena does
    lite      WebArena-Lite's: ` |OR|` in must_include and must_exclude, the one-token rule for every reference of one
              token, fuzzy references joined by ", ", addresses compared as strings, localhost read as 127.0.0.1
    original  WebArena's: ` |OR|` on pages only, the one-token rule for an answer's only reference if it is one
              character, every fuzzy reference asked for by itself, addresses by base path and query

docs/webarena.md has an example of each difference. WebArena hands the expressions in its JSON to `eval`. Here nothing
is ever evaluated as code: `parse_locator` and `parse_helper` read the accepted forms into data, a fixed script in the
page walks that data, and everything else is refused by `check` when a task is loaded.
"""

import html
import inspect
import json
import re
from urllib.parse import parse_qs, urlsplit

from common.errors import UsageError
from envs import Task

OR = " |OR| "
AND = " |AND| "  # between the addresses of a start_url: a tab for each, the first one in front
REFERENCES = ("exact_match", "must_include", "must_exclude", "fuzzy_match")
RULES = ("own", "lite", "original")
MAX_STEPS = 30


# ---- the task JSON ----


def load(path, api=True):
    """Read a WebArena task file; an entry may say its `split` ("test" without it).

    Returns (tasks, refused): a Task per usable entry, placeholders such as `__REDDIT__` still in its config, and a dict
    task_id -> reason for the entries that `check` refuses. Raises UsageError, naming the task, when the file is not
    such a list or an entry lacks a key.
    """
    try:
        with open(path, encoding="utf-8") as file:
            configs = json.load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not a WebArena task file: {type(error).__name__}: {error}") from None
    if not isinstance(configs, list) or not all(isinstance(config, dict) for config in configs):
        raise UsageError(f"{path} is not a WebArena task file: it holds no list of tasks")
    tasks, refused = [], {}
    for number, config in enumerate(configs):
        name = str(config.get("task_id", f"number {number}"))
        try:
            task = Task(
                task_id=str(config["task_id"]),
                site="+".join(config["sites"]),
                instruction=config["intent"],
                max_steps=MAX_STEPS,
                split=config.get("split", "test"),
                template=str(config.get("intent_template_id", "")),
                config=config,
            )
            check(config, api)
            tasks.append(task)
        except UsageError as error:
            refused[name] = str(error)
        except KeyError as error:
            raise UsageError(f"{path}: task {name}: the key {error} is missing") from None
        except (TypeError, AttributeError) as error:
            raise UsageError(f"{path}: task {name}: a value is of the wrong type ({error})") from None
    return tasks, refused


def check(config, api=False):
    """Raise UsageError, one line, when the task's `eval` holds anything that `evaluate` has no rule for; `api` says
    whether there is a shop to ask (API_HELPERS)."""
    rules = config["eval"]
    where = f"task {config.get('task_id', '?')}: "
    for kind in rules["eval_types"]:
        if kind not in ("string_match", "url_match", "program_html"):
            raise UsageError(f"{where}unknown eval_type {kind!r}")
    url_helpers = URL_HELPERS | (API_URL_HELPERS if api else {})
    page_helpers = PAGE_HELPERS | (API_HELPERS if api else {})
    if "string_match" in rules["eval_types"]:
        _check_references(where, rules["reference_answers"])
    if "url_match" in rules["eval_types"] and rules.get("url_note") not in (None, "", "EXACT", "GOLD in PRED"):
        raise UsageError(f"{where}unknown url_note {rules['url_note']!r}")
    if "program_html" in rules["eval_types"]:
        for target in rules["program_html"]:
            try:
                if target["url"].startswith("func:"):
                    parse_helper(target["url"], url_helpers)
                if target["locator"].startswith("func:"):
                    parse_helper(target["locator"], page_helpers)
                else:
                    parse_locator(target["locator"])
                for action in target.get("prep_actions", ()):
                    parse_click(action)
            except ValueError as error:
                raise UsageError(f"{where}{error}") from None
            _check_references(where, target["required_contents"])


def _check_references(where, references):
    if not references or set(references) - set(REFERENCES):
        raise UsageError(f"{where}unknown reference {list(references or [])}, known are {', '.join(REFERENCES)}")


def resolve(value, sites):
    """Replace placeholders in a string or in every string of a list or dict; {"FORUM": address} fills `__FORUM__`.

    A string that still holds an upper-case placeholder afterwards raises UsageError naming it.
    """
    if isinstance(value, dict):
        return {key: resolve(item, sites) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve(item, sites) for item in value]
    if not isinstance(value, str):
        return value
    for name, url in sites.items():
        value = value.replace(f"__{name}__", url.rstrip("/"))
    missing = re.search(r"__([A-Z][A-Z_]*[A-Z])__", value)
    if missing:
        raise UsageError(f"no URL is set for the site {missing[0]}")
    return value


# ---- what a program_html check may ask of a page ----

# func: helpers by name, with the number of arguments: all that the published tasks name. The API helpers ask the
# shop's REST interface (envs/webarena_sites.py), the others need the page alone.
URL_HELPERS = {"reddit_get_post_url": 1}
PAGE_HELPERS = {"gitlab_get_project_memeber_role": 2}
API_URL_HELPERS = {"shopping_get_latest_order_url": 0}
API_HELPERS = {"shopping_get_sku_latest_review_author": 1, "shopping_get_sku_latest_review_rating": 1}

_WALK = ("firstElementChild", "lastElementChild", "firstChild", "lastChild", "nextElementSibling", "parentElement")
_READ = ("outerText", "innerText", "textContent", "value", "checked", "selectedIndex", "className", "href", "title")
_STEP = re.compile(
    r"""\.(?P<query>querySelector|querySelectorAll)\((?P<q>['"])(?P<selector>.*?)(?P=q)\)"""
    r"""|\[(?P<index>\d+)\]"""
    rf"""|\??\.(?P<walk>{"|".join(_WALK)})\b"""
    rf"""|\??\.(?P<read>{"|".join(_READ)})\b(?:\.toString\(\))?"""
    r"""|\??\.getAttribute\((?P<a>['"])(?P<attribute>[\w-]+)(?P=a)\)"""
)
# the one spelling of "all links and images below X" in the published tasks
_LINKS = re.compile(
    r"""\[\.\.\.(?P<base>document.*)\.querySelectorAll\('\[href\],\[src\]'\)\]"""
    r"""\.map\(elem => elem\.getAttribute\('href'\) \|\| elem\.getAttribute\('src'\)\)\.join\(' '\)$"""
)

READ_JS = """
(terms) => terms.map((term) => {
  let at = document;
  try {
    for (const [op, arg] of term.steps) {
      if (op === "one") at = at.querySelector(arg);
      else if (op === "all") at = at.querySelectorAll(arg);
      else if (op === "index") at = at[arg];
      else if (op === "walk" || op === "read") at = at[arg];
      else if (op === "click") at = at.click() || "";
      else if (op === "attribute") at = at.getAttribute(arg);
      else if (op === "links") {
        const links = [...at.querySelectorAll("[href],[src]")];
        at = links.map((e) => e.getAttribute("href") || e.getAttribute("src")).join(" ");
      } else if (op === "member_role") {
        const names = [...at.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")];
        const row = names.findIndex((e) => e.outerText === "@" + arg);
        at = at.querySelectorAll("td.col-max-role span")[row].outerText;
      }
    }
  } catch (error) {
    at = term.optional ? "" : null;
  }
  return at === undefined ? null : at;
})
"""


def parse_helper(text, table):
    """`func:name('a', 'b')` -> (name, [arguments]); raises ValueError unless `table` has the name at that arity."""
    match = re.fullmatch(r"func:(\w+)\((.*)\)", text.strip())
    arguments = re.findall(r"""\s*(__page__|'[^']*'|"[^"]*")\s*(?:,|$)""", match[2]) if match else []
    if not match or match[1] not in table or len(arguments) != table[match[1]]:
        raise ValueError(f"unsupported helper {text!r}, known are {', '.join(table)}")
    return match[1], [argument.strip("'\"") for argument in arguments]


def parse_locator(text):
    """Read a locator into the list of terms that READ_JS walks: [{"steps": [[op, argument], ...], "optional": bool}].

    Accepted: "" (whole page, no terms); chains such as `document.querySelector('#a').lastElementChild.outerText` or
    `document.querySelectorAll('a')[1].getAttribute('href')`; sums of them, `(chain || '')` being a part that may be
    missing; "all links below X" as the published tasks spell it; `func:` page helpers. Raises ValueError otherwise.
    """
    text = text.strip()
    if not text:
        return []
    if text.startswith("func:"):
        _, arguments = parse_helper(text, PAGE_HELPERS)
        return [{"steps": [["member_role", arguments[1]]], "optional": False}]
    terms = []
    for part in re.split(r" \+ (?=document\.|\(document\.|\[\.\.\.document)", text):
        optional = re.fullmatch(r"\((.*) \|\| ''\)", part)
        chain = optional[1] if optional else part
        links = _LINKS.match(chain)
        steps, readable = _chain(links["base"] if links else chain)
        if links:
            steps.append(["links", None])
        elif not readable:
            raise ValueError(f"unsupported locator {text!r}: it must end in {', '.join(_READ)} or getAttribute")
        terms.append({"steps": steps, "optional": bool(optional)})
    return terms


def parse_click(text):
    """Read a prep_action, `document.querySelector('#a').click()`, into a term whose value is "" whether the element is
    there or not. Raises ValueError for anything else."""
    chain = re.fullmatch(r"(document\..*)\.click\(\)", text.strip())
    steps, readable = _chain(chain[1]) if chain else ([], True)
    if readable:
        raise ValueError(f"unsupported prep_action {text!r}: only clicks are")
    return {"steps": [*steps, ["click", None]], "optional": True}


def _chain(text):
    if not text.startswith("document."):
        raise ValueError(f"unsupported locator {text!r}")
    at, steps, readable = len("document"), [], False
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or readable:
            raise ValueError(f"unsupported locator {text!r}: cannot read {text[at:]!r}")
        readable = bool(match["read"] or match["attribute"])
        if match["query"]:
            steps.append(["one" if match["query"] == "querySelector" else "all", match["selector"]])
        elif match["index"]:
            steps.append(["index", int(match["index"])])
        elif match["walk"]:
            steps.append(["walk", match["walk"]])
        elif match["read"]:
            steps.append(["read", match["read"]])
        else:
            steps.append(["attribute", match["attribute"]])
        at = match.end()
    return steps, readable


async def read(page, locator, prep_actions=()):
    """What `locator` selects on a Playwright page after the clicks of `prep_actions`, as a string; "" where the page
    has no such element.

    The whole page ("") is its HTML with entities decoded, as in WebArena: some references are found in attributes.
    """
    terms = parse_locator(locator)
    if prep_actions:
        await page.evaluate(READ_JS, [parse_click(action) for action in prep_actions])
    if not terms:
        return html.unescape(await page.content())
    values = await page.evaluate(READ_JS, terms)
    return "" if None in values else "".join(str(value) for value in values)


def post_url(url):
    """The address of the post that a forum URL (`/f/board/id/...`) belongs to; other URLs come back unchanged."""
    parts = urlsplit(url)
    path = parts.path.split("/")
    if len(path) < 4 or path[1] != "f":
        return url
    return f"{parts.scheme}://{parts.netloc}/f/{path[2]}/{path[3]}/"


# ---- matching rules ----


def clean(text):
    """Lower-case, without surrounding blanks and one pair of quotes."""
    text = str(text).strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def tokens(text):
    """Words and punctuation marks, close to nltk's word_tokenize."""
    text = re.sub(r"""(\.{2,}|--|[;@#$%&?!()\[\]{}<>"“”‘’«»`*–—]|[:,](?!\d))""", r" \1 ", text)
    text = re.sub(r"""(?<=[^\s.])\.(?=[\s"')\]}>]*(?:\s|$))""", " . ", text)
    text = re.sub(r"(?i)(?<=\w)(n't|'(?:s|m|d|ll|re|ve)|')(?=\s|$)", r" \1", text)
    return re.sub(r"(?<!\S)'(?!ve\b|ll\b|re\b)(?=\w{2})", "' ", text).split()


def exact_match(reference, text):
    return clean(reference) == clean(text)


def must_include(reference, text):
    """Is one of the ` |OR|` alternatives in `text`? A one-token reference must be a whole token (0 is not in 10)."""
    text = clean(text)
    words = None
    for option in map(clean, reference.split(OR)):
        if len(tokens(option)) == 1:
            if words is None:
                words = set(tokens(text))
                words.update(*(word.split("/") for word in list(words)))
            if option in words:
                return True
        elif option in text:
            return True
    return False


def same_words(question, reference, answer):
    """The default judge: every comma-separated part of the reference occurs, word for word, in the answer.

    Deterministic and strict; a model that knows paraphrases can stand in for it. `question` is there for such a model.
    """

    def plain(text):
        return f" {' '.join(re.findall(r'[a-z0-9]+(?:[.,:][0-9]+)*', str(text).lower()))} "

    parts = [plain(part) for part in re.split(r", (?!\d{3}\b)", reference)]
    return any(part.strip() for part in parts) and all(part in plain(answer) for part in parts)


def _listed(value):
    # WebArena-Lite's task 81 has a bare string where a list is meant: its own scorer can never pass that task
    return [value] if isinstance(value, str) else value


def _included(item, text, rules, on_page, alone):
    """Does `text` (of a page, or an answer) hold the reference `item`, an answer's only one (`alone`) or not?"""
    if rules != "original":
        return must_include(item, text)
    if alone and not on_page and len(clean(item)) == 1:
        return clean(item) in tokens(clean(text))
    return any(clean(option) in clean(text) for option in (item.split(OR) if on_page else [item]))


async def _match(references, text, config, judges, rules, on_page=False):
    """Do all rules of a `reference_answers` or `required_contents` dict accept `text`?"""

    async def judged(judge, reference):
        verdict = judge(config["intent"], reference, text)
        return bool(await verdict if inspect.isawaitable(verdict) else verdict)

    same_answer, same_reason = judges
    for rule, value in references.items():
        if rule == "exact_match":
            passed = exact_match(value, text)
        elif rule == "must_include":
            passed = all(_included(item, text, rules, on_page, len(_listed(value)) == 1) for item in _listed(value))
        elif rule == "must_exclude":
            passed = not any(must_include(item, text) for item in _listed(value))
        elif not text.strip():
            passed = False
        elif value == "N/A":  # fuzzy_match of an impossible task: "N/A" itself, or the reason by the judge
            note = config["eval"].get("string_note", "")
            passed = exact_match(value, text) or (bool(note) and await judged(same_reason, note))
        elif rules == "original" and not on_page:
            passed = all([await judged(same_answer, item) for item in _listed(value)])
        else:
            passed = await judged(same_answer, ", ".join(_listed(value)))
        if not passed:
            return False
    return True


def url_match(reference, url, rule, rules="own"):
    """Does `url` fit one of the ` |OR|` references? The fragment does not count but by the Lite rules.

    own, original: scheme does not count. "GOLD in PRED": the reference's host and path are contained in the url's, and
    each of its query fields has one of the references' values. "EXACT": host, path and query are the same. own: slashes
    at the end do not count, localhost is 127.0.0.1.
    lite: the two as strings, without a slash at the end, localhost as 127.0.0.1. "GOLD in PRED": one is in the other.
    """
    if rules == "lite":
        urls = (url, *reference.split(OR))
        url, *golds = (u.strip().replace("localhost", "127.0.0.1").removesuffix("/") for u in urls)
        return url in golds if rule == "EXACT" else any(gold in url for gold in golds)

    def parts(address):
        address = address.strip().rstrip("/")
        if rules == "original":
            split = urlsplit(address)
            return split.netloc + split.path, parse_qs(split.query)
        split = urlsplit(address.replace("localhost", "127.0.0.1"))
        return (split.netloc + split.path).rstrip("/"), parse_qs(split.query, keep_blank_values=True)

    base, query = parts(url)
    golds = [parts(gold) for gold in reference.split(OR)]
    if rule == "EXACT":
        return (base, query) in golds
    wanted = {}
    for _, fields in golds:
        for key, values in fields.items():
            wanted.setdefault(key, set()).update(values)
    return any(gold in base for gold, _ in golds) and all(
        values & set(query.get(key, ())) for key, values in wanted.items()
    )


def _url_rule(config, rules):
    """ "EXACT" or "GOLD in PRED"; without a note WebArena means the latter, WebArena-Lite (whose entries have an
    old_task_id) "EXACT"."""
    exact = rules == "lite" or (rules == "own" and "old_task_id" in config)
    return config["eval"].get("url_note") or ("EXACT" if exact else "GOLD in PRED")


async def _target_text(target, url, fetch, api):
    """What a program_html target looks at, None where its address cannot be had."""
    address, locator = target["url"], target["locator"]
    if address.startswith("func:"):
        name, arguments = parse_helper(address, URL_HELPERS | API_URL_HELPERS)
        if name in API_URL_HELPERS:
            address = await api(name, arguments)
        else:
            address = post_url(arguments[0].replace("__last_url__", url))
    if not address:
        return None
    if locator.startswith("func:") and re.match(r"func:(\w+)", locator)[1] in API_HELPERS:
        return await api(*parse_helper(locator, API_HELPERS))
    prep_actions = target.get("prep_actions")
    return await fetch(address, locator, *([prep_actions] if prep_actions else []))


async def evaluate(config, answer, url, fetch, judge=None, same_reason=None, api=None, rules="own"):
    """Score the end of an episode: 1.0 or 0.0, the product of the scores of the task's eval_types.

    config: the task's JSON with its placeholders resolved. answer: the message of the closing exit, "" without one.
    url: the focused page's address. fetch: `await fetch(url, locator) -> str`, supplied by the environment, reads a
    locator on the focused page ("last") or on another address in the same session without disturbing the agent's page
    (`read` does the reading); a third argument, where there is one, is the clicks to do there before. judge:
    `judge(question, reference, answer) -> bool`, plain or a coroutine; default `same_words`. same_reason: the same
    question, of a reason why the task cannot be done; default `judge`. api: `await api(helper's name, arguments) ->
    str` asks the shop, for the tasks that need it. rules: one of RULES. Raises UsageError for an expression outside the
    accepted forms; what fetch, judge and api raise passes through.
    """
    check(config, api is not None)
    judge = judge or same_words
    judges = judge, same_reason or judge
    for kind in config["eval"]["eval_types"]:
        if kind == "string_match":
            passed = await _match(config["eval"]["reference_answers"], answer or "", config, judges, rules)
        elif kind == "url_match":
            passed = url_match(config["eval"]["reference_url"], url, _url_rule(config, rules), rules)
        else:
            passed = True
            for target in config["eval"]["program_html"]:
                text = await _target_text(target, url, fetch, api)
                if text is not None and rules == "original" and target["locator"].strip():
                    text = html.unescape(text)  # the whole page is decoded by `read`, in all rules
                passed = text is not None and await _match(
                    target["required_contents"], text, config, judges, rules, on_page=True
                )
                if not passed:
                    break
        if not passed:
            return 0.0
    return 1.0
