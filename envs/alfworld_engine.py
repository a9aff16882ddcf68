"""ALFWorld's own engine, made fast enough to train in: TextWorld's PddlEnv, ALFWorld's domain, grammar and names.

What the engine does depends on nothing but the state and the command, so every transition is asked of it once and kept
(`Game`). Its texts and commands stay byte for byte the same (tests/test_alfworld.py compares them).
"""

import contextlib
import copy
import functools
import json
import random
import re
import subprocess
import sys
import threading
import types
import weakref
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

from common.errors import EnvFault, UsageError
from envs.text import Page

ROOM = "You are in the middle of a room. Looking quickly around you, "
BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"
NOTHING = "Nothing happens."
HIDDEN = "help"  # a list of verbs; the engine offers it in every state, and does it if asked
MAX_STATES = 4000  # known states of a game (about 5 KB each); past that it learns anew
PLAN_SECONDS, PLAN_BYTES = 30, 4 << 30
LOCK = threading.RLock()  # the translator and the parsers have global state


@functools.cache
def engine():
    """TextWorld and ALFWorld, imported and patched once. Raises UsageError where they are not installed."""
    argv, sys.argv = sys.argv, ["translate.py", "domain", "task"]  # the translator's options read it when imported
    try:
        import alfworld.agents.environment.alfred_tw_env as alfred
        import fast_downward
        import textworld.envs.pddl.textgen as textgen
        from alfworld.agents.expert import HandCodedTWAgent
        from alfworld.gen.constants import OBJECTS
        from fast_downward.translate import options, translate  # noqa: F401
        from textworld import EnvInfos
        from textworld.envs.pddl import PddlEnv
        from textworld.envs.pddl.logic import Atom
        from textworld.logic import Placeholder, Rule, Variable
    except ImportError as error:
        raise UsageError(f"ALFWorld is not installed ({error}): pip install -r requirements-alfworld.txt") from None
    finally:
        sys.argv = argv
    # The same few expressions are parsed for every word of text. What the one parser returns is filled in by its
    # caller, hence copied; what the other returns is only read, and so are the things in a context.
    textgen._parse_and_convert = _copied(functools.lru_cache(None)(textgen._parse_and_convert))
    textgen.copy_context = _copy_context
    Rule.parse_conjunctive_query = functools.lru_cache(None)(Rule.parse_conjunctive_query)
    # The translator prints, and its caller puts a buffer in sys.stdout's place: other threads' prints would vanish.
    fast_downward.interface.CapturingStdout = contextlib.nullcontext
    for name in [name for name in sys.modules if name.startswith("fast_downward.translate")]:
        sys.modules[name].print = _print_to_file
    fast_downward.pddl2sas = translator = _Translator(fast_downward.pddl2sas)
    # Every PddlEnv loads a copy of the planner's library. To unload one can crash the process (a later load of another
    # copy does), to keep all takes 2 MB a game: so they are used again.
    libraries, load_lib = [], fast_downward.load_lib
    fast_downward.load_lib = lambda: libraries.pop() if libraries else load_lib()
    data = Path(alfred.__file__).parents[2] / "data"
    return types.SimpleNamespace(
        AlfredDemangler=alfred.AlfredDemangler, PddlEnv=PddlEnv, EnvInfos=EnvInfos, Expert=HandCodedTWAgent, Atom=Atom,
        Operator=fast_downward.Operator, Placeholder=Placeholder, Variable=Variable, OBJECTS=frozenset(OBJECTS),
        libraries=libraries, translator=translator,
        domain=(data / "alfred.pddl").read_text(), grammar=(data / "alfred.twl2").read_text(),
        versions=f"alfworld {version('alfworld')}, textworld {version('textworld')}",
    )  # fmt: skip


def _print_to_file(*args, file=None, **kwargs):
    if file is not None:
        print(*args, file=file, **kwargs)


def _copied(parse):
    return lambda *args, **kwargs: copy.deepcopy(parse(*args, **kwargs))


def _copy_context(context):
    return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}


class _Translator:
    """fast_downward.pddl2sas; a game's second translation, which only the planner reads, is made only if `plans`."""

    def __init__(self, pddl2sas):
        self.pddl2sas, self.plans, self.last = pddl2sas, True, None

    def __call__(self, domain, problem, verbose=False, optimize=False):
        if self.plans or not optimize:
            self.last = self.pddl2sas(domain, problem, verbose=verbose, optimize=optimize)
        return self.last


