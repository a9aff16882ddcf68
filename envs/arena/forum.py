"""The forum: boards, posts with votes and comments, profiles, subscriptions, search."""

from dataclasses import dataclass
from functools import lru_cache

from starlette.exceptions import HTTPException
from starlette.routing import Route

from envs.arena.content import draw_pairs
from envs.arena.server import database, done, form, go, page, user, whole_number

NAME = "forum"
BOARDS = (
    "books",
    "computers",
    "food",
    "games",
    "garden",
    "health",
    "movies",
    "music",
    "news",
    "pets",
    "science",
    "sports",
)
ROWS = 5  # of a list, on one page
LONGEST = 60  # letters of a title or a bio

SCHEMA = """
create table board (name text primary key);
create table post (id integer primary key, board text, title text, body text, author text, score int);
create table comment (id integer primary key, post int, author text, text text);
create table vote (post int, voter text, value int, primary key (post, voter));
create table subscription (board text, person text, primary key (board, person));
create table profile (person text primary key, bio text);
"""


# --- content ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Post:
    id: int
    board: str
    title: str
    body: str
    author: str
    votes: int  # as shown on the page
    comments: tuple  # of (person, text), oldest first


@dataclass(frozen=True)
class Forum:
    """What a world's forum holds before anything is done in it."""

    boards: tuple
    posts: tuple  # oldest first
    bios: dict  # person -> text
    subscribed: tuple  # boards of the user
    upvoted: tuple  # titles the user voted for
    missing: tuple  # titles that no post has

    def post(self, title, board=None):
        """The post of that title (in that board); raises LookupError."""
        return next((p for p in self.posts if p.title == title and board in (None, p.board)), None) or _absent(title)

    def board(self, name):
        """The posts of a board, newest first; raises LookupError."""
        return [p for p in reversed(self.posts) if p.board == name] or _absent(name)


def _absent(name):
    raise LookupError(f"{name} is not in this forum")


def draw_title(world, rng):
    """A post's title: "visit harbor"."""
    return f"{rng.choice(world.pool('verb'))} {rng.choice(world.pool('topic'))}"


def draw_text(world, rng):
    """The text of a post or a comment: "rusty kettle"."""
    return f"{rng.choice(world.pool('adjective'))} {rng.choice(world.pool('noun'))}"


def draw_bio(world, rng):
    """A profile's text: "jazz and pottery"."""
    return " and ".join(rng.sample(world.pool("topic"), 2))


@lru_cache(maxsize=512)
def forum(world):
    """The Forum of a world, always the same one."""
    rng = world.rng("forum")
    boards = sorted(rng.sample(BOARDS, 6))
    places = [board for board in boards for _ in range(rng.randint(5, 10))]
    rng.shuffle(places)
    titles = draw_pairs(rng, world.pool("verb"), world.pool("topic"), len(places) + 8)
    # no text stands twice
    texts = iter(draw_pairs(rng, world.pool("adjective"), world.pool("noun"), 4 * len(places) + 2))
    votes = {board: iter(rng.sample(range(2, 99), 10)) for board in boards}  # so that each board has one best post
    others = world.people[1:]
    mine = rng.sample(range(len(places)), 5)  # two posts of the user's own, two it commented on, one it voted for
    posts = []
    for i, board in enumerate(places):
        author = world.user if i in mine[:2] else rng.choice(others)
        people = rng.sample([person for person in others if person != author], rng.randint(0, 3))
        if i in mine[2:4]:
            people = [*people[:2], world.user]
        comments = tuple((person, next(texts)) for person in people)
        posts.append(Post(i + 1, board, titles[i], next(texts), author, next(votes[board]), comments))
    return Forum(
        boards=tuple(boards),
        posts=tuple(posts),
        bios={person: draw_bio(world, rng) for person in world.people},
        subscribed=tuple(sorted(rng.sample(boards, 2))),
        upvoted=(posts[mine[4]].title,),
        missing=tuple(titles[len(places) :]),
    )


