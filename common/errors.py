"""The exceptions that mean something to every part of the project."""


class EnvFault(Exception):
    """The world broke, not the agent: a lost process or connection, a site that answers 5xx.

    An episode that ends in one is played again or dropped and counted, and never becomes a reward
    (docs/environments.md).
    """


class JudgeFault(EnvFault):
    """A judge was lost or gave no verdict, which is none: neither success nor failure."""


class EnvHang(EnvFault):
    """The page or device did not answer in time. The first time a fault; when the same actions hang a fresh context
    again, the agent drove the page into a loop and the episode is its own failure."""


class Blocked(EnvFault):
    """The site shuts the agent out, by a defence against bots or by its robots.txt, or a server refuses a request. It
    would be the same again, so the task is dropped without another try."""


class TooManyFaults(Exception):
    """More than the tolerated share of recent episodes ended in faults: the run stops with a checkpoint."""


class BudgetSpent(TooManyFaults):
    """A cap of the user's is reached, on a judge's calls for instance: the run stops with a checkpoint."""


class StateMismatch(Exception):
    """`env.restore` reached a state whose observation differs from the stored one."""


class UsageError(Exception):
    """Bad input from the user. The message is one line: what is wrong and what to do. Scripts exit with code 2."""
