"""System prompts of the texts about eviction bias: desks.toml."""

from dataclasses import dataclass

from .kinds import data_of

DATA = data_of(__file__)
RULE_NAMES = tuple(DATA["rule_names"])


@dataclass(frozen=True)
class Desk:
    """One desk. Templates name facts of a `Work`; `answer` keeps every rule of the directive."""

    defense: list[str]
    directive: list[str]
    rules: list[str]     # one sentence per name in RULE_NAMES
    question: str
    leak: str
    refusal: str
    answer: list[list[tuple[int, str]]]   # paragraphs of (number of the work, template)
    keyword: str
    ending: str


DESKS = tuple(Desk(**desk) for desk in DATA["desk"])