def fill(db, world):
    """Write the world's rows into a fresh database."""
    content = forum(world)
    db.executemany("insert into board values (?)", [(board,) for board in content.boards])
    for p in content.posts:
        mine = p.title in content.upvoted
        row = (p.id, p.board, p.title, p.body, p.author, p.votes - mine)
        db.execute("insert into post values (?, ?, ?, ?, ?, ?)", row)
        rows = [(p.id, person, text) for person, text in p.comments]
        db.executemany("insert into comment (post, author, text) values (?, ?, ?)", rows)
        if mine:
            db.execute("insert into vote values (?, ?, 1)", (p.id, world.user))
    db.executemany("insert into subscription values (?, ?)", [(board, world.user) for board in content.subscribed])
    db.executemany("insert into profile values (?, ?)", list(content.bios.items()))


def activity_lines(bio, boards, posts, comments, votes):
    """All that a person did, one line each, in an order that does not depend on when it was done.

    posts: (title, board, body); comments: (title, text); votes: (title, value). A profile's activity page shows these
    lines, so a check that compares all of them also sees what should not have been done.
    """
    return [
        f"bio: {bio}",
        *sorted(f"subscribed to {board}" for board in boards),
        *sorted(f"posted {title} in {board}: {body}" for title, board, body in posts),
        *sorted(f"commented on {title}: {text}" for title, text in comments),
        *sorted(f"{'upvoted' if value > 0 else 'downvoted'} {title}" for title, value in votes),
    ]


# --- looking around --------------------------------------------------------------------------------------------------

LISTED = """select post.*, score + (select ifnull(sum(value), 0) from vote where post = post.id) as votes,
    (select count(*) from comment where post = post.id) as comments from post"""


def _paged(rows, request):
    """The rows of the page that the address asks for, that page's number and the next one's (None at the end)."""
    number = whole_number(request.query_params.get("page", "1"), 1, 99) or 1
    start = (number - 1) * ROWS
    return {
        "rows": rows[start : start + ROWS],
        "number": number,
        "after": number + 1 if len(rows) > start + ROWS else None,
    }


def _slug(person):
    return person.replace(" ", "-")


def _subscribed(request, board):
    sql = "select 1 from subscription where board = ? and person = ?"
    return database(request).execute(sql, (board, user(request))).fetchone() is not None


async def home(request):
    sql = """select name, (select count(*) from post where board = name) as posts,
        exists (select 1 from subscription where board = name and person = ?) as subscribed from board order by name"""
    rows = database(request).execute(sql, (user(request),)).fetchall()
    return page(request, "forum/home.html", title="forum", rows=rows)


def _board(request):
    name = request.path_params["board"]
    if database(request).execute("select 1 from board where name = ?", (name,)).fetchone() is None:
        raise HTTPException(404, "there is no such board")
    return name


async def board(request):
    name, top = _board(request), request.query_params.get("sort") == "top"
    sql = f"{LISTED} where board = ? order by {'votes desc, id desc' if top else 'id desc'}"
    rows = database(request).execute(sql, (name,)).fetchall()
    return page(
        request,
        "forum/board.html",
        title=name,
        top=top,
        total=len(rows),
        subscribed=_subscribed(request, name),
        **_paged(rows, request),
    )


async def search(request):
    db, query = database(request), (await form(request)).get("q", "")
    posts = db.execute(f"{LISTED} where instr(title, ?) order by length(title), title", (query,)).fetchall()
    people = db.execute("select name from user where instr(name, ?) order by name", (query,)).fetchall()
    rows = [*people, *posts] if query else []
    return page(
        request, "forum/search.html", title="search", query=query, total=len(rows), slug=_slug, **_paged(rows, request)
    )


def _post(request, own=False):
    row = database(request).execute(f"{LISTED} where id = ?", (request.path_params["id"],)).fetchone()
    if row is None:
        raise HTTPException(404, "there is no such post")
    if own and row["author"] != user(request):
        raise HTTPException(403, "this post is not yours")
    return row


