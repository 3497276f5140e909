"""Texts about public works: a long report to summarise, documents to question, needles in both."""

import json
import random
import re

from kvsim.tasks.works import FIRST_NAMES, PLACES, Work, fill, section, sentence, works

from .kinds import ASK, Kind, Text, chat, data_of

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)

DATA = data_of(__file__)
SUMMARIES, GENRES, QUESTIONS = DATA["summaries"], DATA["genres"], DATA["questions"]


def report(rng: random.Random, found: list[Work]) -> list[str]:
    return [
        f"{number}. {sentence(work.thing)}, {work.place}\n{section(rng, work)}"
        for number, work in enumerate(found, 1)]


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
        "it, and what it cost.")
    total = sum(work.cost for work in found)
    closing = (
        f"All in all the county spent {total:,} crowns on {units} works, and most of them repaid "
        "it in comfort, safety or plain good temper.")
    answer = "\n\n".join([opening, paragraphs(summary_sentences(rng, found)), closing])
    user = f"A county report on public works follows.\n\n{body}\n\n{ASK}{question}"
    return Text(chat(user), answer)


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
        "starting from the end.")
    prose = paragraphs(summary_sentences(rng, found[:5]))
    records = [
        json.dumps({"place": w.place, "thing": w.thing, "year": w.year, "cost": w.cost})
        for w in reversed(found)]
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
            for name, place, code in zip(names, places, codes)]
        depths = [depth] if depth is not None else [(i + 0.5) / count for i in range(count)]
        whose = " and ".join(f"{name} at {place}" for name, place in zip(names, places))
        question = f"Which locker numbers does the text above give for {whose}?"
        answer = " ".join([
            "The report mentions them in passing, between sentences that are about other things.",
            *(f"{name}'s locker at {place} has the number {code}."
              for name, place, code in zip(names, places, codes)),
            "Nothing else in the text has to do with lockers, so there is no second number to "
            "confuse them with.",
        ])
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
    for d in DEPTHS]
KINDS += [kind.before_question() for kind in KINDS if kind.name in (
    "summary", "questions", "needles4")]
