"""Texts about public works: a long report to summarise, documents to question, needles in both."""

import json
import random
import re

from .kinds import ASK, Kind, Text, chat
from .world import FIRST_NAMES, PLACES, Work, sentence, works

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)

OPENINGS = (
    "In {year} the council was told that {title} could not go on as it was: {fault}.",
    "Few works of {year} were talked about as much as {title}. The trouble was plain: {fault}.",
    "{leader} still remembers the first letter about {title}. It said that {fault}.",
    "By {year} everybody in {place} knew that {fault}, and {title} came before the council.",
    "The file on {title} opens in {year} with a single sheet, which says that {fault}.",
)
FINDINGS = (
    "A closer look showed that {cause}.",
    "It took {leader} two visits to see why: {cause}.",
    "What the first inspector had missed was that {cause}.",
    "The reason lay deeper, for {cause}.",
)
ACTIONS = (
    "Under {leader}, a crew of {workers} {remedy}.",
    "{leader} was given {workers} people and {months} months; they {remedy}.",
    "The plan was simple enough to fit on one page: {workers} workers under {leader} {remedy}.",
    "So {leader} gathered {workers} workers from the neighbouring villages, and together they "
    "{remedy}.",
)
MONEY = (
    "The bill came to {cost} crowns, and the work took {months} months.",
    "It cost {cost} crowns, a little less than had been set aside, and took {months} months.",
    "After {months} months the last invoice was paid; the sum was {cost} crowns.",
    "For {cost} crowns and {months} months of patience, the matter was settled.",
)
DOUBTS = (
    "{critic} spoke against it in the council and called it money spent on a nuisance.",
    "{critic} would rather have seen the sum go to the roads, and said so in the newspaper.",
    "{critic} asked for a second opinion, which agreed with the first in every point.",
    "Not everyone was pleased: {critic} complained about the noise until the very last day.",
    "{critic}, who had opposed the plan, later wrote a friendly letter about it.",
)
RESULTS = (
    "Since then {result}.",
    "The outcome is easy to tell: {result}.",
    "Today {result}.",
    "Two years on, {result}.",
)
SUMMARIES = (
    "{title} was put right in {year} by {leader} for {cost} crowns, because {fault}; since then "
    "{result}.",
    "At {place}, where {fault}, {leader} and {workers} workers {remedy}. The bill was {cost} "
    "crowns.",
    "The reason for the trouble with {title} was that {cause}, and after {months} months of work "
    "{result}.",
    "{leader} led the work on {title} in {year}: the crew {remedy}, although {critic} had doubts.",
)


def fill(template: str, work: Work) -> str:
    values = vars(work) | {"title": work.title, "cost": f"{work.cost:,}"}
    return sentence(template.format(**values))


def section(rng: random.Random, work: Work) -> str:
    """A paragraph of about a hundred words."""
    parts = [OPENINGS, FINDINGS, ACTIONS, MONEY, DOUBTS, RESULTS]
    return " ".join(fill(rng.choice(choices), work) for choices in parts)


def report(rng: random.Random, found: list[Work]) -> list[str]:
    return [
        f"{number}. {sentence(work.thing)}, {work.place}\n{section(rng, work)}"
        for number, work in enumerate(found, 1)
    ]


def summary_sentences(rng: random.Random, found: list[Work]) -> list[str]:
    start = rng.randrange(len(SUMMARIES))
    return [fill(SUMMARIES[(start + i) % len(SUMMARIES)], w) for i, w in enumerate(found)]


def paragraphs(sentences: list[str], size: int = 4) -> str:
    groups = (sentences[i : i + size] for i in range(0, len(sentences), size))
    return "\n\n".join(" ".join(group) for group in groups)


def build_summary(rng: random.Random, units: int) -> Text:
    found = works(rng, units)
    body = "\n\n".join(report(rng, found))
    question = "Please summarise this report for readers who have five minutes."
    opening = (
        "The report looks back on small public works in the county: what was broken, who mended "
        "it, and what it cost."
    )
    total = sum(work.cost for work in found)
    closing = (
        f"All in all the county spent {total:,} crowns on {units} works, and most of them repaid "
        "it in comfort, safety or plain good temper."
    )
    answer = "\n\n".join([opening, paragraphs(summary_sentences(rng, found)), closing])
    user = f"A county report on public works follows.\n\n{body}\n\n{ASK}{question}"
    return Text(chat(user), answer)


