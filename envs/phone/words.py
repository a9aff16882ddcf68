"""What the phone's content is drawn from, split for good: what eval and test tasks name occurs in no training task.

As in the arena, a value belongs to one split by its position in the shuffled list (6 of 10 train, 1 eval, 3 test, at
least one each). A world draws with a generator of its own for each purpose.
"""

import random
from dataclasses import dataclass

SEEDS = {"train": range(0, 200), "eval": range(10_000, 10_040), "test": range(20_000, 20_080)}

_LISTS = {
    "first": """Anna Boris Clara David Elena Frank Grace Henry Irene Jacob Karen Louis Maria Nolan Olivia Peter Quinn
        Rosa Simon Tina Albert Bella Carl Diana Edgar Fiona George Hannah Ivan Julia Kevin Laura Martin Nina
        Oscar Paula Ralph Sarah Thomas Ursula Victor Wendy Xavier Yvonne Zoe Adam Betty Colin Daisy Ethan Flora
        Gavin Holly Isaac Jane Keith Linda Mason Nora Otto Penny Ronald Sally Trevor Uma Vincent Walter Alice
        Bruno Cecil Dora Emil Freda Gloria Hugo Iris Jonas Kyle Lydia Miles Naomi Owen Polly Rufus Stella Tobias
        Vera Wilma""",
    "last": """Adams Baker Carter Dixon Evans Fisher Grant Harris Irwin Jensen Keller Lawson Mercer Nelson Owens Parker
        Quincy Reeves Sawyer Turner Underwood Vaughn Walker Young Zimmer Abbott Bishop Cooper Dalton Ellis Foster
        Gibson Hudson Ingram Jordan Kramer Lambert Morgan Newton Oliver Porter Ramsey Shelton Tucker Weaver York
        Archer Barton Conway Duncan Emerson Fletcher Garner Hobbs Jarvis Kendall Lowell Marsh Norris Osborne""",
    "adjective": """Red Blue Green Black White Yellow Purple Orange Brown Gray Silver Golden Compact Folding Portable
        Wireless Wooden Leather Cotton Woolen Silk Velvet Ceramic Steel Bamboo Magnetic Digital Striped Quilted
        Padded Classic Modern Slim Round Square Soft Warm Quiet Bright Sturdy""",
    "noun": """Lamp Chair Table Mug Bowl Kettle Toaster Hose Tent Ball Racket Helmet Drum Guitar Puzzle Robot Kite
        Lantern Mirror Carpet Pillow Blanket Basket Ladder Hammer Bell Clock Watch Scarf Jacket Coat Boots
        Sandals Belt Wallet Backpack Suitcase Umbrella Towel Brush Bottle Blender Heater Fan Broom Sofa Desk
        Shelf Bench Stool Vase Keyboard Mouse Monitor Speaker Headset Camera Tripod Charger Cable Battery
        Telescope Magnet Stapler""",
    "topic": """Travel Camping Fishing Hiking Sailing Swimming Cycling Climbing Chess Painting Pottery Knitting Baking
        Gardening Astronomy Physics Biology History Poetry Theater Cinema Jazz Opera Ballet Weather Climate
        Energy Traffic Museum Library School Budget Savings Taxes Housing Plumbing Carpentry Welding Robots
        Software Network Privacy Trivia Festival Concert Wedding Holiday Birthday Picnic Breakfast Dinner Dessert
        Coffee Cheese Pasta Orchard Vineyard Forest River Ocean Island Volcano""",
    "matter": """Plan Meeting Call Review Report Class Checkup Lesson Lunch Rehearsal Repair Order Visit Workshop Ticket
        Invoice Survey Draft List Summary""",
    "city": """Paris,Tokyo,Sydney,Denver,Boston,Seattle,Austin,Houston,Atlanta,Chicago,Miami,Zurich,Helsinki,Seoul,
        Lisbon,Dublin,Oslo,Madrid,Vienna,Prague,Cairo,Nairobi,Lima,Bogota,Toronto,Montreal,Mumbai,Bangkok,
        Jakarta,Manila""",
    "country": """Peru=Lima,Spain=Madrid,France=Paris,Japan=Tokyo,Norway=Oslo,Austria=Vienna,Egypt=Cairo,Kenya=Nairobi,
        Portugal=Lisbon,Ireland=Dublin,Finland=Helsinki,Colombia=Bogota,Thailand=Bangkok,Cuba=Havana,
        Greece=Athens,Hungary=Budapest,Poland=Warsaw,Sweden=Stockholm,Denmark=Copenhagen,Italy=Rome,
        Chile=Santiago,Iraq=Baghdad,Iran=Tehran,Nepal=Kathmandu,Ghana=Accra,Latvia=Riga,Estonia=Tallinn,
        Tunisia=Tunis,Lebanon=Beirut,Jamaica=Kingston""",
    "animal": "lion,giraffe,elephant,tiger,zebra,hippo,gorilla,ostrich,camel,walrus,bison,moose,wolf,otter,beaver",
    "dish": "pizza,sushi,ramen,tacos,pasta,curry,burgers,noodles,pancakes,salad,dumplings,steak,falafel,waffles",
    "science": "astronomy,physics,biology,chemistry,geology,robotics,medicine,ecology,botany,optics,genetics,zoology",
    "site": "pinemart,bluecart,dealhut,megabay,shopnest,quickmall,homebarn,gadgetly,brightbuy,tinystore",
    "toggle": "wifi,bluetooth,airplane,dark,location,data,rotate,saver,nfc,disturb,hotspot,vibrate,whole_day,tips",
    "level": "brightness,media,ring,alarm_volume",
    "app": """Cinemo,Trailhead,Foodly,Bankster,Ridely,Chirp,Pixelo,Newsly,Musico,Fitlog,Lingua,Weatherly,Mapster,
        Podium,Recipely,Chessio,Budgetly,Photon,Taskly,Streamy""",
    "minute": "0,5,10,15,20,25,30,35,40,45,50,55",
    "language": "English,Deutsch,Italiano,Svenska,Polski,Suomi,Dansk,Magyar,Hrvatski,Nederlands",
    "code": "gate,alarm,locker,cabin,garage,office,safe,studio,attic,boat",
    "street": "Oak,Maple,Cedar,Birch,Willow,Chestnut,Linden,Walnut,Poplar,Juniper,Laurel,Hawthorn",
    "item": "batteries,earphones,usb cable,game mouse,tablet case,laptop stand,webcam,power bank,router,desk fan,"
    "hard drive,smart bulb,action camera,microphone,phone holder,bike light",
}