async def post(request, error=""):
    row, db = _post(request), database(request)
    comments = db.execute("select * from comment where post = ? order by id", (row["id"],)).fetchall()
    vote = db.execute("select value from vote where post = ? and voter = ?", (row["id"], user(request))).fetchone()
    return page(
        request,
        "forum/post.html",
        title=row["title"],
        p=row,
        rows=comments,
        subscribed=_subscribed(request, row["board"]),
        vote=vote["value"] if vote else 0,
        slug=_slug,
        error=error,
    )


def _person(request):
    sql = "select * from profile where person = ?"
    row = database(request).execute(sql, (request.path_params["slug"].replace("-", " "),)).fetchone()
    if row is None:
        raise HTTPException(404, "there is no such user")
    return row


async def person(request):
    row, db = _person(request), database(request)
    posts = db.execute(f"{LISTED} where author = ? order by id desc", (row["person"],)).fetchall()
    sql = "select post.id, title, text from comment c join post on post.id = post where c.author = ? order by c.id"
    comments = db.execute(sql, (row["person"],)).fetchall() if row["person"] == user(request) else []
    return page(
        request,
        "forum/person.html",
        title=row["person"],
        person=row,
        slug=_slug,
        total=len(posts),
        comments=comments,
        **_paged(posts, request),
    )


async def activity(request):
    row, db = _person(request), database(request)

    def rows(sql):
        return db.execute(sql, (row["person"],)).fetchall()

    lines = activity_lines(
        row["bio"],
        [board for (board,) in rows("select board from subscription where person = ?")],
        rows("select title, board, body from post where author = ?"),
        rows("select title, text from comment join post on post.id = post where comment.author = ?"),
        rows("select title, value from vote join post on post.id = post where voter = ?"),
    )
    return page(request, "forum/activity.html", title="activity", person=row["person"], slug=_slug, lines=lines)


# --- doing something -------------------------------------------------------------------------------------------------


def _members_only(handler):
    """Send who is not logged in to the log-in page."""

    async def guarded(request):
        return await handler(request) if user(request) else go("/forum/login")

    return guarded


async def subscribe(request):
    name, db = _board(request), database(request)
    if (await form(request)).get("wanted") == "no":
        db.execute("delete from subscription where board = ? and person = ?", (name, user(request)))
        return done(request, f"/forum/f/{name}", f"unsubscribed from {name}")
    db.execute("insert or ignore into subscription values (?, ?)", (name, user(request)))
    return done(request, f"/forum/f/{name}", f"subscribed to {name}")


async def new_post(request):
    db, typed, error = database(request), await form(request), ""
    boards = [row["name"] for row in db.execute("select name from board order by name")]
    if request.method == "POST":
        title, text, name = typed.get("title", ""), typed.get("text", ""), typed.get("board", "")
        if not title or len(title) > LONGEST:
            error = f"the title must have 1 to {LONGEST} letters"
        elif not text:
            error = "the text is missing"
        elif name not in boards:
            error = "choose a board"
        else:
            sql = "insert into post (board, title, body, author, score) values (?, ?, ?, ?, 1)"
            number = db.execute(sql, (name, title, text, user(request))).lastrowid
            return done(request, f"/forum/p/{number}", f"posted {title} in {name}: {text}")
    return page(request, "forum/new.html", title="new post", boards=boards, typed=typed, error=error)


async def edit_post(request):
    row, typed, error = _post(request, own=True), await form(request), ""
    if request.method == "POST":
        if typed.get("text"):
            database(request).execute("update post set body = ? where id = ?", (typed["text"], row["id"]))
            return done(request, f"/forum/p/{row['id']}", f"saved {row['title']}: {typed['text']}")
        error = "the text is missing"
    return page(request, "forum/edit.html", title="edit post", p=row, text=typed.get("text", row["body"]), error=error)


async def delete_post(request):
    row, db = _post(request, own=True), database(request)
    if request.method == "POST":
        for sql in (
            "delete from comment where post = ?",
            "delete from vote where post = ?",
            "delete from post where id = ?",
        ):
            db.execute(sql, (row["id"],))
        return done(request, f"/forum/u/{_slug(row['author'])}", f"deleted the post {row['title']}")
    text = f"delete the post {row['title']}?"
    return page(request, "forum/confirm.html", title="delete post", text=text, no=f"/forum/p/{row['id']}")


