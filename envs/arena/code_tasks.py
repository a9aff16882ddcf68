"""The code host's task templates: how to draw one, how to check it, how to solve it.

The activity page shows all stars and all that is no longer as it was at first; checks of state-changing tasks compare
that whole page, so that a wrong value, a wrong project, anything unwanted and anything done twice scores 0.

An issue and its project are one slot ("issue 12 of quiet kettle"), and so are a member and a project: instructions
varied from text then name pairs that exist.
"""

from urllib.parse import urlencode

from envs.arena.code import (
    ACCESS,
    LABELS,
    LANGUAGES,
    MANAGERS,
    MONTHS,
    ROLES,
    ROWS,
    activity_lines,
    draw_about,
    draw_text,
    draw_title,
    host,
    issue_line,
    join_labels,
    settings_line,
)
from envs.arena.tasks import Move, Template, exit_move, until_valid

STATES = ("open", "closed")  # of an issue; there is a slot of each name
DONE = exit_move("done")
NOT_POSSIBLE = exit_move("N/A")


# --- what a world has; each raises LookupError where it does not hold ------------------------------------------------


def _require(holds, what):
    if not holds:
        raise LookupError(what)


def _known(value, values):
    _require(value in values, f"{value} is none of {', '.join(values)}")
    return value


def _project(world, slots, slot="project"):
    return host(world).project(slots[slot])


def _manages(world, project):
    return project.role(world.user) in MANAGERS


def _managed(world, slots):
    """The project of the slots, if the user may change its members and settings."""
    project = _project(world, slots)
    _require(_manages(world, project), "not the user's to change")
    return project


def _starrable(world, slots, slot="project"):
    name = _project(world, slots, slot).name
    _require(name not in host(world).starred, "starred already")
    return name


def _issue(world, slots, slot="issue"):
    """The project and the issue of a slot "issue 12 of quiet kettle"."""
    number, _, name = slots[slot].removeprefix("issue ").partition(" of ")
    project = host(world).project(name)
    return project, project.issue(number)


def _in_state(world, slots, slot):
    """The project and the issue of the slot `open` or `closed`, whose name is the issue's state."""
    project, issue = _issue(world, slots, slot)
    _require(issue.state == slot, "another state")
    return project, issue


def _changeable(world, slots, slot="open"):
    """The same, if the user may change the issue."""
    project, issue = _in_state(world, slots, slot)
    _require(project.role(world.user) != "none", "not a member")
    return project, issue


def _member(world, slots, slot="member"):
    """The project and the person of a slot "anna baker in quiet kettle"."""
    person, _, name = slots[slot].partition(" in ")
    project = host(world).project(name)
    _require(person in project.members, "not a member")
    return project, person


def _colleague(world, slots):
    """The project and the person of the slot `colleague`, whose role the user may change."""
    project, person = _member(world, slots, "colleague")
    _require(_manages(world, project) and person not in (project.owner, world.user), "not the user's to change")
    return project, person


def _place(world, slots):
    """The project of the slot `project`, and "none"; or both of `duty`, "quiet kettle assigned to anna baker"."""
    if "project" in slots:
        return _project(world, slots), "none"
    name, _, person = slots["duty"].partition(" assigned to ")
    return _member(world, {"member": f"{person} in {name}"})


def _todo(world):
    """The open issues that are assigned to the user, as [(project, issue)] in the order of their page."""
    pairs = [(project, issue) for project in host(world).projects for issue in project.issues]
    return [(project, issue) for project, issue in pairs if (issue.state, issue.assigned) == ("open", world.user)]


def _only_todo(world, slots):
    """That of them in the project `desk`, if there is just one."""
    found = [pair for pair in _todo(world) if pair[0] == _project(world, slots, "desk")]
    _require(len(found) == 1, "none, or more than one")
    return found[0]


# --- what oracles are made of ----------------------------------------------------------------------------------------


def _find(name):
    """From any page to the list of the projects called `name`."""
    return [Move("box", "search", "Search", name)]


def _to(name, *parts):
    """From any page to a project or a part of it."""
    return [*_find(name), Move("link", name), *(Move("link", part) for part in parts)]


def _select(label, value):
    return Move("select", label, "Select Dropdown Option", value)


