"""Word lists the arena's worlds are drawn from, split so that evaluation words never occur in a training task.

A word belongs to one split for good: its position in the shuffled list decides (6 of 10 train, 1 of 10 eval, 3 of 10
test), whatever world it is drawn in. Fixed site vocabulary (categories, boards, sizes, button labels) is common to all.
"""

import random

_LISTS = {
    "adjective": """red blue green black white yellow purple pink orange brown gray silver golden bronze copper ivory
        crimson scarlet amber teal navy olive maroon beige violet indigo turquoise tiny small large giant huge mini tall
        short long wide narrow slim thick thin flat round square oval curved straight folding portable compact soft hard
        firm smooth rough shiny matte glossy bright dark pale warm cold cool fresh dry quiet silent loud fast slow quick
        rapid steady heavy light strong tough sturdy gentle mild bold brave calm happy jolly merry lucky proud royal
        noble humble simple plain fancy elegant classic modern antique vintage rustic urban rural alpine coastal desert
        tropical arctic nordic winter summer autumn spring sunny rainy snowy stormy misty cloudy starry lunar solar
        magic mystic secret hidden open double triple single wooden leather cotton woolen silk linen velvet paper glass
        plastic rubber ceramic marble granite steel crystal bamboo wicker magnetic electric digital manual wireless
        striped dotted checked floral painted polished brushed carved woven knitted quilted padded insulated waterproof
        washable natural organic spicy sweet salty sour bitter smoky minty fruity creamy crunchy roasted""",
    "noun": """lamp chair table mug bowl knife spoon fork plate kettle toaster shovel rake hose pot glove tent rope ball
        racket helmet skate bike drum flute guitar piano violin trumpet novel atlas diary notebook puzzle robot doll
        kite train truck boat canoe kayak paddle anchor compass lantern candle mirror carpet rug pillow blanket curtain
        basket bucket ladder hammer wrench pliers screw nail bolt chain wheel engine motor saddle bell whistle clock
        watch ring necklace bracelet brooch scarf hat cap jacket coat vest shirt sweater skirt dress boot sandal slipper
        sock belt wallet purse backpack suitcase umbrella towel soap sponge brush comb razor bottle flask jar jug cup
        tray pan oven stove blender mixer grinder scale timer thermometer heater fan vacuum broom mop sofa couch
        desk shelf cabinet drawer wardrobe bench stool hammock mattress vase frame poster statue globe map
        pencil crayon marker eraser ruler scissors stapler folder envelope calendar calculator printer scanner keyboard
        mouse monitor speaker headset camera tripod charger cable adapter battery flashlight telescope microscope magnet
        easel canvas palette chisel drill saw sander clamp toolbox apron ladle whisk sieve teapot saucer napkin
        tablecloth doormat planter trellis sprinkler wheelbarrow birdhouse feeder aquarium leash collar stroller crib
        rattle teddy domino dice chessboard dartboard frisbee snorkel surfboard sled snowboard dumbbell treadmill
        yoyo jigsaw""",
    "first": """anna boris clara david elena frank grace henry irene jacob karen louis maria nolan olivia peter quinn
        rosa simon tina albert bella carl diana edgar fiona george hannah ivan julia kevin laura martin nina oscar paula
        ralph sarah thomas ursula victor wendy xavier yvonne zoe adam betty colin daisy ethan flora gavin holly isaac
        jane keith linda mason nora otto penny ronald sally trevor uma vincent walter alice bruno cecil dora emil freda
        gloria hugo iris jonas kyle lydia miles naomi owen polly rufus stella tobias vera wilma abel bianca cyrus delia
        ernest felix greta harold ingrid jasper kurt leona magnus nadia orson pearl reuben sonia theo vivian wallace""",
    "last": """adams baker carter dixon evans fisher grant harris irwin jensen keller lawson mercer nelson owens parker
        quincy reeves sawyer turner underwood vaughn walker young zimmer abbott bishop cooper dalton ellis foster
        gibson hudson ingram jordan kramer lambert morgan newton oliver porter ramsey shelton tucker weaver
        york archer barton conway duncan emerson fletcher garner hobbs jarvis kendall lowell marsh norris osborne palmer
        rollins stanton thorpe wallis yates ashby bolton crosby drake everett farrell gilmore holloway""",
    "topic": """travel camping fishing hiking sailing running swimming cycling climbing skiing chess poker painting
        drawing pottery knitting sewing baking cooking grilling gardening farming beekeeping astronomy physics biology
        chemistry geology history poetry fiction theater cinema jazz opera ballet folklore mythology language grammar
        weather climate energy recycling transport traffic railway bridge harbor airport museum library school college
        market budget savings taxes housing repair plumbing wiring heating carpentry welding cars bicycles
        tractors drones robots software hardware network database compiler keyboard browser privacy security
        riddle trivia quiz festival carnival parade concert wedding holiday birthday picnic breakfast lunch dinner
        dessert coffee tea juice bread cheese soup salad pasta pizza noodles curry honey pepper garlic mushroom tomato
        potato orchard vineyard forest river lake ocean island canyon volcano glacier meadow wetland wildlife birds
        owls eagles wolves bears foxes deer horses cats dogs rabbits turtles whales dolphins sharks insects spiders
        dinosaur fossil comet planet galaxy rocket satellite""",
    "verb": """fix build clean paint plant grow find choose make carry store sell trade collect draw write read learn
        teach train walk climb cross visit explore photograph record measure compare test review share borrow rent
        restore replace remove install close lock move lift push pull fold wash dry cook bake grill freeze
        pack ship track plan book cancel return donate organize sort label count""",
}


def _split_lists():
    """Shuffle every list with a fixed seed and cut it 6 : 1 : 3."""
    pools = {}
    for kind, words in _LISTS.items():
        unique = sorted(set(words.split()))
        random.Random(f"arena-{kind}").shuffle(unique)
        a, b = round(0.6 * len(unique)), round(0.7 * len(unique))
        pools[kind] = {"train": unique[:a], "eval": unique[a:b], "test": unique[b:]}
    return pools


_POOLS = _split_lists()


def pool(kind, split):
    """The words of `kind` ("adjective", "noun", "first", "last", "topic", "verb") that `split` may use.

    Raises KeyError for an unknown kind or split.
    """
    return _POOLS[kind][split]


def everything():
    """All words of all kinds and splits, sorted: what a tokenizer's vocabulary should hold whole."""
    return sorted({word for splits in _POOLS.values() for words in splits.values() for word in words})