@contextlib.contextmanager
def guarded(what, seed=0):
    """One thread at a time, `random` begins at `seed`; it and sys.argv, which the translator sets, are put back. An
    error is an EnvFault."""
    with LOCK:
        argv, state = sys.argv, random.getstate()
        random.seed(seed)
        try:
            yield
        except (Exception, SystemExit) as error:  # SystemExit: the translator's word for a problem it cannot read
            raise EnvFault(f"ALFWorld's engine, {what}: {type(error).__name__}: {error}") from error
        finally:
            sys.argv = argv
            random.setstate(state)


class State:
    """A state of a game: `facts` are those that actions changed and something reads, `path` leads there."""

    __slots__ = ("actions", "edges", "elements", "facts", "operators", "path", "won")

    def __init__(self, facts, path, operators, won):
        self.facts, self.path, self.operators, self.won = facts, path, operators, won
        self.actions = tuple(sorted(command for command in operators if command != HIDDEN))
        self.elements = tuple((action, "link" if action.startswith("go to ") else "button") for action in self.actions)
        self.edges = {}  # command: (page, state)

    def page(self, text, error=""):
        """The page that says `text` in this state. Its compact form is in lower case and leaves out the task, which is
        `obs["goal"]`, and what every game begins with."""
        said = [line for line in text.split("\n") if line and not line.startswith("Your task is to: ")]
        lines = tuple(line.removeprefix(ROOM).lower() for line in said)
        score = 1.0 if self.won else None
        return Page(text, self.actions, error=error, score=score, lines=lines, elements=self.elements)


class Game:
    """One game in an engine of its own, and every transition that was ever asked of it.

    The engine (fast_downward's library) holds one state at a time and cannot be given another one, but it can load the
    translated problem again and apply operators by number, which takes a few milliseconds. `plans` for `plan()`.
    """

    def __init__(self, domain, grammar, problem, plans=False):
        self.engine = engine()
        with guarded("loading a game"):
            env = self.engine.PddlEnv(self.engine.EnvInfos())
            self.lib = env.downward_lib
            weakref.finalize(self, self.engine.libraries.append, self.lib)
            self.engine.translator.plans = plans
            try:
                game = {"pddl_domain": domain, "grammar": grammar, "pddl_problem": problem}
                self.engine.AlfredDemangler(env).load(game)
            finally:
                self.engine.translator.plans = True
            self.state, self.grammar, self.rules = env._pddl_state, env._logic.grammar, env._logic.actions
            self.entities, self.sas = env._entity_infos, env._pddl_state.sas.encode()
            self.base = {signature: frozenset(facts) for signature, facts in self.state._facts.items()}
            self.initial = frozenset().union(*self.base.values())
            changed, self.read = _predicates(self.state.task, grammar)
            named_by = {name for rule in self.rules.values() for name in _queried(rule.template)}
            if {name.removeprefix("not_") for name in named_by} & changed:
                raise ValueError(f"what a command is called depends on {named_by & changed}")
            self.known = {}  # operator's number: its name, its command, its feedback's rule, its arguments
            self.atoms = {}  # effect's name: the fact, and its opposite
            self.at = ()  # the path of the state that the library holds; None: unknown
            self.start = self._state(frozenset(), ())
            self.states = {self.start.facts: self.start}
            self.intro = self._text("#intro#", {}, self.start.facts)

    def page(self):
        """The first page."""
        return self.start.page(self.intro.removeprefix(BANNER))

    def step(self, state, command):
        """(page, state) after `command`: what TextWorld's `PddlEnv.step` does."""
        command = command.strip()
        edge = state.edges.get(command)
        if edge is None:
            if command not in state.operators:
                return state.page(NOTHING, error="this action is not admissible"), state
            with guarded(command):
                edge = state.edges[command] = self._apply(state, command)
        return edge

    def plan(self):
        """The planner's commands from the start. In large rooms it can take hours: see `limited_plan`."""
        with guarded("planning"):
            self._go(())
            self.at = None  # after its search
            return self.state.replan(self.entities)

    def facts(self, state):
        """The state's facts with the entities' names, sorted: in TextWorld their order changes with PYTHONHASHSEED."""
        facts = [fact for some in self._facts(state.facts).values() for fact in some]
        named = [(fact.name, [self.entities[v.name].name or v.name for v in fact.arguments]) for fact in facts]
        return [types.SimpleNamespace(name=name, names=names) for name, names in sorted(named)]

    def _apply(self, state, command):
        self._go(state.path)
        number, count = state.operators[command]
        effects = self._operate(number, count)
        path = (*state.path, (number, count))
        facts = self._changed(state.facts, effects)
        after = self.states.get(facts)
        if after is None:
            if len(self.states) >= MAX_STATES:
                self.start.edges, self.states = {}, {self.start.facts: self.start}
            after = self.states[facts] = self._state(facts, path)
        self.at = path
        _, _, feedback, mapping = self.known[number]
        return after.page(self._text(feedback, mapping, facts)), after

    def _go(self, path):
        at, self.at = self.at, None
        if at is None or at != path[: len(at)]:
            self.lib.load_sas(self.sas)
            at = ()
        for number, count in path[len(at) :]:
            self._operate(number, count)
        self.at = path

    def _operate(self, number, count):
        self.at = None
        effects = (self.engine.Atom * count)()
        self.lib.apply_operator(number, effects)
        return effects

    def _state(self, facts, path):
        """The state that the library holds. Of operators with one name, or one command, TextWorld takes the first."""
        operators = (self.engine.Operator * self.lib.get_applicable_operators_count())()
        self.lib.get_applicable_operators(operators)
        commands, seen = {}, set()
        for operator in operators:
            if operator.id not in self.known:
                self._learn(operator)
            name, command, _, _ = self.known[operator.id]
            if name not in seen:
                commands.setdefault(command, (operator.id, operator.nb_effect_atoms))
            seen.add(name)
        return State(facts, path, commands, self.lib.check_goal())

    def _learn(self, operator):
        kind, *arguments = operator.name.split()
        mapping = {}
        for parameter, argument in zip(self.state._actions[kind].parameters, arguments):
            placeholder = self.engine.Placeholder(parameter.name.strip("?"), parameter.type_name)
            mapping[placeholder] = self.engine.Variable(argument, parameter.type_name)
        template = self._text(self.rules[kind].template, mapping, frozenset())
        command = template.format(**{p.name: self.entities[v.name].name for p, v in mapping.items()})
        self.known[operator.id] = operator.name, command, self.rules[kind].feedback_rule, mapping

    def _text(self, rule, mapping, facts):
        self.state._facts = self._facts(facts)
        variables = {placeholder.name: self.entities[variable.name] for placeholder, variable in mapping.items()}
        context = {"state": self.state, "facts": [], "variables": variables, "mapping": mapping}
        return self.grammar.derive(rule, {**context, "entity_infos": self.entities})

    def _changed(self, facts, effects):
        """`facts` after these effects. Of what became false TextWorld keeps a fact "not_.." that sentences can ask for,
        and of what never was true it has none: so this is part of the state."""
        facts = set(facts)
        for effect in effects:
            name = effect.name  # "Atom opened(..)" or "NegatedAtom opened(..)"
            if name not in self.atoms:
                fact = effect.get_fact(self.state.name2type)
                self.atoms[name] = fact, fact.negate()
            fact, opposite = self.atoms[name]
            if fact.name.removeprefix("not_") in self.read:
                facts.discard(name.removeprefix("Negated") if name.startswith("Negated") else f"Negated{name}")
                if opposite in self.initial or (fact not in self.initial and fact.name in self.read):
                    facts.add(name)
        return frozenset(facts)

    def _facts(self, changes):
        facts = defaultdict(frozenset, self.base)
        for change in changes:
            fact, opposite = self.atoms[change]
            facts[opposite.signature] -= {opposite}
            facts[fact.signature] |= {fact}
        return facts