def share(kind, values):
    """The values of each split: {"train": .., "eval": .., "test": ..}."""
    shuffled = sorted(dict.fromkeys(values))
    random.Random(f"phone-{kind}").shuffle(shuffled)
    count, least = len(shuffled), 2 if len(values) >= 10 else 1  # of eval, and of test
    a = min(round(0.6 * count), count - 2 * least)
    b = max(round(0.7 * count), a + least)
    return {"train": shuffled[:a], "eval": shuffled[a:b], "test": shuffled[b:]}


def _split_lists():
    pools = {}
    for kind, words in _LISTS.items():
        values = [word.strip() for word in words.split(",")] if "," in words else words.split()
        pools[kind] = share(kind, values)
    return pools


_POOLS = _split_lists()


def pool(kind, split):
    """The values of `kind` that tasks of `split` may name."""
    return _POOLS[kind][split]


def everything(kind):
    """All values of a kind, in the order of the lists: for what every world has, such as the web's shops."""
    return sorted(value for split in SEEDS for value in pool(kind, split))


def split_of(seed):
    """The split that a seed belongs to; every seed belongs to one."""
    return "train" if seed < 10_000 else "eval" if seed < 20_000 else "test"


@dataclass(frozen=True)
class World:
    """The content of one seed."""

    seed: int

    @property
    def split(self):
        return split_of(self.seed)

    def rng(self, purpose):
        return random.Random(f"phone/{self.seed}/{purpose}")

    def pool(self, kind):
        return pool(kind, self.split)

    def own(self, values):
        """Those of some fixed values (a menu's, say) that tasks of this world may name."""
        return share("own", values)[self.split]