def _turn(rows, row):
    """From the first page of a list to the one that has the row."""
    return [Move("link", "next page")] * (rows.index(row) // ROWS)


def _tab(state):
    return [Move("link", "closed")] if state == "closed" else []


def _to_list(world, slots, slot="issue"):
    """From any page to the list that has an issue."""
    project, issue = _issue(world, slots, slot)
    rows = [other for other in project.issues if other.state == issue.state]
    return [*_to(project.name, "issues"), *_tab(issue.state), *_turn(rows, issue)]


def _to_issue(world, slots, slot="open"):
    """From any page to the page of an issue."""
    return [*_to_list(world, slots, slot), Move("link", f"issue {_issue(world, slots, slot)[1].number}")]


def _edit(world, slots):
    """The whole way of a task that assigns an issue, or labels it."""
    assign = [_select("assigned to", slots["person"])] if "person" in slots else []
    label = [Move("check", slots["label"])] if "label" in slots else []
    return [*_to_issue(world, slots), Move("link", "edit issue"), *assign, *label, Move("button", "save"), DONE]


def _write(world, slots):
    """The whole way of a task that opens an issue."""
    project, person = _place(world, slots)
    return [
        *_to(project.name, "issues", "new issue"),
        Move("box", "title", "Type", slots["title"]),
        *([_select("assigned to", person)] if person != "none" else []),
        *([Move("check", slots["label"])] if "label" in slots else []),
        Move("button", "open issue"),
        DONE,
    ]


def _filter(world, slots):
    """From any page to the issues of a project that the slots ask for."""
    project, person = _place(world, slots)
    label = [_select("label", slots["label"])] if "label" in slots else []
    assigned = [Move("box", "assigned to", "Type", person)] if person != "none" else []
    button = [Move("button", "filter")] if label or assigned else []
    return [*_to(project.name, "issues"), *_tab(slots["state"]), *label, *assigned, *button]


def _to_members(world, slots, slot):
    """From any page to the list that has a member."""
    project, person = _member(world, slots, slot)
    return [*_to(project.name, "members"), *_turn(sorted(project.members), person)]


def _to_change(world, slots):
    """From any page to the form of the member `colleague`."""
    _, person = _member(world, slots, "colleague")
    return [*_to_members(world, slots, "colleague"), Move("link", f"change {person}")]


def _add(slots):
    """From the members of a project."""
    typed = Move("box", "name", "Type", slots["person"])
    return [typed, _select("role", slots["role"]), Move("button", "add member")]


def _by_stars(language):
    """From the home page to the projects in a language, by stars."""
    return [_select("language", language), _select("sort by", "stars"), Move("button", "filter")]


STAR = Move("button", "star")
CLOSE = Move("button", "close issue")


# --- what checks are made of -----------------------------------------------------------------------------------------


def _answer(text):
    return {"eval_types": ["string_match"], "reference_answers": {"exact_match": str(text)}}


def _url(path):
    return {"eval_types": ["url_match"], "reference_url": f"__CODE__{path}", "url_note": "EXACT"}


def _activity(world, star=(), unstar=(), settings=(), members=(), issues=(), comments=()):
    """The activity page after these changes of the user's, and no others.

    star, unstar: names of projects; comments: (number, project, text); the rest as in `activity_lines`.
    """
    stars = (set(host(world).starred) | set(star)) - set(unstar)
    said = [(world.user, *comment) for comment in comments]
    lines = activity_lines([(world.user, project) for project in stars], settings, members, issues, said)
    return {
        "eval_types": ["program_html"],
        "program_html": [
            {
                "url": "__CODE__/activity",
                "locator": "document.querySelector('#activity').outerText",
                "required_contents": {"exact_match": "\n".join(lines)},
            }
        ],
    }


def _impossible(world, reason):
    """The answer N/A (or the reason), and nothing changed."""
    return _activity(world) | {
        "eval_types": ["string_match", "program_html"],
        "reference_answers": {"fuzzy_match": "N/A"},
        "string_note": reason,
    }


def _changed(world, project, issue, state=None, label=None, assigned=None, comment=None):
    """The activity page after these changes of one issue."""
    labels = join_labels([*issue.labels.split(", "), label])
    line = issue_line(issue.title, issue.author, state or issue.state, labels, assigned or issue.assigned)
    comments = [(issue.number, project.name, comment)] if comment else []
    return _activity(world, issues=[(issue.number, project.name, line)], comments=comments)


# --- configs and answers of more than a line


def _star_two(world, slots):
    names = {_starrable(world, slots, slot) for slot in ("project", "project2")}
    _require(len(names) == 2, "twice the same")
    return _activity(world, star=names)


def _unstar(world, slots):
    _require(slots["starred"] in host(world).starred, "not starred")
    return _activity(world, unstar=[slots["starred"]])


def _close(world, slots):
    return _changed(world, *_changeable(world, slots), state="closed", comment=slots.get("comment"))


def _assign(world, slots):
    """Another member for an issue, another label more, or both."""
    project, issue = _changeable(world, slots)
    person, label = slots.get("person"), slots.get("label")
    _require(person is None or person in project.members, "not a member")
    _require(person != issue.assigned, "assigned already")
    _require(label is None or _known(label, LABELS) not in issue.labels, "has the label already")
    return _changed(world, project, issue, label=label, assigned=person)


def _new_issue(world, slots):
    project, person = _place(world, slots)
    label = _known(slots["label"], LABELS) if "label" in slots else ""
    _require("label" not in slots or project.role(world.user) != "none", "not a member")
    number = project.issues[0].number + 1
    line = issue_line(slots["title"], world.user, "open", label, person)
    return _activity(world, issues=[(number, project.name, line)])


def _add_member(world, slots):
    project = _managed(world, slots)
    _require(_known(slots["person"], world.people) not in project.members, "a member already")
    return _activity(world, members=[(slots["person"], project.name, _known(slots["role"], ROLES))])


def _change_role(world, slots):
    project, person = _colleague(world, slots)
    _require(_known(slots["role"], ROLES) != project.members[person], "has the role already")
    return _activity(world, members=[(person, project.name, slots["role"])])


def _remove(world, slots):
    project, person = _colleague(world, slots)
    return _activity(world, members=[(person, project.name, "none")])


def _close_todo_oracle(world, slots):
    project, issue = _only_todo(world, slots)
    turn = _turn(_todo(world), (project, issue))
    return [Move("link", "assigned"), *turn, Move("link", f"issue {issue.number} of {project.name}"), CLOSE, DONE]


def _settings(world, slots):
    """Each slot is another value for a setting."""
    project, values = _managed(world, slots), {"access": ACCESS, "language": LANGUAGES}
    new = {key: getattr(project, key) for key in ("access", "language", "about")}
    for key in new.keys() & slots.keys():
        _require(slots[key] != new[key], "nothing would change")
        new[key] = _known(slots[key], values.get(key, [slots[key]]))
    return _activity(world, settings=[(project.name, settings_line(**new))])


def _save_settings(world, slots):
    """The whole way of a task that changes settings."""
    about = [Move("box", "about", "Type", slots["about"])] if "about" in slots else []
    selects = [_select(key, slots[key]) for key in ("language", "access") if key in slots]
    return [*_to(slots["project"], "settings"), *about, *selects, Move("button", "save"), DONE]


def _count(world, slots):
    """How many issues the slots `state` and `label` and those of `_place` ask for."""
    project, person = _place(world, slots)
    state, label = _known(slots["state"], STATES), _known(slots.get("label", ""), ("", *LABELS))
    issues = [issue for issue in project.issues if issue.state == state and label in issue.labels]
    return sum(person in ("none", issue.assigned) for issue in issues)


def _list_url(world, slots):
    _count(world, slots)
    fields = {key: slots[key] for key in ("state", "label") if slots.get(key, "open") != "open"}
    return _url(f"/p/{_project(world, slots).id}/issues?{urlencode(fields)}".rstrip("?"))


def _commits(world, slots):
    """How many commits the slot `work`, "anna baker commit to quiet kettle", and the slot `month` mean."""
    person, _, name = slots["work"].partition(" commit to ")
    months = [commit.month for commit in host(world).project(name).commits if commit.author == person]
    _require(months, "no commit of this person's")
    return months.count(_known(slots["month"], MONTHS)) if "month" in slots else len(months)


def _commits_oracle(world, slots):
    person, _, name = slots["work"].partition(" commit to ")
    month = [_select("month", slots["month"])] if "month" in slots else []
    asked = [_select("author", person), *month, Move("button", "filter")]
    return [*_to(name, "history"), *asked, exit_move(str(_commits(world, slots)))]


def _assignee(world, slots):
    _, issue = _issue(world, slots)
    _require(issue.assigned != "none", "assigned to none")
    return issue.assigned


def _role(world, slots):
    project, person = _member(world, slots)
    return project.members[person]


def _best(world, slots):
    """The project with the most stars in a language."""
    _known(slots["language"], LANGUAGES)
    projects = [project for project in host(world).projects if project.language == slots["language"]]
    return max(projects, key=lambda project: project.stars).name


def _no_project(world, slots):
    _require(all(slots["project"] != project.name for project in host(world).projects), "this project exists")
    return _impossible(world, f"there is no project {slots['project']}")


def _no_issue(world, slots):
    number, _, name = slots["issue"].removeprefix("issue ").partition(" of ")
    _require(all(int(number) != issue.number for issue in host(world).project(name).issues), "this issue exists")
    return _impossible(world, f"there is no issue {number}")


def _no_issue_oracle(world, slots):
    project = host(world).project(slots["issue"].partition(" of ")[2])
    turns = (len(project.issues) - 1) // ROWS
    return [*_to(project.name, "issues", "all"), *[Move("link", "next page")] * turns, NOT_POSSIBLE]


def _no_add(world, slots):
    project = _project(world, slots)
    _known(slots["role"], ROLES)
    _require(_known(slots["person"], world.people) not in project.members, "a member already")
    _require(not _manages(world, project), "possible")
    return _impossible(world, "only owner and maintainer may change members")


def _no_close(world, slots):
    project, _ = _in_state(world, slots, "open")
    _require(project.role(world.user) == "none", "possible")
    return _impossible(world, "only members may change issues")


def _no_assign(world, slots):
    """In a project of others, or to one who is not a member where the user cannot change that."""
    project, issue = _in_state(world, slots, "open")
    person, member = _known(slots["person"], world.people), project.role(world.user) != "none"
    _require(person != issue.assigned, "assigned already")
    _require(not member or not (person in project.members or _manages(world, project)), "possible")
    return _impossible(world, f"{person} is not a member" if member else "only members may change issues")


def _no_assign_oracle(world, slots):
    member = _issue(world, slots, "open")[0].role(world.user) != "none"
    return [*_to_issue(world, slots), *[Move("link", "edit issue")] * member, NOT_POSSIBLE]


# --- drawing; what the check does not accept is drawn again ----------------------------------------------------------


def _any(values):
    return lambda world, rng: rng.choice(values)


def _draw_project(world, rng):
    return rng.choice(host(world).projects).name


def _draw_person(world, rng):
    return rng.choice(world.people)


def _draw_issue(world, rng):
    project = rng.choice(host(world).projects)
    return f"issue {rng.choice(project.issues).number} of {project.name}"


def _draw_early(world, rng):
    """An issue on the first page of its list: the longest tasks stay within nine steps."""
    project = rng.choice(host(world).projects)
    return f"issue {rng.choice(project.issues[:ROWS]).number} of {project.name}"


def _draw_number(world, rng):
    """An issue that may be missing."""
    return f"issue {rng.randint(1, 29)} of {_draw_project(world, rng)}"


def _draw_member(world, rng):
    project = rng.choice(host(world).projects)
    return f"{rng.choice(list(project.members))} in {project.name}"


def _draw_work(world, rng):
    project = rng.choice(host(world).projects)
    return f"{rng.choice(project.commits).author} commit to {project.name}"


def _draw_duty(world, rng):
    project = rng.choice(host(world).projects)
    return f"{project.name} assigned to {rng.choice(list(project.members))}"


def _slots(**draws):
    """A sampler that draws each slot by itself."""
    return lambda world, rng: {slot: draw(world, rng) for slot, draw in draws.items()}


def _sample_count(world, rng):
    """State and label of one issue, and whom it or another one is assigned to: some counts are 0, most are not."""
    project = rng.choice(host(world).projects)
    issue = rng.choice([issue for issue in project.issues if issue.labels])
    other = rng.choice((issue, rng.choice(project.issues)))
    label = rng.choice(issue.labels.split(", "))
    return {"state": issue.state, "label": label, "duty": f"{project.name} assigned to {other.assigned}"}


_TWO = r"[a-z]+ [a-z]+"
_PATTERNS = {
    **dict.fromkeys(("project", "starred", "desk", "comment"), _TWO),
    **dict.fromkeys(("issue", "open", "closed"), rf"issue \d+ of {_TWO}"),
    **dict.fromkeys(("member", "colleague"), rf"{_TWO} in {_TWO}"),
    "duty": rf"{_TWO} assigned to {_TWO}",
    "work": rf"{_TWO} commit to {_TWO}",
    "title": r"[a-z]+ the [a-z]+",
    "about": r"[a-z]+ for [a-z]+",
}


def _template(name, kind, family, requirements, phrasings, sample, config, oracle):
    sample = until_valid(sample, config)
    return Template(name, kind, requirements, phrasings, sample, config, oracle, f"code {family}", _PATTERNS)


# In the order in which worlds take them: kinds and lengths mixed.
TEMPLATES = [
    _template(
        "stars",
        "information",
        "stars",
        1,
        ("how many stars does {project} have", "find the number of stars of {project}"),
        _slots(project=_draw_project),
        lambda w, s: _answer(_project(w, s).stars),
        lambda w, s: [*_find(s["project"]), exit_move(str(_project(w, s).stars))],
    ),
    _template(
        "new_issue",
        "state",
        "new issue",
        1,
        ("open an issue in {project} with title {title}", "write an issue in {project} with title {title}"),
        _slots(project=_draw_project, title=draw_title),
        _new_issue,
        _write,
    ),
    _template(
        "show_issues",
        "navigation",
        "issues",
        1,
        ("show the {state} issues of {project}", "list the {state} issues of {project}"),
        _slots(state=_any(STATES), project=_draw_project),
        _list_url,
        lambda w, s: [*_filter(w, s), DONE],
    ),
    _template(
        "assign_label",
        "state",
        "issue",
        2,
        ("assign {open} to {person} and label it {label}", "give {open} to {person} and add the label {label} to it"),
        _slots(open=_draw_early, person=_draw_person, label=_any(LABELS)),
        _assign,
        _edit,
    ),
    _template(
        "commits",
        "information",
        "commits",
        1,
        ("how many times did {work}", "how often did {work}"),
        _slots(work=_draw_work),
        lambda w, s: _answer(_commits(w, s)),
        _commits_oracle,
    ),
    _template(
        "star",
        "state",
        "stars",
        1,
        ("star {project}", "give a star to {project}"),
        _slots(project=_draw_project),
        lambda w, s: _activity(w, star=[_starrable(w, s)]),
        lambda w, s: [*_to(s["project"]), STAR, DONE],
    ),
    _template(
        "no_add",
        "impossible",
        "members",
        1,
        ("add {person} to {project} as {role}", "make {person} a member of {project} as {role}"),
        _slots(person=_draw_person, project=_draw_project, role=_any(ROLES)),
        _no_add,
        lambda w, s: [*_to(s["project"], "members"), NOT_POSSIBLE],
    ),
    _template(
        "count_label",
        "information",
        "count",
        2,
        (
            "how many {state} issues with label {label} does {project} have",
            "count the {state} issues with label {label} of {project}",
        ),
        _slots(state=_any(STATES), label=_any(LABELS), project=_draw_project),
        lambda w, s: _answer(_count(w, s)),
        lambda w, s: [*_filter(w, s), exit_move(str(_count(w, s)))],
    ),
    _template(
        "add_member",
        "state",
        "members",
        1,
        ("add {person} to {project} as {role}", "make {person} a member of {project} as {role}"),
        _slots(person=_draw_person, project=_draw_project, role=_any(ROLES)),
        _add_member,
        lambda w, s: [*_to(s["project"], "members"), *_add(s), DONE],
    ),
    _template(
        "close",
        "state",
        "issue",
        1,
        ("close {open}", "set {open} to closed"),
        _slots(open=_draw_issue),
        _close,
        lambda w, s: [*_to_issue(w, s), CLOSE, DONE],
    ),
    _template(
        "new_issue_assigned",
        "state",
        "new issue",
        3,
        (
            "open an issue in {duty} with label {label} and title {title}",
            "write an issue in {duty} with label {label} and title {title}",
        ),
        _slots(duty=_draw_duty, label=_any(LABELS), title=draw_title),
        _new_issue,
        _write,
    ),
    _template(
        "role",
        "information",
        "roles",
        1,
        ("what is the role of {member}", "find the role of {member}"),
        _slots(member=_draw_member),
        lambda w, s: _answer(_role(w, s)),
        lambda w, s: [*_to_members(w, s, "member"), exit_move(_role(w, s))],
    ),
    _template(
        "show_members",
        "navigation",
        "members",
        1,
        ("show the members of {project}", "list the members of {project}"),
        _slots(project=_draw_project),
        lambda w, s: _url(f"/p/{_project(w, s).id}/members"),
        lambda w, s: [*_to(s["project"], "members"), DONE],
    ),
    _template(
        "close_comment",
        "state",
        "issue",
        2,
        ("close {open} with the comment {comment}", "add the comment {comment} to {open} and close it"),
        _slots(open=_draw_issue, comment=draw_text),
        _close,
        lambda w, s: [
            *_to_issue(w, s),
            Move("box", "comment", "Type", s["comment"]),
            Move("button", "send"),
            CLOSE,
            DONE,
        ],
    ),
    _template(
        "todo",
        "information",
        "todo",
        1,
        ("how many open issues are assigned to me", "count the open issues assigned to me"),
        _slots(),
        lambda w, s: _answer(len(_todo(w))),
        lambda w, s: [Move("link", "assigned"), exit_move(str(len(_todo(w))))],
    ),
    _template(
        "no_close",
        "impossible",
        "issue",
        1,
        ("close {open}", "set {open} to closed"),
        _slots(open=_draw_issue),
        _no_close,
        lambda w, s: [*_to_issue(w, s), NOT_POSSIBLE],
    ),
    _template(
        "change_role",
        "state",
        "roles",
        1,
        ("change the role of {colleague} to {role}", "set the role of {colleague} to {role}"),
        _slots(colleague=_draw_member, role=_any(ROLES)),
        _change_role,
        lambda w, s: [*_to_change(w, s), _select("role", s["role"]), Move("button", "save"), DONE],
    ),
    _template(
        "access_about",
        "state",
        "settings",
        2,
        (
            "make {project} {access} and set its about text to {about}",
            "set the access of {project} to {access} and its about text to {about}",
        ),
        _slots(project=_draw_project, access=_any(ACCESS), about=draw_about),
        _settings,
        _save_settings,
    ),
    _template(
        "commits_month",
        "information",
        "commits",
        2,
        ("how many times did {work} in {month}", "how often did {work} in {month}"),
        _slots(work=_draw_work, month=_any(MONTHS)),
        lambda w, s: _answer(_commits(w, s)),
        _commits_oracle,
    ),
    _template(
        "star_two",
        "state",
        "stars",
        2,
        ("star {project} and {project2}", "give a star to {project} and to {project2}"),
        _slots(project=_draw_project, project2=_draw_project),
        _star_two,
        lambda w, s: [*_to(s["project"]), STAR, *_to(s["project2"]), STAR, DONE],
    ),
    _template(
        "no_project",
        "impossible",
        "stars",
        1,
        ("star {project}", "give a star to {project}"),
        _slots(project=lambda w, rng: rng.choice(host(w).missing)),
        _no_project,
        lambda w, s: [*_find(s["project"]), NOT_POSSIBLE],
    ),
    _template(
        "assign",
        "state",
        "issue",
        1,
        ("assign {open} to {person}", "give {open} to {person}"),
        _slots(open=_draw_issue, person=_draw_person),
        _assign,
        _edit,
    ),
    _template(
        "count_assigned",
        "information",
        "count",
        3,
        (
            "how many {state} issues with label {label} are in {duty}",
            "count the {state} issues with label {label} in {duty}",
        ),
        _sample_count,
        lambda w, s: _answer(_count(w, s)),
        lambda w, s: [*_filter(w, s), exit_move(str(_count(w, s)))],
    ),
    _template(
        "show_label",
        "navigation",
        "issues",
        2,
        (
            "show the {state} issues with label {label} of {project}",
            "list the {state} issues with label {label} of {project}",
        ),
        _slots(state=_any(STATES), label=_any(LABELS), project=_draw_project),
        _list_url,
        lambda w, s: [*_filter(w, s), DONE],
    ),
    _template(
        "remove_member",
        "state",
        "members",
        1,
        ("remove the member {colleague}", "delete the member {colleague}"),
        _slots(colleague=_draw_member),
        _remove,
        lambda w, s: [*_to_change(w, s), Move("link", "remove member"), Move("button", "yes, remove"), DONE],
    ),
    _template(
        "close_todo",
        "state",
        "todo",
        1,
        ("close the issue of {desk} that is assigned to me", "close my assigned issue of {desk}"),
        _slots(desk=_draw_project),
        lambda w, s: _changed(w, *_only_todo(w, s), state="closed"),
        _close_todo_oracle,
    ),
    _template(
        "best",
        "information",
        "best",
        2,
        ("which project in {language} has the most stars", "find the project in {language} that has the most stars"),
        _slots(language=_any(LANGUAGES)),
        lambda w, s: _answer(_best(w, s)),
        lambda w, s: [*_by_stars(s["language"]), exit_move(_best(w, s))],
    ),
    _template(
        "no_assign",
        "impossible",
        "issue",
        1,
        ("assign {open} to {person}", "give {open} to {person}"),
        _slots(open=_draw_issue, person=_draw_person),
        _no_assign,
        _no_assign_oracle,
    ),
    _template(
        "new_issue_label",
        "state",
        "new issue",
        2,
        (
            "open an issue in {project} with label {label} and title {title}",
            "write an issue in {project} with label {label} and title {title}",
        ),
        _slots(project=_draw_project, label=_any(LABELS), title=draw_title),
        _new_issue,
        _write,
    ),
    _template(
        "assignee",
        "information",
        "issue",
        1,
        ("who is assigned to {issue}", "find who is assigned to {issue}"),
        _slots(issue=_draw_issue),
        lambda w, s: _answer(_assignee(w, s)),
        lambda w, s: [*_to_list(w, s), exit_move(_assignee(w, s))],
    ),
    _template(
        "access",
        "state",
        "settings",
        1,
        ("make {project} {access}", "set the access of {project} to {access}"),
        _slots(project=_draw_project, access=_any(ACCESS)),
        _settings,
        _save_settings,
    ),
    _template(
        "show_best",
        "navigation",
        "best",
        2,
        ("show every project in {language} sorted by stars", "list every project in {language} sorted by stars"),
        _slots(language=_any(LANGUAGES)),
        lambda w, s: _url(f"/?language={_known(s['language'], LANGUAGES)}&sort=stars"),
        lambda w, s: [*_by_stars(s["language"]), DONE],
    ),
    _template(
        "no_issue",
        "impossible",
        "issue",
        1,
        ("who is assigned to {issue}", "find who is assigned to {issue}"),
        _slots(issue=_draw_number),
        _no_issue,
        _no_issue_oracle,
    ),
    _template(
        "count",
        "information",
        "count",
        1,
        ("how many {state} issues does {project} have", "count the {state} issues of {project}"),
        _slots(state=_any(STATES), project=_draw_project),
        lambda w, s: _answer(_count(w, s)),
        lambda w, s: [*_filter(w, s), exit_move(str(_count(w, s)))],
    ),
    _template(
        "all_settings",
        "state",
        "settings",
        3,
        (
            "make {project} {access}, set its language to {language} and its about text to {about}",
            "set the access of {project} to {access}, its language to {language} and its about text to {about}",
        ),
        _slots(project=_draw_project, access=_any(ACCESS), language=_any(LANGUAGES), about=draw_about),
        _settings,
        _save_settings,
    ),
    _template(
        "reopen",
        "state",
        "issue",
        1,
        ("open {closed} again", "set {closed} to open again"),
        _slots(closed=_draw_issue),
        lambda w, s: _changed(w, *_changeable(w, s, "closed"), state="open"),
        lambda w, s: [*_to_issue(w, s, "closed"), Move("button", "open again"), DONE],
    ),
    _template(
        "unstar",
        "state",
        "stars",
        1,
        ("remove my star from {starred}", "take back my star of {starred}"),
        _slots(starred=lambda w, rng: rng.choice(host(w).starred)),
        _unstar,
        lambda w, s: [*_to(s["starred"]), Move("button", "remove star"), DONE],
    ),
]