def limited_plan(domain, grammar, problem):
    """`Game.plan()` in a process of its own, with PLAN_SECONDS and PLAN_BYTES to use; [] if that is not enough."""
    code = (
        "import json, resource, sys; from envs.alfworld_engine import Game, PLAN_BYTES, PLAN_SECONDS\n"
        "game = Game(*json.load(sys.stdin), plans=True)\n"
        "used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (used + PLAN_SECONDS,) * 2)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (PLAN_BYTES,) * 2)\n"
        "print(json.dumps(game.plan()))"
    )
    files, folder = json.dumps([domain, grammar, problem]), Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], input=files, capture_output=True, text=True, cwd=folder)
    if done.returncode < 0 or done.returncode in (22, 23):  # killed; the planner's own codes for memory and time
        return []
    if done.returncode:
        raise EnvFault(f"ALFWorld's planner: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _predicates(task, grammar):
    """The predicates that actions change; those that a condition, the goal or a sentence reads ("not_.." if so)."""
    effects = [effect for action in task.actions for effect in action.effects]
    conditions = [task.goal, *(action.precondition for action in task.actions), *(e.condition for e in effects)]
    conditions += [axiom.condition for axiom in task.axioms]
    read = _queried(grammar)
    while conditions:
        condition = conditions.pop()
        conditions += condition.parts
        read.add(getattr(condition, "predicate", ""))
    read |= {name.removeprefix("not_") for name in read}
    return {effect.literal.predicate for effect in effects}, read


def _queried(text):
    return {name.lower() for name in re.findall(r"(\w+)\(", text)}
