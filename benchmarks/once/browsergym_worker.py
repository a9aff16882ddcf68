"""One BrowserGym environment, driven by lines of JSON on stdin: the other side of browser.py and ../miniwob.py.

Run by the interpreter of an environment that has browsergym-core (docs/browser.md), never by hand. What is measured is
BrowserGym's own `BrowserEnv.reset` and `BrowserEnv.step` with its own action functions. Two things are put in from
outside: the Chromium to start, because its chat window's launch takes no path, and what names an episode: a cookie on
the arena, in MiniWoB++ the number that its task would draw.
"""

import functools
import json
import os
import sys
import time

# A page line's kind in our text -> the roles it can have in BrowserGym's accessibility tree.
ROLES = {
    "link": ("link",),
    "button": ("button",),
    "box": ("textbox", "searchbox", "spinbutton"),
    "select": ("combobox", "listbox", "MenuListPopup"),
    "check": ("checkbox",),
    "radio": ("radio",),
}


def plain(text):
    """A label as our page text has it: style sheets may capitalise what the accessibility tree then says."""
    return " ".join(str(text).lower().replace('"', "'").split())


def find_bid(nodes, kind, label):
    """The bid of the first element on the page of that kind and label. Raises LookupError if there is none."""
    found = [
        int(node["browsergym_id"])  # counted in document order
        for node in nodes
        if node.get("browsergym_id", "").isdecimal()
        and node.get("role", {}).get("value") in ROLES.get(kind, ())
        and plain(node.get("name", {}).get("value", "")) == plain(label)
    ]
    if not found:
        raise LookupError(f"no {kind} {label!r} in the accessibility tree")
    return str(min(found))


def action_text(move, bid):
    """A move of the arena's oracle as BrowserGym's action."""
    argument = move["argument"]
    return {
        "Click": f"click({bid!r})",
        "Type": f"fill({bid!r}, {argument!r})",
        "Search": f"fill({bid!r}, {argument!r})\npress({bid!r}, 'Enter')",
        "Select Dropdown Option": f"select_option({bid!r}, {argument!r})",
    }[move["op"]]


def miniwob_task():
    """BrowserGym's MiniWoB++ task, with the page and the number it draws given."""
    from browsergym.miniwob.base import AbstractMiniwobTask

    class Drawn:
        def __init__(self, number):
            self.number = number

        def randint(self, *bounds):
            return self.number

    class MiniwobTask(AbstractMiniwobTask):
        def __init__(self, seed, page, page_seed, base_url):
            self.subdomain = page
            super().__init__(seed, base_url)
            self.random = Drawn(page_seed)

    return MiniwobTask


def make_env(chromium, zeroed, miniwob=False):
    """BrowserGym's environment at its defaults, or with slow_mo and the delay before an observation at zero."""
    import browsergym.core
    from browsergym.core.env import BrowserEnv
    from browsergym.core.task import OpenEndedTask

    browser_type = browsergym.core._get_global_playwright().chromium
    browser_type.launch = functools.partial(browser_type.launch, executable_path=chromium)

    class ArenaTask(OpenEndedTask):
        def __init__(self, seed, start_url, goal, cookies):
            super().__init__(seed, start_url, goal)
            self.cookies = cookies

        def setup(self, page):
            page.context.add_cookies([{"name": k, "value": v, "url": self.start_url} for k, v in self.cookies.items()])
            return super().setup(page)

    task = miniwob_task() if miniwob else ArenaTask
    return BrowserEnv(task, **({"slow_mo": 0, "pre_observation_delay": 0.0} if zeroed else {}))


def main():
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints is no reply
    options = json.loads(sys.argv[1])
    env, obs = make_env(**options), None
    try:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if request["do"] == "reset":
                    env.task_kwargs = request["task"]
                    begin = time.perf_counter()
                    (obs, _), reward = env.reset(seed=0), 0.0
                else:
                    move = request["move"]
                    action = action_text(move, find_bid(obs["axtree_object"]["nodes"], move["kind"], move["label"]))
                    begin = time.perf_counter()
                    obs, reward, *_ = env.step(action)
                seconds = time.perf_counter() - begin
                reply = {"seconds": seconds, "url": obs["url"], "error": obs["last_action_error"]}
                reply["reward"] = float(reward)
            except LookupError as error:
                reply = {"lost": str(error)}
            print(json.dumps(reply), file=replies, flush=True)
    finally:
        env.close()


if __name__ == "__main__":
    main()
