"""An invented island county: people, places and public works, the facts behind the texts."""

import random
from dataclasses import dataclass

PLACES = (
    "Skerrow", "Amber Quay", "Low Fenwick", "Tarn Bridge", "Hollin Head", "Saint Orrin",
    "Marsh End", "Gull Row", "Upper Dell", "Kestrel Bay", "Old Ferry", "Pennick", "Stonecroft",
    "Wren Hill", "Long Strand", "Bellhaven", "Cold Ash", "Millbeck", "Thornby", "East Holm",
    "Larkfield", "Dunmere", "Sallow Green", "Ravensholt",
)  # fmt: skip
FIRST_NAMES = (
    "Ada", "Bram", "Clara", "Dov", "Edith", "Felix", "Greta", "Hugo", "Ines", "Jonas", "Kaya",
    "Leif", "Mira", "Nils", "Olga", "Pavel", "Ruth", "Selma", "Tomas", "Una", "Viktor", "Wanda",
    "Yusuf", "Zora", "Agnes", "Boris", "Carmen", "Dorian",
)  # fmt: skip
LAST_NAMES = (
    "Vane", "Okafor", "Lindqvist", "Barrow", "Castellan", "Dray", "Ekholm", "Farrow", "Gantry",
    "Hale", "Imber", "Jessop", "Kowal", "Lomax", "Marsh", "Nand", "Orme", "Pell", "Quist",
    "Rook", "Sandoval", "Tindall", "Ufford", "Voss", "Whitlock", "Yarrow",
)  # fmt: skip

