"""The forum's task templates: how to draw one, how to check it, how to solve it.

Whatever the user can change stands on its activity page; checks of state-changing tasks compare that whole page, so
that a wrong value, a wrong board, anything unwanted and anything done twice scores 0.

A post and its board are one slot ("visit harbor in books"), and so are a comment and its post: instructions varied from
text then name pairs that exist.
"""

from envs.arena.forum import ROWS, activity_lines, draw_bio, draw_text, draw_title, forum
from envs.arena.tasks import Move, Template, exit_move

DONE = exit_move("done")
NOT_POSSIBLE = exit_move("N/A")


# --- what oracles are made of ----------------------------------------------------------------------------------------


def _find(name):
    """From any page to the list of what is called `name`."""
    return [Move("box", "search", "Search", name)]


def _turn(world, post):
    """From the first page of a board to the page that lists the post."""
    return [Move("link", "next page")] * (forum(world).board(post.board).index(post) // ROWS)


def _to(world, post):
    """From the first page of a post's board to the post."""
    return [*_turn(world, post), Move("link", post.title)]


def _in_board(world, slots, slot="post"):
    """From the home page (or a post of the same board) to the post of a slot."""
    post = _post(world, slots, slot)
    return [Move("link", post.board), *_to(world, post)]


def _comment(text):
    return [Move("box", "comment", "Type", text), Move("button", "send")]


def _write(slots):
    """From any page to the page of the new post."""
    return [
        Move("link", "new post"),
        Move("box", "title", "Type", slots["subject"]),
        Move("box", "text", "Type", slots["body"]),
        Move("select", "board", "Select Dropdown Option", slots["board"]),
        Move("button", "post"),
    ]


def _set_bio(text):
    return [Move("link", "profile"), Move("link", "edit bio"), Move("box", "bio", "Type", text), Move("button", "save")]


def _join(board):
    """From a page with a link to the board."""
    return [Move("link", board), Move("button", "subscribe")]


UPVOTE = Move("button", "upvote")


# --- what checks are made of -----------------------------------------------------------------------------------------


def _answer(text):
    return {"eval_types": ["string_match"], "reference_answers": {"exact_match": str(text)}}


def _url(path):
    return {"eval_types": ["url_match"], "reference_url": f"__FORUM__{path}", "url_note": "EXACT"}


def _profile(person):
    return _url(f"/u/{person.replace(' ', '-')}")


def _activity(
    world, bio=None, join=(), leave=(), posts=(), delete=(), edit=None, comments=(), uncomment=(), votes=(), unvote=()
):
    """The activity page after these changes of the user's, and no others.

    posts: (title, board, body); comments: (title, text); votes: (title, value); edit: {title: body}; the rest: names.
    """
    content, edit = forum(world), edit or {}
    own = [(p.title, p.board, edit.get(p.title, p.body)) for p in content.posts if p.author == world.user]
    said = [(p.title, text) for p in content.posts for person, text in p.comments if person == world.user]
    lines = activity_lines(
        bio or content.bios[world.user],
        (set(content.subscribed) | set(join)) - set(leave),
        [*(post for post in own if post[0] not in delete), *posts],
        [*(comment for comment in said if comment[0] not in uncomment), *comments],
        [*((title, 1) for title in content.upvoted if title not in unvote), *votes],
    )
    return {
        "eval_types": ["program_html"],
        "program_html": [
            {
                "url": f"__FORUM__/u/{world.user.replace(' ', '-')}/activity",
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


# --- what a world has; each raises LookupError where it does not hold ------------------------------------------------


def _require(holds, what):
    if not holds:
        raise LookupError(what)


def _post(world, slots, slot="post"):
    """The post of a slot "title in board"."""
    title, _, board = slots[slot].partition(" in ")
    return forum(world).post(title, board)


def _votable(world, post):
    """`post`, if it is not the user's and the user did not vote for it."""
    _require(post.author != world.user and post.title not in forum(world).upvoted, "own post or voted for already")
    return post


def _own(world, title):
    post = forum(world).post(title)
    _require(post.author == world.user, "not the user's post")
    return post


def _known(world, board):
    _require(board in forum(world).boards, "no such board")
    return board


def _joinable(world, board):
    _require(board not in forum(world).subscribed, "subscribed already")
    return _known(world, board)


def _joined(world, board):
    _require(board in forum(world).subscribed, "not subscribed")
    return board


def _person(world, name):
    _require(name in world.people, "no such user")
    return name


def _best(world, board):
    return max(forum(world).board(board), key=lambda post: post.votes)


def _bio(world, person):
    return forum(world).bios[_person(world, person)]


# --- drawing


def _draw(world, rng, boards=None):
    """A post the user may vote for."""
    content = forum(world)
    posts = [p for p in content.posts if p.author != world.user and p.title not in content.upvoted]
    return rng.choice([p for p in posts if boards is None or p.board in boards])


def _draw_title(world, rng):
    return _draw(world, rng).title


def _draw_post(world, rng):
    post = _draw(world, rng)
    return f"{post.title} in {post.board}"


def _draw_outside(world, rng):
    """A post in a board the user has not subscribed to."""
    post = _draw(world, rng, [board for board in forum(world).boards if board not in forum(world).subscribed])
    return f"{post.title} in {post.board}"


def _draw_first(world, rng):
    """Such a post on the first page of its board: the longest tasks stay within ten steps."""
    posts = iter(lambda: _draw_outside(world, rng), None)
    return next(post for post in posts if not _turn(world, _post(world, {"post": post})))


def _draw_subject(world, rng):
    """A title for a new post, used by no other."""
    titles = {post.title for post in forum(world).posts}
    return next(title for title in iter(lambda: draw_title(world, rng), None) if title not in titles)


def _draw_board(world, rng):
    return rng.choice(forum(world).boards)


def _draw_joinable(world, rng):
    return rng.choice([board for board in forum(world).boards if board not in forum(world).subscribed])


def _draw_joined(world, rng):
    return rng.choice(forum(world).subscribed)


def _draw_own(world, rng):
    return rng.choice([post.title for post in forum(world).posts if post.author == world.user])


def _draw_commented(world, rng):
    return rng.choice([p.title for p in forum(world).posts if world.user in [person for person, _ in p.comments]])


def _draw_person(world, rng):
    return rng.choice(world.people[1:])


def _draw_stranger(world, rng):
    """A name like those of the users, which none has."""
    names = [f"{person.split()[0]} {last}" for person in world.people for last in world.pool("last")]
    return rng.choice([name for name in names if name not in world.people])


def _draw_missing(world, rng):
    return rng.choice(forum(world).missing)


def _slots(**draws):
    """A sampler that draws each slot by itself, and again where two slots have the same value."""

    def sample(world, rng):
        slots = {}
        while len(set(slots.values())) < len(draws):
            slots = {slot: draw(world, rng) for slot, draw in draws.items()}
        return slots

    return sample


# --- configs and oracles of more than a line


def _draw_remark(world, rng):
    post = rng.choice([post for post in forum(world).posts if post.comments])
    return f"{rng.choice(post.comments)[1]} on {post.title} in {post.board}"


def _remark(world, slots):
    """The post and the author of the comment "text on title in board"."""
    said, _, place = slots["remark"].partition(" on ")
    post = _post(world, {"post": place})
    people = [person for person, text in post.comments if text == said]
    _require(people, "no such comment")
    return post, people[0]


def _remark_oracle(world, slots):
    post, person = _remark(world, slots)
    return [Move("link", post.board), *_to(world, post), exit_move(person)]


def _vote(world, post, value=1, **more):
    return _activity(world, votes=[(_votable(world, post).title, value)], **more)


def _vote_two(world, slots):
    titles = {_votable(world, _post(world, slots, slot)).title for slot in ("post", "post2")}
    _require(len(titles) == 2, "twice the same")
    return _activity(world, votes=[(title, 1) for title in titles])


def _oracle_vote_two(world, slots):
    here, there = _post(world, slots), _post(world, slots, "post2")
    # a post links to its own board; to another one it is by the home page
    home = [] if here.board == there.board else [Move("link", "home")]
    return [*_in_board(world, slots), UPVOTE, *home, *_in_board(world, slots, "post2"), UPVOTE, DONE]


def _join_two(world, slots):
    boards = {_joinable(world, slots[slot]) for slot in ("board", "board2")}
    _require(len(boards) == 2, "twice the same")
    return _activity(world, join=boards)


def _join_vote(world, slots):
    post = _post(world, slots)
    said = [(post.title, slots["comment"])] if "comment" in slots else []
    return _vote(world, post, join=[_joinable(world, post.board)], comments=said, bio=slots.get("bio"))


def _join_vote_oracle(world, slots):
    post = _post(world, slots)
    return [*_join(post.board), *_to(world, post), UPVOTE]


def _new_post(world, slots, **more):
    return _activity(world, posts=[(slots["subject"], _known(world, slots["board"]), slots["body"])], **more)


def _uncomment(world, slots):
    people = [person for person, _ in forum(world).post(slots["commented"]).comments]
    _require(people.count(world.user) == 1, "no comment of the user's")
    return _activity(world, uncomment=[slots["commented"]])


def _unvote(world, slots):
    _require(slots["upvoted"] in forum(world).upvoted, "not upvoted")
    return _activity(world, unvote=[slots["upvoted"]])


def _no_post(world, slots):
    posts = forum(world).board(slots["board"]) if "board" in slots else forum(world).posts
    _require(all(post.title != slots["title"] for post in posts), "this post exists")
    return _impossible(world, f"there is no post {slots['title']}")


def _no_person(world, slots):
    _require(slots["person"] not in world.people, "this user exists")
    return _impossible(world, f"there is no user {slots['person']}")


def _no_post_oracle(world, slots):
    turns = (len(forum(world).board(slots["board"])) - 1) // ROWS
    return [Move("link", slots["board"]), *[Move("link", "next page")] * turns, NOT_POSSIBLE]


_TWO = r"[a-z]+ [a-z]+"
_PATTERNS = {
    **dict.fromkeys(("title", "subject", "mine", "commented", "upvoted", "body", "comment", "person"), _TWO),
    "post": rf"{_TWO} in [a-z]+",
    "remark": rf"{_TWO} on {_TWO} in [a-z]+",
    "bio": r"[a-z]+ and [a-z]+",
    **dict.fromkeys(("board", "joined"), r"[a-z]+"),
}


def _template(name, kind, family, requirements, phrasings, sample, config, oracle):
    return Template(name, kind, requirements, phrasings, sample, config, oracle, f"forum {family}", _PATTERNS)


# In the order in which worlds take them: kinds and lengths mixed.
TEMPLATES = [
    _template(
        "author",
        "information",
        "author",
        1,
        ("who wrote {post}", "who is the author of {post}"),
        _slots(post=_draw_post),
        lambda w, s: _answer(_post(w, s).author),
        lambda w, s: [Move("link", _post(w, s).board), *_turn(w, _post(w, s)), exit_move(_post(w, s).author)],
    ),
    _template(
        "post",
        "state",
        "post",
        1,
        ("post {subject} with the text {body} in {board}", "write a post {subject} with the text {body} in {board}"),
        _slots(subject=_draw_subject, body=draw_text, board=_draw_board),
        _new_post,
        lambda w, s: [*_write(s), DONE],
    ),
    _template(
        "open_author",
        "navigation",
        "open",
        1,
        ("open the profile of the author of {post}", "show the profile of the user who wrote {post}"),
        _slots(post=_draw_post),
        lambda w, s: _profile(_post(w, s).author),
        lambda w, s: [*_in_board(w, s), Move("link", _post(w, s).author), DONE],
    ),
    _template(
        "upvote_comment",
        "state",
        "vote",
        2,
        ("upvote {post} and comment {comment}", "give an upvote to {post} and write the comment {comment}"),
        _slots(post=_draw_post, comment=draw_text),
        lambda w, s: _vote(w, _post(w, s), comments=[(_post(w, s).title, s["comment"])]),
        lambda w, s: [*_in_board(w, s), UPVOTE, *_comment(s["comment"]), DONE],
    ),
    _template(
        "subscribe",
        "state",
        "subscribe",
        1,
        ("subscribe to {board}", "subscribe to the board {board}"),
        _slots(board=_draw_joinable),
        lambda w, s: _activity(w, join=[_joinable(w, s["board"])]),
        lambda w, s: [*_join(s["board"]), DONE],
    ),
    _template(
        "votes",
        "information",
        "votes",
        1,
        ("how many votes does {title} have", "find the number of votes of {title}"),
        _slots(title=_draw_title),
        lambda w, s: _answer(forum(w).post(s["title"]).votes),
        lambda w, s: [*_find(s["title"]), exit_move(str(forum(w).post(s["title"]).votes))],
    ),
    _template(
        "bio",
        "state",
        "profile",
        1,
        ("change my bio to {bio}", "set my bio to {bio}"),
        _slots(bio=draw_bio),
        lambda w, s: _activity(w, bio=s["bio"]),
        lambda w, s: [*_set_bio(s["bio"]), DONE],
    ),
    _template(
        "upvote",
        "state",
        "vote",
        1,
        ("upvote {post}", "give an upvote to {post}"),
        _slots(post=_draw_post),
        lambda w, s: _vote(w, _post(w, s)),
        lambda w, s: [*_in_board(w, s), UPVOTE, DONE],
    ),
    _template(
        "subscribe_upvote_comment",
        "state",
        "vote",
        3,
        (
            "subscribe to the board of {post}, upvote the post and comment {comment}",
            "join the board of {post}, upvote the post and write the comment {comment}",
        ),
        _slots(post=_draw_outside, comment=draw_text),
        _join_vote,
        lambda w, s: [*_join_vote_oracle(w, s), *_comment(s["comment"]), DONE],
    ),
    _template(
        "no_votes",
        "impossible",
        "votes",
        1,
        ("how many votes does {title} have", "find the number of votes of {title}"),
        _slots(title=_draw_missing),
        _no_post,
        lambda w, s: [*_find(s["title"]), NOT_POSSIBLE],
    ),
    _template(
        "top_author",
        "information",
        "top",
        1,
        ("who wrote the post with the most votes in {board}", "who wrote the top post in {board}"),
        _slots(board=_draw_board),
        lambda w, s: _answer(_best(w, s["board"]).author),
        lambda w, s: [Move("link", s["board"]), Move("link", "top"), exit_move(_best(w, s["board"]).author)],
    ),
    _template(
        "comment",
        "state",
        "vote",
        1,
        ("comment {comment} on {post}", "write the comment {comment} on {post}"),
        _slots(comment=draw_text, post=_draw_post),
        lambda w, s: _activity(w, comments=[(_post(w, s).title, s["comment"])]),
        lambda w, s: [*_in_board(w, s), *_comment(s["comment"]), DONE],
    ),
    _template(
        "subscribe_two",
        "state",
        "subscribe",
        2,
        ("subscribe to {board} and {board2}", "subscribe to the boards {board} and {board2}"),
        _slots(board=_draw_joinable, board2=_draw_joinable),
        _join_two,
        lambda w, s: [*_join(s["board"]), Move("link", "home"), *_join(s["board2"]), DONE],
    ),
    _template(
        "delete_post",
        "state",
        "own post",
        1,
        ("delete my post {mine}", "remove my post {mine}"),
        _slots(mine=_draw_own),
        lambda w, s: _activity(w, delete=[_own(w, s["mine"]).title]),
        lambda w, s: [
            Move("link", "profile"),
            Move("link", s["mine"]),
            Move("link", "delete post"),
            Move("button", "yes, delete"),
            DONE,
        ],
    ),
    _template(
        "open_top",
        "navigation",
        "top",
        1,
        ("show the top posts of {board}", "open {board} sorted by top"),
        _slots(board=_draw_board),
        lambda w, s: _url(f"/f/{_known(w, s['board'])}?sort=top"),
        lambda w, s: [Move("link", s["board"]), Move("link", "top"), DONE],
    ),
    _template(
        "upvote_two",
        "state",
        "vote",
        2,
        ("upvote {post} and {post2}", "give an upvote to {post} and to {post2}"),
        _slots(post=_draw_post, post2=_draw_post),
        _vote_two,
        _oracle_vote_two,
    ),
    _template(
        "author_bio",
        "information",
        "profile",
        1,
        ("what is the bio of the author of {title}", "what is the bio of the user who wrote {title}"),
        _slots(title=_draw_title),
        lambda w, s: _answer(_bio(w, forum(w).post(s["title"]).author)),
        lambda w, s: [
            *_find(s["title"]),
            Move("link", s["title"]),
            Move("link", forum(w).post(s["title"]).author),
            exit_move(_bio(w, forum(w).post(s["title"]).author)),
        ],
    ),
    _template(
        "edit_post",
        "state",
        "own post",
        1,
        ("change the text of my post {mine} to {body}", "edit my post {mine} so that its text is {body}"),
        _slots(mine=_draw_own, body=draw_text),
        lambda w, s: _activity(w, edit={_own(w, s["mine"]).title: s["body"]}),
        lambda w, s: [
            Move("link", "profile"),
            Move("link", s["mine"]),
            Move("link", "edit post"),
            Move("box", "text", "Type", s["body"]),
            Move("button", "save"),
            DONE,
        ],
    ),
    _template(
        "missing_author",
        "impossible",
        "author",
        1,
        ("who wrote {title} in {board}", "who is the author of {title} in {board}"),
        _slots(title=_draw_missing, board=_draw_board),
        _no_post,
        _no_post_oracle,
    ),
    _template(
        "post_subscribe",
        "state",
        "post",
        2,
        (
            "post {subject} with the text {body} in {board} and subscribe to the board",
            "write a post {subject} with the text {body} in {board} and join the board",
        ),
        _slots(subject=_draw_subject, body=draw_text, board=_draw_joinable),
        lambda w, s: _new_post(w, s, join=[_joinable(w, s["board"])]),
        lambda w, s: [*_write(s), *_join(s["board"]), DONE],
    ),
    _template(
        "open_profile",
        "navigation",
        "open",
        1,
        ("open the profile of {person}", "show the profile of {person}"),
        _slots(person=_draw_person),
        lambda w, s: _profile(_person(w, s["person"])),
        lambda w, s: [*_find(s["person"]), Move("link", s["person"]), DONE],
    ),
    _template(
        "downvote",
        "state",
        "vote",
        1,
        ("downvote {title}", "give a downvote to {title}"),
        _slots(title=_draw_title),
        lambda w, s: _vote(w, forum(w).post(s["title"]), -1),
        lambda w, s: [*_find(s["title"]), Move("link", s["title"]), Move("button", "downvote"), DONE],
    ),
    _template(
        "said",
        "information",
        "said",
        1,
        ("who commented {remark}", "who wrote the comment {remark}"),
        _slots(remark=_draw_remark),
        lambda w, s: _answer(_remark(w, s)[1]),
        _remark_oracle,
    ),
    _template(
        "delete_comment",
        "state",
        "own comment",
        1,
        ("delete my comment on {commented}", "remove my comment on {commented}"),
        _slots(commented=_draw_commented),
        _uncomment,
        lambda w, s: [
            Move("link", "profile"),
            Move("link", s["commented"]),
            Move("link", "delete comment"),
            Move("button", "yes, delete"),
            DONE,
        ],
    ),
    _template(
        "bio_subscribe_upvote",
        "state",
        "subscribe",
        3,
        (
            "change my bio to {bio}, subscribe to the board of {post} and upvote the post",
            "set my bio to {bio}, join the board of {post} and upvote the post",
        ),
        _slots(bio=draw_bio, post=_draw_first),
        _join_vote,
        lambda w, s: [*_set_bio(s["bio"]), Move("link", "home"), *_join_vote_oracle(w, s), DONE],
    ),
    _template(
        "user_bio",
        "information",
        "profile",
        1,
        ("what is the bio of {person}", "what does the profile of {person} say"),
        _slots(person=_draw_person),
        lambda w, s: _answer(_bio(w, s["person"])),
        lambda w, s: [*_find(s["person"]), Move("link", s["person"]), exit_move(_bio(w, s["person"]))],
    ),
    _template(
        "unsubscribe",
        "state",
        "subscribe",
        1,
        ("unsubscribe from {joined}", "leave the board {joined}"),
        _slots(joined=_draw_joined),
        lambda w, s: _activity(w, leave=[_joined(w, s["joined"])]),
        lambda w, s: [Move("link", s["joined"]), Move("button", "unsubscribe"), DONE],
    ),
    _template(
        "comment_top",
        "state",
        "top",
        1,
        ("comment {comment} on the top post in {board}", "write the comment {comment} on the top post in {board}"),
        _slots(comment=draw_text, board=_draw_board),
        lambda w, s: _activity(w, comments=[(_best(w, s["board"]).title, s["comment"])]),
        lambda w, s: [
            Move("link", s["board"]),
            Move("link", "top"),
            Move("link", _best(w, s["board"]).title),
            *_comment(s["comment"]),
            DONE,
        ],
    ),
    _template(
        "no_profile",
        "impossible",
        "open",
        1,
        ("open the profile of {person}", "show the profile of {person}"),
        _slots(person=_draw_stranger),
        _no_person,
        lambda w, s: [*_find(s["person"]), NOT_POSSIBLE],
    ),
    _template(
        "no_bio",
        "impossible",
        "profile",
        1,
        ("what is the bio of {person}", "what does the profile of {person} say"),
        _slots(person=_draw_stranger),
        _no_person,
        lambda w, s: [*_find(s["person"]), NOT_POSSIBLE],
    ),
    _template(
        "switch",
        "state",
        "subscribe",
        2,
        ("unsubscribe from {joined} and subscribe to {board}", "leave the board {joined} and join {board}"),
        _slots(joined=_draw_joined, board=_draw_joinable),
        lambda w, s: _activity(w, leave=[_joined(w, s["joined"])], join=[_joinable(w, s["board"])]),
        lambda w, s: [
            Move("link", s["joined"]),
            Move("button", "unsubscribe"),
            Move("link", "home"),
            *_join(s["board"]),
            DONE,
        ],
    ),
    _template(
        "unvote",
        "state",
        "vote",
        1,
        ("remove my upvote from {upvoted}", "take back my upvote of {upvoted}"),
        _slots(upvoted=lambda w, rng: rng.choice(forum(w).upvoted)),
        _unvote,
        lambda w, s: [*_find(s["upvoted"]), Move("link", s["upvoted"]), Move("button", "remove upvote"), DONE],
    ),
]
