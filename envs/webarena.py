"""WebArena's task JSON and its evaluators; the arena uses the same ones.

Three evaluators, `string_match`, `url_match` and `program_html`, whose scores are multiplied. WebArena (Zhou et al.
2024) and WebArena-Lite (VisualAgentBench) score by code that differs in places; `rules` says whose is meant:

    own       the arena's and your own sites': WebArena-Lite's, but texts are read as a person sees them (`plain`),
              words of scripts without spaces are found (`contains`), and of addresses host, path, route behind the #
              and query are compared separately, each in one spelling (`url_parts`)
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
import unicodedata
from urllib.parse import parse_qs, unquote, urlsplit

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
    task_id -> reason for the entries that `check` refuses. Raises UsageError, naming line and task, when the file is
    not such a list or an entry lacks a key.
    """
    tasks, refused, lines = [], {}, {}
    for number, (line, config) in enumerate(read_entries(path)):
        name = str(config.get("task_id", f"number {number}"))
        where = f"{path}: line {line}: task {name}"
        if name in lines:
            raise UsageError(f"{where}: this task_id is that of line {lines[name]}, too")
        lines[name] = line
        try:
            task = Task(
                task_id=str(config["task_id"]),
                site="+".join(_listed(config["sites"])),
                instruction=text_of(config, "intent"),
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
            raise UsageError(f"{where}: the key {error} is missing") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{where}: a value is of the wrong type ({error})") from None
    return tasks, refused


def read_entries(path):
    """The entries of a task file, which is a JSON list, or has one object after the other (as a rule one a line):
    [(the line on which it begins, the entry)]. Raises UsageError, one line, for a file that is neither."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        entries = _values(data.decode(json.detect_encoding(data)))  # UTF-8 or -16, with a byte order mark or without
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}: line {error.lineno}: no JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error}") from None
    return entries


def _values(text):
    """[(line, object)] of JSON in one of the two forms. Raises ValueError, with the line."""
    decoder, between, values, line, counted, at = json.JSONDecoder(), re.compile(r"[\s,]*"), [], 1, 0, 0
    listed = text.lstrip().startswith("[")
    if listed:
        json.loads(text)  # whole, and nothing is behind it
        at = text.index("[") + 1
    while (at := between.match(text, at).end()) < len(text) and not (listed and text[at] == "]"):
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {line}: no JSON object ({error.msg})") from None
        if not isinstance(value, dict):
            raise ValueError(f"line {line}: no JSON object")
        values.append((line, value))
    return values


def text_of(config, key):
    """`config[key]`, a text that is not blank. Raises KeyError, or ValueError."""
    if not isinstance(config[key], str) or not config[key].strip():
        raise ValueError(f"{key} is {config[key]!r}, not a text")
    return config[key]


def check(config, api=False):
    """Raise UsageError, one line with the task's number, when the task's `eval` holds anything that `evaluate` has no
    rule for; `api` says whether there is a shop to ask (API_HELPERS)."""
    try:
        check_rules(config["eval"], api)
    except ValueError as error:
        raise UsageError(f"task {config.get('task_id', '?')}: {error}") from None


def check_rules(rules, api=False):
    """The same for the `eval` alone: ValueError for what has no rule, is of the wrong type, or checks nothing."""
    kinds = rules.get("eval_types") if isinstance(rules, dict) else None
    if not isinstance(kinds, list) or not kinds:
        raise ValueError(f"eval has no list of eval_types, so nothing is checked (eval_types is {kinds!r})")
    for kind in kinds:
        if kind not in ("string_match", "url_match", "program_html"):
            raise ValueError(f"unknown eval_type {kind!r}")
    if "string_match" in kinds:
        _check_references("reference_answers", rules.get("reference_answers"))
        if not clean(plain(rules["reference_answers"].get("exact_match", "-"))):
            raise ValueError("reference_answers: exact_match is blank: an exit without an answer would be right")
    if "url_match" in kinds:
        _check_address(rules.get("reference_url"))
        if rules.get("url_note") not in (None, "", "EXACT", "GOLD in PRED"):
            raise ValueError(f"unknown url_note {rules['url_note']!r}, known are EXACT and GOLD in PRED")
    if "program_html" in kinds:
        targets = rules.get("program_html")
        if not isinstance(targets, list) or not targets or not all(isinstance(target, dict) for target in targets):
            raise ValueError(f"program_html is {targets!r}, not a list of pages to look at")
        for target in targets:
            _check_target(target, api)


def _check_target(target, api):
    url_helpers = URL_HELPERS | (API_URL_HELPERS if api else {})
    page_helpers = PAGE_HELPERS | (API_HELPERS if api else {})
    url, locator = target.get("url"), target.get("locator")
    actions = target.get("prep_actions") or []
    if not isinstance(url, str) or not isinstance(locator, str) or not isinstance(actions, list):
        raise ValueError(f"program_html: url {url!r} or locator {locator!r} is no text, or prep_actions no list")
    if url.startswith("func:"):
        parse_helper(url, url_helpers)
    elif url != "last" and not re.match(r"(?i:https?)://[^/]|__[A-Z][A-Z_]*[A-Z]__", url):
        raise ValueError(f"program_html: url {url!r} is neither an address in full nor last")
    if locator.startswith("func:"):
        parse_helper(locator, page_helpers)
    else:
        parse_locator(locator)
    for action in actions:
        parse_click(str(action))
    _check_references("required_contents", target.get("required_contents"))


def _check_references(name, references):
    known = ", ".join(REFERENCES)
    if not isinstance(references, dict) or not references or set(references) - set(REFERENCES):
        raise ValueError(f"{name} is {references!r}: unknown reference, known are {known}")
    for rule, value in references.items():
        texts = _listed(value)
        may_be_list = rule != "exact_match" and isinstance(texts, list) and texts
        if not (isinstance(value, str) or may_be_list) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{name}: {rule} is {value!r}, not a text{'' if rule == 'exact_match' else ' or a list'}")
        if rule != "exact_match" and not all(clean(plain(option)) for text in texts for option in text.split(OR)):
            raise ValueError(f"{name}: {rule} is {value!r}: what is blank checks nothing")


def _check_address(reference):
    if not isinstance(reference, str) or not reference.strip():
        raise ValueError(f"reference_url is {reference!r}, not an address")
    for gold in reference.split(OR):
        try:
            parts = url_parts(gold, anchors=True)
        except ValueError as error:
            raise ValueError(f"reference_url: {gold!r} is no address ({error})") from None
        if not any(parts):
            raise ValueError(f"reference_url: {gold!r} is no address: it checks nothing")


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


# Scripts that write no spaces between words (or, in Korean, glue particles to them), and pictures: south-east Asian,
# Hangul, symbols, Chinese and Japanese, full-width forms, emoji.
_UNSPACED = re.compile(
    r"[\u0e00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2190-\u2bff\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef"
    r"\U0001b000-\U0001b16f\U0001f000-\U0001faff\U00020000-\U0003ffff]"
)
_LOOK_ALIKES = str.maketrans("\u2018\u2019\u201c\u201d\u2010\u2011", "''\"\"--", "\u00ad\u200b\u2060\ufeff")


def plain(text):
    """A text as a person sees it: accents in one spelling (NFC), blanks of all kinds as one space, curly quotes and
    no-break hyphens as on a keyboard, without what has no width."""
    return " ".join(unicodedata.normalize("NFC", str(text)).translate(_LOOK_ALIKES).split())


def _spaced(text):
    return _UNSPACED.sub(r" \g<0> ", text)


def contains(reference, text):
    """must_include of the own rules, on `plain` texts. Of a script without spaces every character is a token: a word
    of it may stand anywhere, and a number between its characters is whole."""
    spaced = _spaced(text)

    def words(part):
        return f" {' '.join(tokens(clean(part)))} "

    return any(
        words(_spaced(option)) in words(spaced) if _UNSPACED.search(option) else must_include(option, spaced)
        for option in reference.split(OR)
    )


def same_words(question, reference, answer):
    """The default judge: every comma-separated part of the reference occurs, word for word, in the answer.

    Deterministic and strict; a model that knows paraphrases can stand in for it. `question` is there for such a model.
    """

    def words(text):
        kept = "".join(c if unicodedata.category(c)[0] in "LNM" or c in ".,:" else " " for c in _spaced(text).lower())
        found = re.findall(r"[^\s.,:]+(?:[.,:][0-9]+)*", kept)  # letters with their marks, numbers
        return f" {' '.join(found)} "

    answer, parts = words(plain(answer)), [words(part) for part in re.split(r", (?!\d{3}\b)", plain(reference))]
    return any(part.strip() for part in parts) and all(part in answer for part in parts)


def _listed(value):
    # WebArena-Lite's task 81 has a bare string where a list is meant: its own scorer can never pass that task
    return [value] if isinstance(value, str) else value


def _included(item, text, rules, on_page, alone):
    """Does `text` (of a page, or an answer) hold the reference `item`, an answer's only one (`alone`) or not?"""
    if rules == "own":
        return contains(item, text)
    if rules == "lite":
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
    seen = plain if rules == "own" else str
    for rule, value in references.items():
        items = [seen(item) for item in _listed(value)]
        if rule == "exact_match":
            passed = exact_match(seen(value), seen(text))
        elif rule == "must_include":
            passed = all(_included(item, seen(text), rules, on_page, len(items) == 1) for item in items)
        elif rule == "must_exclude":
            passed = not any((contains if rules == "own" else must_include)(item, seen(text)) for item in items)
        elif not text.strip():
            passed = False
        elif value == "N/A":  # fuzzy_match of an impossible task: "N/A" itself, or the reason by the judge
            note = config["eval"].get("string_note", "")
            passed = exact_match(value, seen(text)) or (bool(note) and await judged(same_reason, note))
        elif rules == "original" and not on_page:
            passed = all([await judged(same_answer, item) for item in _listed(value)])
        else:
            passed = await judged(same_answer, ", ".join(_listed(value)))
        if not passed:
            return False
    return True


def url_parts(address, anchors=False):
    """What the own rules compare of an address, each in one spelling: (host and path, route, query fields).

    Scheme and log-in are left out, and a port that is the scheme's own; the host in small letters, localhost as
    127.0.0.1; percent-encoded or not is the same, as are a slash at the end or none. The route is what stands behind
    the # and begins with / or !, as on sites whose pages are told apart there alone (its query is the address's, too);
    with `anchors` whatever stands there. Raises ValueError for what is no address.
    """

    def nfc(text):
        return unicodedata.normalize("NFC", text)

    def decoded(path):  # bytes that are no text stay apart; a slash that is encoded is none
        parts = (unquote(part, errors="surrogateescape").replace("/", "%2F") for part in path.split("/"))
        return nfc("/".join(parts)).rstrip("/")

    split = urlsplit(address.strip())
    host, fragment = split.hostname or "", split.fragment
    if not host.isascii():
        host = host.encode("idna").decode()  # as a browser shows it
    host = "127.0.0.1" if host == "localhost" else host
    own_port = split.port in (None, {"http": 80, "https": 443}.get(split.scheme))
    fragment = fragment if anchors or fragment.startswith(("/", "!")) else ""
    route, _, more = fragment.partition("#")[0].partition("?")
    fields = parse_qs(f"{split.query}&{more}", keep_blank_values=True, errors="surrogateescape")
    fields = {nfc(key): [nfc(value) for value in values] for key, values in fields.items()}
    return host + ("" if own_port else f":{split.port}") + decoded(split.path), decoded(route.removeprefix("!")), fields


def url_match(reference, url, rule, rules="own"):
    """Does `url` fit one of the ` |OR|` references?

    own, original: scheme does not count. "GOLD in PRED": the reference's host and path are contained in the url's, and
    each of its query fields has one of the references' values. "EXACT": host, path and query are the same. original:
    what stands behind a # does not count. own: parts are compared as `url_parts` spells them; what stands behind the
    reference's # has to stand there, and a route must be the reference's; contained is a path by whole segments.
    lite: the two as strings, without a slash at the end, localhost as 127.0.0.1. "GOLD in PRED": one is in the other.
    """
    references = reference.split(OR)
    if rules == "lite":
        url, *golds = (u.strip().replace("localhost", "127.0.0.1").removesuffix("/") for u in (url, *references))
        return url in golds if rule == "EXACT" else any(gold in url for gold in golds)

    def parts(address, anchors):
        if rules == "own":
            return url_parts(address, anchors)
        split = urlsplit(address.strip().rstrip("/"))
        return split.netloc + split.path, "", parse_qs(split.query)

    pairs = [(parts(gold, True), parts(url, "#" in gold)) for gold in references]
    if rule == "EXACT":
        return any(gold == seen for gold, seen in pairs)
    wanted = {}
    for (_, _, fields), _ in pairs:
        for key, values in fields.items():
            wanted.setdefault(key, set()).update(values)
    query = parts(url, any("#" in gold for gold in references))[2]
    end = "/" if rules == "own" else ""  # /user/1 is not in /user/12
    found = any(all(part + end in whole + end for part, whole in zip(gold[:2], seen[:2])) for gold, seen in pairs)
    return found and all(values & set(query.get(key, ())) for key, values in wanted.items())


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
