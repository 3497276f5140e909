"""Long worked answers to short questions: what a model that reasons writes before it answers.

Every step is computed, names numbers of steps before it, and is checked a second time, so that what
was written long ago is needed again. A model is forced along such a text. The prompt is the question
alone: of these kinds the answer grows with the units.
"""

import random

from .kinds import Kind, Text, chat

NAMES = ("Anna", "Ben", "Carla", "David", "Eva", "Felix", "Greta", "Hugo")
GOODS = ("notebooks", "pens", "rulers", "folders", "brushes", "lamps", "maps", "stamps")


def ledger(rng: random.Random, steps: int) -> Text:
    """A shop's stock and cash, day by day, each day checked against the day before."""
    goods = rng.sample(GOODS, 4)
    price = {one: rng.randint(2, 9) for one in goods}
    stock = {one: rng.randint(40, 90) for one in goods}
    cash = start = rng.randint(100, 300)
    told = ", ".join(f"{stock[one]} {one} at {price[one]} dollars each" for one in goods)
    question = (f"A shop has {told}, and {cash} dollars in its till. Every day somebody buys some "
                "of one thing, and every third day the shop buys ten more of what it has least of, "
                "for half of the price. Work out day by day what is in the till and on the "
                "shelves. Check every step.")
    lines = [f"The shop starts with {start} dollars. On the shelves are {told}."]
    for day in range(1, steps + 1):
        one, buyer = rng.choice(goods), rng.choice(NAMES)
        count = rng.randint(1, max(1, stock[one] // 6))
        paid = count * price[one]
        lines.append(
            f"Day {day}. {buyer} buys {count} {one}. One of the {one} costs {price[one]} dollars, "
            f"so {buyer} pays {count} * {price[one]} = {paid} dollars. The till had {cash} dollars "
            f"and now has {cash} + {paid} = {cash + paid} dollars. There were {stock[one]} {one}, "
            f"so {stock[one]} - {count} = {stock[one] - count} are left.")
        cash, stock[one] = cash + paid, stock[one] - count
        if day % 3 == 0:
            least = min(goods, key=lambda thing: (stock[thing], thing))
            cost = 10 * price[least] // 2
            lines.append(
                f"Day {day} is a third day. The shop has least of {least}: {stock[least]}. Ten more "
                f"cost 10 * {price[least]} / 2 = {cost} dollars. The till has {cash} - {cost} = "
                f"{cash - cost} dollars, and there are {stock[least] + 10} {least}.")
            cash, stock[least] = cash - cost, stock[least] + 10
        if day % 5 == 0:
            worth = sum(stock[thing] * price[thing] for thing in goods)
            parts = " + ".join(f"{stock[thing]} * {price[thing]}" for thing in goods)
            lines.append(f"Let me check. What is on the shelves is worth {parts} = {worth} dollars. "
                         f"With {cash} dollars in the till that is {worth + cash} dollars. The shop "
                         f"started with {start} dollars in the till.")
    return Text(chat(question), "\n\n".join(lines))


def seats(rng: random.Random, steps: int) -> Text:
    """Seatings of five people, case by case, each held to the rules."""
    people = rng.sample(NAMES, 5)
    apart, left, end = people[:2], people[2:4], people[4]
    question = (f"{', '.join(people[:4])} and {people[4]} sit in a row. {apart[0]} does not sit "
                f"next to {apart[1]}. {left[0]} sits further left than {left[1]}. {end} sits at an "
                "end of the row. Go through many seatings, one after the other, and say for each "
                "whether it is allowed and why. Keep a list of those that are.")
    lines, allowed = [f"There are three rules. First: {apart[0]} is not next to {apart[1]}. Second: "
                      f"{left[0]} is left of {left[1]}. Third: {end} is at an end."], []
    for case in range(1, steps + 1):
        row = people[:]
        rng.shuffle(row)
        at = {one: row.index(one) + 1 for one in row}
        near = abs(at[apart[0]] - at[apart[1]]) == 1
        wrong = at[left[0]] > at[left[1]]
        inside = at[end] not in (1, 5)
        text = (f"Case {case}: {', '.join(row)}. {apart[0]} is in seat {at[apart[0]]} and "
                f"{apart[1]} in seat {at[apart[1]]}, so they are {'' if near else 'not '}next to "
                f"each other, and the first rule is {'broken' if near else 'kept'}. ")
        if not near:
            text += (f"{left[0]} is in seat {at[left[0]]} and {left[1]} in seat {at[left[1]]}, so "
                     f"the second rule is {'broken' if wrong else 'kept'}. ")
        if not near and not wrong:
            text += (f"{end} is in seat {at[end]}, so the third rule is "
                     f"{'broken' if inside else 'kept'}. ")
        if near or wrong or inside:
            text += "This seating is not allowed."
        else:
            if row not in allowed:
                allowed.append(row)
            text += "This seating is allowed. The list is now: " + "; ".join(
                ", ".join(one) for one in allowed[-4:]) + "."
        lines.append(text)
    return Text(chat(question), "\n\n".join(lines))


def sorting(rng: random.Random, steps: int) -> Text:
    """Insertion sort of a list by hand, every comparison and every move."""
    values = rng.sample(range(10, 99), 24)
    shown = str(values)
    question = (f"Sort the list {shown} by insertion, from the smallest to the largest. Write down "
                "every comparison and the list after every insertion, and say at the end where "
                "each number came from.")
    lines, sorted_part, made = [f"The list is {shown}."], [values[0]], 0
    for number, value in enumerate(values[1:], 2):
        text = (f"Step {number - 1}. The sorted part is {sorted_part}. Number {number} of the list "
                f"is {value}. ")
        at = len(sorted_part)
        while at and made < steps * 4:
            made += 1
            if sorted_part[at - 1] <= value:
                text += f"{sorted_part[at - 1]} is smaller than {value}, so it stays. "
                break
            text += f"{sorted_part[at - 1]} is larger than {value}, so it moves right. "
            at -= 1
        sorted_part = sorted([*sorted_part, value])
        text += f"{value} is put in place {sorted_part.index(value) + 1}."
        lines.append(text)
    lines.append("Where each came from: " + ", ".join(
        f"{value} was number {values.index(value) + 1}" for value in sorted_part) + ".")
    return Text(chat(question), "\n\n".join(lines))


class Worked(Kind):
    """A kind of worked answers."""

    def numbers(self, seed: int) -> random.Random:
        return random.Random(f"{self.name} {seed}")


KINDS = [Worked(build.__name__, f"{meaning}: a short question, a long worked answer", (build,),
                long=True)
         for build, meaning in ((ledger, "a shop's till and shelves"), (seats, "who sits where"),
                                (sorting, "a list sorted by hand"))]