# thing, what was wrong, what was found on closer look, what was done, what came of it
WORKS = (
    ("footbridge", "its planks had gone soft and two of them broke in one week",
     "rain had run down the bolts for years and rotted the beams from within",
     "laid oak beams on steel shoes and tilted the deck so that water runs off",
     "children walk to school that way again instead of along the main road"),
    ("public library", "the roof leaked over the map room whenever the wind came from the west",
     "a gutter had been nailed shut during an earlier repair",
     "opened the gutter, relaid the slates and moved the maps to drawers of cedar",
     "loans went up by a third within a year"),
    ("fish market", "the cold store failed on the three hottest days of the summer",
     "the compressor had been sized for half of the present catch",
     "put in two smaller machines, either of which can hold the room alone",
     "no catch has been thrown away since"),
    ("bus shelter", "nobody used it because the wind blew straight through",
     "it had been built facing the sea by mistake",
     "turned the whole shelter round on new footings and glazed the north side",
     "the number of passengers doubled on winter mornings"),
    ("swimming bath", "the water was never warmer than eighteen degrees",
     "warm water left through a drain that no plan showed",
     "closed the drain and added a heat exchanger at the boiler house",
     "swimming lessons could begin in February instead of May"),
    ("village well", "the water tasted of iron and left brown rings in every kettle",
     "the old iron pipe had rusted through below the pump",
     "lined the shaft and replaced the pipe with one of stone ware",
     "families stopped buying bottled water from the mainland"),
    ("school kitchen", "meals came to the table cold and a quarter was left on the plates",
     "food was carried across the yard in open pans",
     "cut a hatch between kitchen and hall and bought lidded dishes",
     "waste fell so far that the school now keeps no pigs"),
    ("sea wall", "spray reached the houses behind it at every spring tide",
     "the toe of the wall had been scoured out to the depth of a man",
     "placed a bank of rough boulders in front and filled the holes with lime concrete",
     "insurers withdrew the surcharge on forty houses"),
    ("clock tower", "the clock ran eleven minutes slow by the end of each week",
     "starlings had nested in the case and their straw rubbed on the pendulum",
     "hung fine netting over the louvres and cleaned the movement wheel by wheel",
     "the ferry and the clock have agreed ever since"),
    ("allotment garden", "half of the plots stood under water until April",
     "a clay drain had collapsed beneath the lane",
     "dug a new ditch with a willow hedge to hold its banks",
     "the waiting list for plots has sixty names on it"),
    ("health post", "patients waited outside in the rain because the hall was too narrow",
     "a third of the floor was taken up by files that nobody opened",
     "moved the files to the archive and turned the store into a waiting room",
     "two more hours of visits fit into each day"),
    ("ferry landing", "the ramp was so slippery at low water that carts slid back",
     "green weed grew thickest where the old granite had been polished by wheels",
     "roughened the stone and fixed cross bars of larch every half metre",
     "there has been no accident in three seasons"),
    ("bakery oven", "bread burned at the back while the front stayed pale",
     "the flue drew too hard because a damper was missing",
     "forged a damper after a drawing from 1904 and rebuilt the arch",
     "the cooperative bakes twice a day with less wood than before"),
    ("street lighting", "the lamps hummed all night and lit the bedrooms more than the road",
     "the mirrors had been mounted upside down",
     "remounted every mirror and dimmed the lamps after eleven",
     "the bill for power fell by two fifths and nobody has asked for more light"),
    ("bird reserve path", "walkers strayed into the nesting ground",
     "the path crossed three wet hollows that people went round",
     "carried the path over the hollows on low boardwalks of chestnut",
     "pairs of lapwing rose from nine to twenty-six"),
    ("music hall", "the back rows could not hear the singers",
     "heavy curtains hung where the old plans showed bare wood",
     "took down the curtains and set a curved board above the stage",
     "the choir sold every ticket for its spring concert"),
    ("post office", "letters arrived a day late on every second Tuesday",
     "the sorting table was shared with the savings bank",
     "built a second table from the old counter and changed the order of the rounds",
     "complaints dropped from thirty a month to two"),
    ("rope works", "sparks from the winding gear had twice set fire to the dust",
     "the bearings ran dry because the oil cups sat behind a beam",
     "brought the oil cups forward and hung a water curtain along the wall",
     "the fire brigade has struck the works from its list of dangers"),
    ("playground", "the swings stood idle although the square was full of children",
     "the ground beneath them turned to mud after every shower",
     "spread cork bark over gravel and planted three limes for shade",
     "the square is now the loudest place in the village, to general delight"),
    ("tide mill", "the wheel stopped whenever weed drifted in",
     "the grating had bars so wide that whole mats passed through",
     "set a second, finer grating at an angle so that the ebb cleans it",
     "the mill grinds on twenty-five days a month instead of fourteen"),
    ("town archive", "mould had reached the registers of births",
     "a cellar window had been bricked up and the air stood still",
     "opened the window, laid a gravel trench and dried the books between felts",
     "all but four of the registers can be read again"),
    ("observatory dome", "it could only be turned by four people at once",
     "the rail had sunk on the side that faces the slope",
     "jacked the rail level and fitted wheels with rubber tyres",
     "a school class turned it with one hand on the day of opening"),
)  # fmt: skip


@dataclass
class Work:
    """One piece of public work, as every text about it tells it."""

    place: str
    thing: str
    fault: str
    cause: str
    remedy: str
    result: str
    leader: str
    critic: str
    year: int
    months: int
    cost: int
    workers: int

    @property
    def title(self) -> str:
        return f"the {self.thing} at {self.place}"


def person(rng: random.Random) -> str:
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


def works(rng: random.Random, count: int) -> list[Work]:
    """`count` works, no two of one thing at one place."""
    places, kinds = list(PLACES), list(WORKS)
    rng.shuffle(places)
    rng.shuffle(kinds)
    found = []
    for i in range(count):
        # Both lists turn at different speeds, so that pairs do not repeat for 24 * 22 works.
        thing, fault, cause, remedy, result = kinds[i % len(kinds)]
        place = places[(i + i // len(kinds)) % len(places)]
        found.append(Work(
            place, thing, fault, cause, remedy, result, person(rng), person(rng),
            rng.randint(1961, 2019), rng.randint(2, 19), 100 * rng.randint(14, 960),
            rng.randint(3, 48),
        ))  # fmt: skip
    return found


def sentence(text: str) -> str:
    """Its first letter as a capital, whatever it begins with."""
    return text[0].upper() + text[1:]
