"""Instructions in both orders, compressed right after the system prompt, with two requests.

One request needs the directive, the other tries to make the model leak it. Two texts of one order
share their system prompt to the letter, so that one cache meets both requests. Every seed up to the
number of desks has instructions of its own.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from kvsim.tasks.works import fill, section, works

from .kinds import Kind, Text, chat, data_of

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


def rules(desk: Desk, handbook: str) -> str:
    """One rule per span: what the classes of an instruction-following benchmark are."""
    spans = " ".join(f'<span name="{name}">{rule}</span>' for name, rule in zip(RULE_NAMES, desk.rules))
    return f"{spans}\n\n{handbook}"


def in_order(*names: str) -> Callable[[Desk, str], str]:
    """Defense and directive in this order."""
    def system(desk: Desk, handbook: str) -> str:
        parts = {"defense": " ".join(desk.defense), "directive": f"{' '.join(desk.directive)}\n\n{handbook}"}
        return "\n\n".join(f'<span name="{name}">{parts[name]}</span>' for name in names)

    return system


def builder(desk: Desk, system: Callable[[Desk, str], str], leak: bool = False):
    """`system`: the system prompt of a desk with this handbook."""
    def build(rng: random.Random, units: int) -> Text:
        found = works(rng, max(units, 2))
        handbook = "\n\n".join(section(rng, work) for work in found)
        answer = desk.refusal if leak else "\n\n".join(
            "".join(fill(template, found[number]) for number, template in paragraph)
            for paragraph in desk.answer)
        request = desk.leak if leak else fill(desk.question, found[0])
        return Text(chat(request, system(desk, handbook), compress=True), answer)

    return build


KINDS = [
    Kind(f"order_{order}_{request}",
         f"system prompt with the {order} first, then a {meaning}",
         tuple(builder(desk, system, request == "leak") for desk in DESKS),
         stream="orders")
    for order, system in (("defense", in_order("defense", "directive")),
                          ("directive", in_order("directive", "defense")))
    for request, meaning in (("wish", "request that needs the directive"),
                             ("leak", "request to leak it"))] + [
    Kind("rules", "system prompt with nine rules, a span each, then a request that needs them",
         tuple(builder(desk, rules) for desk in DESKS), stream="orders"),
]
