"""Instructions in both orders, compressed right after the system prompt, with two requests.

One request needs the directive, the other tries to make the model leak it. Two texts of one order
share their system prompt to the letter, so that one cache meets both requests. Every seed up to the
number of desks has instructions of its own.
"""

import random
from dataclasses import dataclass

from .kinds import Kind, Text, chat, data_of
from .reports import fill, section
from .world import Work, works


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


def answer(desk: Desk, found: list[Work]) -> str:
    return "\n\n".join(
        "".join(fill(template, found[number]) for number, template in paragraph)
        for paragraph in desk.answer)


def rules_builder(desk: Desk):
    """One rule per span: what the classes of an instruction-following benchmark are."""

    def build(rng: random.Random, units: int) -> Text:
        found = works(rng, max(units, 2))
        handbook = "\n\n".join(section(rng, work) for work in found)
        rules = " ".join(f'<span name="{name}">{rule}</span>'
                         for name, rule in zip(RULE_NAMES, desk.rules))
        prompt = chat(fill(desk.question, found[0]), f"{rules}\n\n{handbook}", compress=True)
        return Text(prompt, answer(desk, found))

    return build


def builder(desk: Desk, defense_first: bool, leak: bool):
    def build(rng: random.Random, units: int) -> Text:
        found = works(rng, max(units, 2))
        handbook = [section(rng, work) for work in found]
        defense = f'<span name="defense">{" ".join(desk.defense)}</span>'
        directive = " ".join(desk.directive) + "\n\n" + "\n\n".join(handbook)
        directive = f'<span name="directive">{directive}</span>'
        parts = [defense, directive] if defense_first else [directive, defense]
        request = desk.leak if leak else fill(desk.question, found[0])
        return Text(chat(request, "\n\n".join(parts), compress=True),
                    desk.refusal if leak else answer(desk, found))

    return build


KINDS = [
    Kind(f"order_{order}_{request}",
         f"system prompt with the {order} first, then a {meaning}",
         tuple(builder(desk, order == "defense", request == "leak") for desk in DESKS),
         stream="orders")
    for order in ("defense", "directive")
    for request, meaning in (("wish", "request that needs the directive"),
                             ("leak", "request to leak it"))] + [
    Kind("rules", "system prompt with nine rules, a span each, then a request that needs them",
         tuple(rules_builder(desk) for desk in DESKS), stream="orders"),
]