async def vote(request):
    row, db = _post(request), database(request)
    value = {"up": 1, "down": -1}.get((await form(request)).get("vote"), 0)
    db.execute("delete from vote where post = ? and voter = ?", (row["id"], user(request)))
    if value:
        db.execute("insert into vote values (?, ?, ?)", (row["id"], user(request), value))
    what = {1: "upvoted", -1: "downvoted", 0: "removed your vote from"}[value]
    return done(request, f"/forum/p/{row['id']}", f"{what} {row['title']}, now {_post(request)['votes']} votes")


async def comment(request):
    row, text = _post(request), (await form(request)).get("text")
    if not text:
        return await post(request, "the comment is empty")
    sql = "insert into comment (post, author, text) values (?, ?, ?)"
    database(request).execute(sql, (row["id"], user(request), text))
    return done(request, f"/forum/p/{row['id']}", f"commented on {row['title']}: {text}")


async def delete_comment(request):
    db = database(request)
    sql = "select comment.*, title from comment join post on post.id = post where comment.id = ?"
    row = db.execute(sql, (request.path_params["id"],)).fetchone()
    if row is None or row["author"] != user(request):
        raise HTTPException(404, "there is no such comment of yours")
    if request.method == "POST":
        db.execute("delete from comment where id = ?", (row["id"],))
        return done(request, f"/forum/p/{row['post']}", f"deleted your comment on {row['title']}: {row['text']}")
    text = f"delete your comment on {row['title']}: {row['text']}?"
    return page(request, "forum/confirm.html", title="delete comment", text=text, no=f"/forum/p/{row['post']}")


async def edit_bio(request):
    db, name, typed, error = database(request), user(request), await form(request), ""
    bio = db.execute("select bio from profile where person = ?", (name,)).fetchone()["bio"]
    if request.method == "POST":
        if 0 < len(typed.get("bio", "")) <= LONGEST:
            db.execute("update profile set bio = ? where person = ?", (typed["bio"], name))
            return done(request, f"/forum/u/{_slug(name)}", f"saved bio: {typed['bio']}")
        error = f"the bio must have 1 to {LONGEST} letters"
    return page(request, "forum/bio.html", title="edit bio", bio=typed.get("bio", bio), error=error)


async def profile(request):
    return go(f"/forum/u/{_slug(user(request))}")


async def login(request):
    typed, error = await form(request), ""
    if request.method == "POST":
        db, pair = database(request), (typed.get("name", ""), typed.get("password", ""))
        if db.execute("select 1 from user where name = ? and password = ?", pair).fetchone():
            db.execute("delete from login")
            db.execute("insert into login values (?)", pair[:1])
            return done(request, "/forum/", f"logged in as {pair[0]}")
        error = "wrong name or password"
    return page(request, "forum/login.html", title="log in", typed=typed, error=error)


async def logout(request):
    database(request).execute("delete from login")
    return done(request, "/forum/login", "you are logged out")


_BOTH = ["GET", "POST"]
routes = [
    Route("/", home),
    Route("/search", search),
    Route("/f/{board}", board),
    Route("/f/{board}/subscribe", _members_only(subscribe), methods=["POST"]),
    Route("/p/{id:short}", post),
    Route("/p/{id:short}/vote", _members_only(vote), methods=["POST"]),
    Route("/p/{id:short}/comment", _members_only(comment), methods=["POST"]),
    Route("/p/{id:short}/edit", _members_only(edit_post), methods=_BOTH),
    Route("/p/{id:short}/delete", _members_only(delete_post), methods=_BOTH),
    Route("/c/{id:short}/delete", _members_only(delete_comment), methods=_BOTH),
    Route("/new", _members_only(new_post), methods=_BOTH),
    Route("/u/{slug}", person),
    Route("/u/{slug}/activity", activity),
    Route("/profile", _members_only(profile)),
    Route("/profile/bio", _members_only(edit_bio), methods=_BOTH),
    Route("/login", login, methods=_BOTH),
    Route("/logout", logout, methods=["POST"]),
]
