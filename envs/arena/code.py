"""The code host: projects with stars, issues with labels and comments, commits, members with roles."""

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.routing import Route

from envs.arena.server import database, done, form, go, page, user, whole_number

NAME = "code"
LANGUAGES = ("c", "go", "python", "shell")
ACCESS = ("private", "public")
LABELS = ("bug", "docs", "feature", "help")
ROLES = ("guest", "reporter", "developer", "maintainer")
MANAGERS = ("owner", "maintainer")  # may change members and settings; every member may change issues
MONTHS = ("january", "february", "march", "april", "may", "june")
TOOLS = ("code", "script", "server", "tool")
ROWS = 5  # of a list, on one page
LONGEST = 60  # letters of a title or of what a project says about itself

# `was` is what a row said at first: the activity page shows what is no longer as it was. Comments are in `remark`: one
# database holds all sites' tables, and the forum's are in `comment`.
SCHEMA = """
create table project (id integer primary key, name text, owner text, about text, language text, access text, base int,
    was text);
create table member (project int, person text, role text, was text, primary key (project, person));
create table star (project int, person text, primary key (project, person));
create table issue (id integer primary key, project int, number int, title text, author text, state text, labels text,
    assigned text, was text);
create table remark (id integer primary key, issue int, author text, text text, new int);
create table commits (id integer primary key, project int, author text, day int, month text, title text);
"""

NEW_ISSUE = """insert into issue (project, number, title, author, state, labels, assigned, was)
    values (?, ?, ?, ?, ?, ?, ?, ?)"""


# --- content ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Issue:
    number: int
    title: str
    author: str
    state: str  # open, closed
    labels: str  # "bug, help"
    assigned: str  # a member, or "none"
    comments: tuple  # of (person, text), oldest first


@dataclass(frozen=True)
class Commit:
    author: str
    day: int
    month: str
    title: str


@dataclass(frozen=True)
class Project:
    id: int
    name: str
    about: str
    language: str
    access: str
    stars: int  # as shown on the page
    members: dict  # person -> role; the first one is the owner
    issues: tuple  # newest first
    commits: tuple  # newest first

    @property
    def owner(self):
        return next(iter(self.members))

    def role(self, person):
        """The role of a person in this project, or "none"."""
        return self.members.get(person, "none")

    def issue(self, number):
        """The issue of that number; raises LookupError."""
        return {issue.number: issue for issue in self.issues}[int(number)]


@dataclass(frozen=True)
class Host:
    """What a world's code host holds before anything is done in it."""

    projects: tuple  # by name
    starred: tuple  # names of the projects that have a star of the user's
    missing: tuple  # names that no project has

    def project(self, name):
        """The project of that name; raises LookupError."""
        return {project.name: project for project in self.projects}[name]


def draw_title(world, rng):
    """The title of an issue or a commit: "fix the kettle"."""
    return f"{rng.choice(world.pool('verb'))} the {rng.choice(world.pool('noun'))}"


def draw_text(world, rng):
    """The text of a comment: "rusty kettle"."""
    return f"{rng.choice(world.pool('adjective'))} {rng.choice(world.pool('noun'))}"


def draw_about(world, rng):
    """What a project says about itself: "tool for camping"."""
    return f"{rng.choice(TOOLS)} for {rng.choice(world.pool('topic'))}"


@lru_cache(maxsize=512)
def host(world):
    """The Host of a world, always the same one."""
    rng = world.rng("code")
    nouns = rng.sample(world.pool("noun"), 6)  # few words for the names: near misses
    names = [f"{adjective} {noun}" for adjective in rng.sample(world.pool("adjective"), 8) for noun in nouns]
    names = rng.sample(names, 18)
    roles = rng.sample(
        ["owner"] * 3 + ["maintainer"] * 2 + ["developer"] * 2 + ["reporter", "guest"] + ["none"] * 3, 12
    )
    languages = rng.sample(LANGUAGES * 3, 12)
    stars = rng.sample(range(2, 99), 12)  # so that each language has one best project
    projects = []
    for i, (name, role) in enumerate(zip(sorted(names[:12]), roles)):
        members = _draw_members(world, rng, role)
        projects.append(
            Project(
                id=i + 1,
                name=name,
                about=draw_about(world, rng),
                language=languages[i],
                access=rng.choice(ACCESS) if role != "none" else "public",
                stars=stars[i],
                members=members,
                issues=tuple(_draw_issues(world, rng, list(members))),
                commits=tuple(_draw_commits(world, rng, list(members))),
            )
        )
    return Host(tuple(projects), tuple(sorted(rng.sample(names[:12], 2))), tuple(names[12:]))