LETTER = (
    "Dear {critic},\n\nyou asked about {title}. When I took it over in {year}, {fault}. I will be "
    "frank: {cause}. We were {workers} people, and we {remedy}. You feared the cost; it was {cost} "
    "crowns. You will be glad to hear that {result}.\n\nYours, {leader}"
)
MINUTES = (
    "Present: {leader} in the chair, {critic}, the clerk. Item: {title}. The chair reports that "
    "{fault}. Inspection found that {cause}. {critic} objects to the sum of {cost} crowns. Carried "
    "by one vote. Result, entered in {year}: within {months} months {workers} workers {remedy}, "
    "and {result}."
)
NEWS = (
    "{place}, {year}. It is done: {title} is open again. For a long time {fault}, and only when "
    "somebody noticed that {cause} was there any hope. {leader}, who led the crew of {workers}, "
    "said that it had taken {months} months and {cost} crowns. {critic} was not at the opening. "
    "Our reporter saw for herself that {result}."
)
DIARY = (
    "Walked over to {place} to see {title}. Last time {fault}. {leader} showed me everything and "
    "told me that {cause}. Then the {workers} of them {remedy}. All that in {months} months of "
    "{year}, for {cost} crowns! Even {critic} has to admit that {result}."
)
GENRES = {
    "letter": LETTER, "minutes": MINUTES, "newspaper notice": NEWS, "diary page": DIARY,
}  # fmt: skip
QUESTIONS = (
    ("Who led the work on {title}?",
     "The work on {title} was led by {leader}; document {number} ({genre}) says so."),
    ("What did {title} cost, and how long did it take?",
     "{title} cost {cost} crowns and took {months} months, according to document {number}. The "
     "crew counted {workers} people."),
    ("What was wrong with {title}?",
     "About {title}, document {number} tells that {fault}. The cause was that {cause}."),
    ("What came of the work on {title}?",
     "According to document {number} ({genre}), the work on {title} had a good end: {result}."),
    ("Who was against spending money on {title}?",
     "That was {critic}. Document {number} names nobody else who opposed the {cost} crowns for "
     "{title}."),
)  # fmt: skip


def build_questions(rng: random.Random, units: int) -> Text:
    found = works(rng, units)
    documents, told = [], []
    for number, work in enumerate(found, 1):
        genre = rng.choice(list(GENRES))
        documents.append(f"Document {number} ({genre})\n{fill(GENRES[genre], work)}")
        told.append(vars(work) | {"title": work.title, "cost": f"{work.cost:,}",
                                  "number": number, "genre": genre})
    asked, answers = [], []
    for number, values in enumerate(rng.sample(told, min(14, units)), 1):
        question, answer = QUESTIONS[(number - 1) % len(QUESTIONS)]
        asked.append(f"{number}. {question.format(**values)}")
        answers.append(f"{number}. {sentence(answer.format(**values))}")
    user = "\n\n".join([*documents, f"{ASK}Answer these questions from the documents alone, and say "
                        "which document you rely on.\n" + "\n".join(asked)])
    return Text(chat(user), "\n\n".join(answers))


def build_switch(rng: random.Random, units: int) -> Text:
    """The answer summarises at first and then, as asked, becomes a list of JSON records."""
    found = works(rng, units)
    body = "\n\n".join(report(rng, found))
    question = (
        "First summarise the first five sections in plain prose. Then change over: write one "
        "JSON record per line, with the keys place, thing, year and cost, for the last sections, "
        "starting from the end."
    )
    prose = paragraphs(summary_sentences(rng, found[:5]))
    records = [
        json.dumps({"place": w.place, "thing": w.thing, "year": w.year, "cost": w.cost})
        for w in reversed(found)
    ]
    return Text(chat(f"{body}\n\n{question}"), f"{prose}\n\n" + "\n".join(records))


def hide(body: str, facts: list[str], depths: list[float]) -> str:
    """Puts each fact between the two sentences nearest to its depth, as a span with its number."""
    gaps = [0, *(gap.end() for gap in re.finditer(r"[a-z]\.\s+(?=[A-Z])", body)), len(body)]
    names = [f"needle{i}" for i in range(1, len(facts) + 1)] if len(facts) > 1 else ["needle"]
    placed = [(min(gaps, key=lambda gap: abs(gap - depth * len(body))), name, fact)
              for name, fact, depth in zip(names, facts, depths)]
    for gap, name, fact in sorted(placed, reverse=True):
        span = f'<span name="{name}">{fact}</span>'
        body = f"{body} {span}" if gap == len(body) else f"{body[:gap]}{span} {body[gap:]}"
    return body


def needle_builder(count: int, depth: float | None):
    """`count` facts hidden in a report: one at `depth` (0 start, 1 end), or evenly spread."""

    def build(rng: random.Random, units: int) -> Text:
        body = "\n\n".join(report(rng, works(rng, units)))
        names, places = rng.sample(FIRST_NAMES, count), rng.sample(PLACES, count)
        codes = [str(rng.randint(10000, 99999)) for _ in range(count)]
        facts = [
            f"The number of {name}'s locker at {place} is {code}."
            for name, place, code in zip(names, places, codes)
        ]
        depths = [depth] if depth is not None else [(i + 0.5) / count for i in range(count)]
        whose = " and ".join(f"{name} at {place}" for name, place in zip(names, places))
        question = f"Which locker numbers does the text above give for {whose}?"
        answer = " ".join([
            "The report mentions them in passing, between sentences that are about other things.",
            *(f"{name}'s locker at {place} has the number {code}."
              for name, place, code in zip(names, places, codes)),
            "Nothing else in the text has to do with lockers, so there is no second number to "
            "confuse them with.",
        ])  # fmt: skip
        return Text(chat(f"{hide(body, facts, depths)}\n\n{ASK}{question}"), answer)

    return build


KINDS = [
    Kind("summary", "summarise a long report", (build_summary,)),
    Kind("questions", "answer questions over several documents", (build_questions,)),
    Kind("switch", "a summary that switches to JSON records midway", (build_switch,)),
    Kind("needles4", "four facts, evenly spread in a report", (needle_builder(4, None),),
         stream="needles"),
] + [
    Kind(f"needle_d{round(100 * d):03d}", f"one fact at depth {d:.2f} of a report",
         (needle_builder(1, d),), stream="needles")
    for d in DEPTHS
]  # fmt: skip
KINDS += [kind.before_question() for kind in KINDS if kind.name in (
    "summary", "questions", "needles4")]