def _draw_members(world, rng, role):
    """The members of a project where the user has that role."""
    others = rng.sample(world.people[1:], rng.randint(3, 6))
    owner = world.user if role == "owner" else others.pop()
    members = {owner: "owner"} | {person: rng.choice(ROLES) for person in others}
    return members if role in ("owner", "none") else members | {world.user: role}


def _draw_issues(world, rng, members):
    count = rng.randint(8, 12)
    numbers = sorted(rng.sample(range(1, 30), count), reverse=True)  # with gaps: not every number exists
    states = rng.sample(["closed"] * (count // 3) + ["open"] * (count - count // 3), count)
    titles = set()
    for number, state in zip(numbers, states):
        title = next(title for title in iter(lambda: draw_title(world, rng), None) if title not in titles)
        titles.add(title)
        labels = rng.sample(LABELS, rng.choice((0, 1, 1, 2, 2)))
        said = tuple((rng.choice(world.people), draw_text(world, rng)) for _ in range(rng.choice((0, 0, 1, 2))))
        author, assigned = rng.choice(world.people), rng.choice([*members, "none", "none"])
        yield Issue(number, title, author, state, join_labels(labels), assigned, said)


def _draw_commits(world, rng, members):
    authors = rng.sample(members, min(4, len(members)))
    days = rng.sample(range(len(MONTHS) * 28), rng.randint(16, 24))  # all different: one commit is the newest
    for day in sorted(days, reverse=True):
        yield Commit(rng.choice(authors), day % 28 + 1, MONTHS[day // 28], draw_title(world, rng))


def fill(db, world):
    """Write the world's rows into a fresh database."""
    content = host(world)
    for p in content.projects:
        mine, was = p.name in content.starred, settings_line(p.access, p.language, p.about)
        row = (p.id, p.name, p.owner, p.about, p.language, p.access, p.stars - mine, was)
        db.execute("insert into project values (?, ?, ?, ?, ?, ?, ?, ?)", row)
        members = [(p.id, person, role, role) for person, role in p.members.items()]
        db.executemany("insert into member values (?, ?, ?, ?)", members)
        if mine:
            db.execute("insert into star values (?, ?)", (p.id, world.user))
        for issue in p.issues:
            said = (issue.title, issue.author, issue.state, issue.labels, issue.assigned)
            key = db.execute(NEW_ISSUE, (p.id, issue.number, *said, issue_line(*said))).lastrowid
            rows = [(key, person, text) for person, text in issue.comments]
            db.executemany("insert into remark (issue, author, text, new) values (?, ?, ?, 0)", rows)
        # the newest commit stands first, and has the highest id
        commits = [(p.id, c.author, c.day, c.month, c.title) for c in reversed(p.commits)]
        db.executemany("insert into commits (project, author, day, month, title) values (?, ?, ?, ?, ?)", commits)


def join_labels(labels):
    """Labels as text, always in the same order: "bug, help"."""
    return ", ".join(label for label in LABELS if label in labels)


def settings_line(access, language, about):
    """What the settings of a project are: "public, go, tool for camping"."""
    return f"{access}, {language}, {about}"


def issue_line(title, author, state, labels, assigned):
    """All that can be said of an issue: "fix the kettle by anna baker, open, bug, help, assigned to none"."""
    return ", ".join(part for part in (f"{title} by {author}", state, labels, f"assigned to {assigned}") if part)


def activity_lines(stars, settings, members, issues, comments):
    """All stars, and all that is no longer as it was at first, one line each, whoever did it and in whatever order.

    stars: (person, project); settings: (project, line); members: (person, project, role); issues: (number, project,
    line); comments: (person, number, project, text). A check that compares all of them also sees what should not have
    been done.
    """
    return [
        *sorted(f"{person} starred {project}" for person, project in stars),
        *sorted(f"{project}: {line}" for project, line in settings),
        *sorted(f"{person} in {project}: {role}" for person, project, role in members),
        *sorted(f"issue {number} of {project}: {line}" for number, project, line in issues),
        *sorted(f"{person} on issue {number} of {project}: {text}" for person, number, project, text in comments),
    ]


# --- looking around --------------------------------------------------------------------------------------------------

# The projects that the user (the first parameter) may see.
LISTED = """select project.*, base + (select count(*) from star where project = project.id) as stars,
    ifnull(role, 'none') as role from project left join member on project = project.id and person = ?
    where (access = 'public' or ifnull(role, 'none') <> 'none')"""


def _paged(rows, request):
    """The rows of the page that the address asks for, and the addresses of the pages before and after it, if any."""
    number = whole_number(request.query_params.get("page", "1"), 1, 99) or 1
    fields = {key: value for key, value in request.query_params.items() if key not in ("done", "page")}

    def address(number):  # of the first page: without a number, as checks name it
        return f"{request.url.path}?{urlencode(fields | ({'page': number} if number > 1 else {}))}".rstrip("?")

    return {
        "rows": rows[(number - 1) * ROWS : number * ROWS],
        "total": len(rows),
        "before": address(number - 1) if number > 1 else None,
        "after": address(number + 1) if len(rows) > number * ROWS else None,
    }


def _filters(request, **defaults):
    """The fields of the address by which a list is filtered, and the address to go to first, if any.

    A form sends all its fields. Those that filter nothing are left out, so that each view has one address, which a
    check can name.
    """
    typed = {key: " ".join(value.lower().split()) for key, value in request.query_params.items()}
    given = {key: value for key, value in typed.items() if value not in ("", defaults.get(key))}
    address = f"{request.url.path}?{urlencode(given)}".rstrip("?")
    return defaults | given, address if given != dict(request.query_params) else None


def _slug(person):
    return person.replace(" ", "-")


async def home(request):
    filters, address = _filters(request, language="", sort="name", page="1")
    if address:
        return go(address)
    sql = f"{LISTED} and ? in ('', language) order by {'stars desc' if filters['sort'] == 'stars' else 'name'}"
    rows = database(request).execute(sql, (user(request), filters["language"])).fetchall()
    return page(
        request, "code/home.html", title="explore", languages=LANGUAGES, filters=filters, **_paged(rows, request)
    )


async def search(request):
    query = (await form(request)).get("q", "")
    sql = f"{LISTED} and instr(name, ?) order by name"
    rows = database(request).execute(sql, (user(request), query)).fetchall() if query else []
    return page(request, "code/search.html", title="search", query=query, **_paged(rows, request))


async def mine(request):
    rows = database(request).execute(f"{LISTED} and role <> 'none' order by name", (user(request),)).fetchall()
    return page(request, "code/mine.html", title="mine", **_paged(rows, request))


async def assigned(request):
    sql = """select issue.*, name from issue join project on project.id = project where assigned = ? and state = 'open'
        order by name, number desc"""
    rows = database(request).execute(sql, (user(request),)).fetchall()
    return page(request, "code/assigned.html", title="assigned to you", **_paged(rows, request))


def _project(request, managed=False):
    """The project of the address, which the user may see (or manage), with its `role`, the user's."""
    sql = f"{LISTED} and project.id = ?"
    row = database(request).execute(sql, (user(request), request.path_params["id"])).fetchone()
    if row is None:
        raise HTTPException(404, "there is no such project")
    if managed and row["role"] not in MANAGERS:
        raise HTTPException(403, "only owner and maintainer may change this")
    return row


def _page(request, template, project, **values):
    """A page of a project."""
    return page(request, f"code/{template}.html", p=project, manages=project["role"] in MANAGERS, slug=_slug, **values)


def _members(request, project):
    """The members of a project as rows, by name."""
    sql = "select * from member where project = ? and role <> 'none' order by person"
    return database(request).execute(sql, (project["id"],)).fetchall()


def _people(request, project):
    """Whom an issue of the project can be assigned to."""
    return ["none", *(member["person"] for member in _members(request, project))]


async def project(request):
    row, db = _project(request), database(request)
    pair = (row["id"], user(request))
    starred = db.execute("select 1 from star where project = ? and person = ?", pair).fetchone() is not None
    return _page(request, "project", row, title=row["name"], starred=starred)


async def issues(request):
    row, db = _project(request), database(request)
    filters, address = _filters(request, state="open", label="", assigned="", page="1")
    if address:
        return go(address)
    sql = """select * from issue where project = ? and ? in ('all', state) and (? = '' or instr(labels, ?))
        and ? in ('', assigned) order by number desc"""
    values = (filters["state"], filters["label"], filters["label"], filters["assigned"])
    rows = db.execute(sql, (row["id"], *values)).fetchall()
    title = f"issues of {row['name']}"
    return _page(request, "issues", row, title=title, filters=filters, labels=LABELS, **_paged(rows, request))


def _issue(request, project, member=False):
    """The issue of the address; `member`: that the user may change."""
    sql = "select * from issue where project = ? and number = ?"
    row = database(request).execute(sql, (project["id"], request.path_params["number"])).fetchone()
    if row is None:
        raise HTTPException(404, "there is no such issue")
    if member and project["role"] == "none":
        raise HTTPException(403, "only members may change issues")
    return row


def _line(issue):
    return issue_line(*(issue[key] for key in ("title", "author", "state", "labels", "assigned")))


async def issue(request, error=""):
    project = _project(request)
    row = _issue(request, project)
    rows = database(request).execute("select * from remark where issue = ? order by id", (row["id"],)).fetchall()
    title = f"issue {row['number']} of {project['name']}"
    return _page(request, "issue", project, title=title, issue=row, line=_line(row), comments=rows, error=error)


async def history(request):
    row, db = _project(request), database(request)
    filters, address = _filters(request, author="", month="", page="1")
    if address:
        return go(address)
    sql = "select * from commits where project = ? and ? in ('', author) and ? in ('', month) order by id desc"
    rows = db.execute(sql, (row["id"], filters["author"], filters["month"])).fetchall()
    sql = "select distinct author from commits where project = ? order by author"
    authors = [author for (author,) in db.execute(sql, (row["id"],))]
    title = f"history of {row['name']}"
    return _page(
        request, "history", row, title=title, filters=filters, authors=authors, months=MONTHS, **_paged(rows, request)
    )


async def person(request):
    name, db = request.path_params["slug"].replace("-", " "), database(request)
    if db.execute("select 1 from user where name = ?", (name,)).fetchone() is None:
        raise HTTPException(404, "there is no such user")
    rows = db.execute(f"{LISTED} and owner = ? order by name", (user(request), name)).fetchall()
    return page(request, "code/person.html", title=name, **_paged(rows, request))


async def activity(request):
    db = database(request)
    settings = db.execute("select name, access, language, about, was from project").fetchall()
    issues = db.execute("select issue.*, name from issue join project on project.id = project").fetchall()
    lines = activity_lines(
        db.execute("select person, name from star join project on project.id = project"),
        [(name, settings_line(*line)) for name, *line, was in settings if settings_line(*line) != was],
        db.execute("select person, name, role from member m join project p on p.id = project where role <> m.was"),
        [(row["number"], row["name"], _line(row)) for row in issues if _line(row) != row["was"]],
        db.execute("""select remark.author, number, name, text from remark join issue on issue.id = issue
            join project on project.id = project where new"""),
    )
    return page(request, "code/activity.html", title="activity", lines=lines)


# --- doing something -------------------------------------------------------------------------------------------------


def _logged_in(handler):
    """Send who is not logged in to the log-in page."""

    async def guarded(request):
        return await handler(request) if user(request) else go("/code/login")

    return guarded


async def star(request):
    row, db = _project(request), database(request)
    if (await form(request)).get("wanted") == "no":
        db.execute("delete from star where project = ? and person = ?", (row["id"], user(request)))
        what = "removed your star from"
    else:
        db.execute("insert or ignore into star values (?, ?)", (row["id"], user(request)))
        what = "starred"
    return done(request, f"/code/p/{row['id']}", f"{what} {row['name']}, now {_project(request)['stars']} stars")


async def new_issue(request):
    row, db, typed, error = _project(request), database(request), await form(request), ""
    people = _people(request, row) if row["role"] != "none" else []
    if request.method == "POST":
        assigned = typed.get("assigned", "none")
        if not typed.get("title") or len(typed["title"]) > LONGEST:
            error = f"the title must have 1 to {LONGEST} letters"
        elif assigned not in (people or ["none"]):
            error = "this is not a member"
        else:
            number = db.execute("select max(number) from issue where project = ?", (row["id"],)).fetchone()[0] + 1
            labels = join_labels(typed) if people else ""
            said = (typed["title"], user(request), "open", labels, assigned)
            db.execute(NEW_ISSUE, (row["id"], number, *said, ""))
            text = f"opened issue {number} of {row['name']}: {issue_line(*said)}"
            return done(request, f"/code/p/{row['id']}/issues/{number}", text)
    return _page(
        request, "new", row, title=f"new issue in {row['name']}", labels=LABELS, people=people, typed=typed, error=error
    )


async def edit_issue(request):
    project = _project(request)
    row, db, typed, error = _issue(request, project, member=True), database(request), await form(request), ""
    people = list(dict.fromkeys([*_people(request, project), row["assigned"]]))  # who was removed may stay assigned
    if request.method == "POST":
        if typed.get("assigned") in people:
            sql = "update issue set labels = ?, assigned = ? where id = ?"
            db.execute(sql, (join_labels(typed), typed["assigned"], row["id"]))
            return _changed(request, project, "saved")
        error = "this is not a member"
    title = f"edit issue {row['number']} of {project['name']}"
    return _page(
        request, "edit", project, title=title, issue=row, line=_line(row), labels=LABELS, people=people, error=error
    )


def _changed(request, project, what):
    """To the page of the issue, which says what was done to it and what it is now."""
    row = _issue(request, project)
    path = f"/code/p/{project['id']}/issues/{row['number']}"
    return done(request, path, f"{what} issue {row['number']} of {project['name']}: {_line(row)}")


async def set_state(request):
    project = _project(request)
    row, opened = _issue(request, project, member=True), (await form(request)).get("state") == "open"
    sql = "update issue set state = ? where id = ?"
    database(request).execute(sql, ("open" if opened else "closed", row["id"]))
    return _changed(request, project, "opened" if opened else "closed")


async def comment(request):
    project, text = _project(request), (await form(request)).get("text")
    row = _issue(request, project)
    if not text:
        return await issue(request, "the comment is empty")
    sql = "insert into remark (issue, author, text, new) values (?, ?, ?, 1)"
    database(request).execute(sql, (row["id"], user(request), text))
    path = f"/code/p/{project['id']}/issues/{row['number']}"
    return done(request, path, f"commented on issue {row['number']} of {project['name']}: {text}")


async def members(request):
    adds = request.method == "POST"
    row, db, typed, error = _project(request, managed=adds), database(request), await form(request), ""
    here, title = _members(request, row), f"members of {row['name']}"
    if adds:
        name, role = typed.get("name", ""), typed.get("role", "")
        if db.execute("select 1 from user where name = ?", (name,)).fetchone() is None:
            error = f"there is no user {name}"
        elif name in [member["person"] for member in here]:
            error = f"{name} is a member already"
        elif role not in ROLES:
            error = "choose a role"
        else:
            sql = """insert into member values (?, ?, ?, 'none')
                on conflict (project, person) do update set role = excluded.role"""  # who was removed comes back
            db.execute(sql, (row["id"], name, role))
            return done(request, f"/code/p/{row['id']}/members", f"added {name} to {row['name']} as {role}")
    return _page(request, "members", row, title=title, roles=ROLES, typed=typed, error=error, **_paged(here, request))


def _member(request, project):
    """The member of the address, whose role may be changed: neither the owner nor the user."""
    name = request.path_params["slug"].replace("-", " ")
    row = next((member for member in _members(request, project) if member["person"] == name), None)
    if row is None:
        raise HTTPException(404, "there is no such member")
    if name in (project["owner"], user(request)):
        raise HTTPException(403, "this role cannot be changed")
    return row


async def change_member(request):
    project, db, typed, error = _project(request, managed=True), database(request), await form(request), ""
    row = _member(request, project)
    if request.method == "POST":
        if typed.get("role") in ROLES:
            sql = "update member set role = ? where project = ? and person = ?"
            db.execute(sql, (typed["role"], project["id"], row["person"]))
            text = f"{row['person']} is now {typed['role']} in {project['name']}"
            return done(request, f"/code/p/{project['id']}/members", text)
        error = "choose a role"
    return _page(request, "member", project, title=row["person"], member=row, roles=ROLES, error=error)


async def remove_member(request):
    project, db = _project(request, managed=True), database(request)
    row = _member(request, project)
    if request.method == "POST":
        sql = "update member set role = 'none' where project = ? and person = ?"
        db.execute(sql, (project["id"], row["person"]))
        return done(request, f"/code/p/{project['id']}/members", f"removed {row['person']} from {project['name']}")
    text = f"remove {row['person']} from {project['name']}?"
    return page(request, "code/confirm.html", title="remove member", text=text, no=f"/code/p/{project['id']}/members")


async def settings(request):
    row, db, typed, error = _project(request, managed=True), database(request), await form(request), ""
    if request.method == "POST":
        about, language, access = (typed.get(key, "") for key in ("about", "language", "access"))
        if not 0 < len(about) <= LONGEST:
            error = f"the about text must have 1 to {LONGEST} letters"
        elif language not in LANGUAGES or access not in ACCESS:
            error = "choose language and access"
        else:
            sql = "update project set about = ?, language = ?, access = ? where id = ?"
            db.execute(sql, (about, language, access, row["id"]))
            text = f"saved {row['name']}: {settings_line(access, language, about)}"
            return done(request, f"/code/p/{row['id']}", text)
    title, shown = f"settings of {row['name']}", typed or row
    return _page(request, "settings", row, title=title, languages=LANGUAGES, levels=ACCESS, typed=shown, error=error)


async def profile(request):
    return go(f"/code/u/{_slug(user(request))}")


async def login(request):
    typed, error = await form(request), ""
    if request.method == "POST":
        db, pair = database(request), (typed.get("name", ""), typed.get("password", ""))
        if db.execute("select 1 from user where name = ? and password = ?", pair).fetchone():
            db.execute("delete from login")
            db.execute("insert into login values (?)", pair[:1])
            return done(request, "/code/", f"logged in as {pair[0]}")
        error = "wrong name or password"
    return page(request, "code/login.html", title="log in", typed=typed, error=error)


async def logout(request):
    database(request).execute("delete from login")
    return done(request, "/code/login", "you are logged out")


_BOTH = ["GET", "POST"]
routes = [
    Route("/", home),
    Route("/search", search),
    Route("/mine", _logged_in(mine)),
    Route("/assigned", _logged_in(assigned)),
    Route("/activity", activity),
    Route("/p/{id:short}", project),
    Route("/p/{id:short}/star", _logged_in(star), methods=["POST"]),
    Route("/p/{id:short}/issues", issues),
    Route("/p/{id:short}/issues/new", _logged_in(new_issue), methods=_BOTH),
    Route("/p/{id:short}/issues/{number:short}", issue),
    Route("/p/{id:short}/issues/{number:short}/edit", _logged_in(edit_issue), methods=_BOTH),
    Route("/p/{id:short}/issues/{number:short}/state", _logged_in(set_state), methods=["POST"]),
    Route("/p/{id:short}/issues/{number:short}/comment", _logged_in(comment), methods=["POST"]),
    Route("/p/{id:short}/history", history),
    Route("/p/{id:short}/members", members, methods=_BOTH),
    Route("/p/{id:short}/members/{slug}", _logged_in(change_member), methods=_BOTH),
    Route("/p/{id:short}/members/{slug}/remove", _logged_in(remove_member), methods=_BOTH),
    Route("/p/{id:short}/settings", _logged_in(settings), methods=_BOTH),
    Route("/u/{slug}", person),
    Route("/profile", _logged_in(profile)),
    Route("/login", login, methods=_BOTH),
    Route("/logout", logout, methods=["POST"]),
]
