"""Word lists the arena's worlds are drawn from, split so that evaluation words never occur in a training task.

A word belongs to one split for good: its position in the shuffled list decides (6 of 10 train, 1 of 10 eval, 3 of 10
test), whatever world it is drawn in; many more are for training alone. Fixed site vocabulary (categories, boards,
sizes, button labels) is common to all.
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

# Words for training worlds alone, single tokens of the tiny base. With the 470 above a small model learns its words by
# heart: 4,000 demonstrations instead of 1,000 took whole episodes on training words from .76 to .94, on others from .56
# to .59.
_TRAINING = {
    "adjective": """able absolute abstract accessible active actual additional alive alternate arbitrary automatic
        aware backward bad basic better binary blank bogus broken canonical certain chosen clear common
        compatible complete complex concrete constant convenient correct current custom decimal derived
        desired detailed direct dynamic easy efficient encoded entire equal explicit extended external
        false final finished finite fixed floating formal forward frozen full future general generic
        global greater identical idle imaginary important initial inner internal invalid lazy leading
        legal linear literal local locked logical lower marked meaningful merged minimal mixed modified
        mutable named nearest necessary negative nested normal numeric ordinary original outer partial
        particular positive possible pretty primary prior private proper public random raw readable real
        recursive regular relative relevant rich sensitive separate shared similar special specific static
        strict stripped successful suitable super symbolic temporary topmost translated typical unique
        unknown unlocked upper useful usual variable virtual visible weak wrapped""",
    "noun": """airplane alarm algorithm angle apple archive argument armchair array article atom barrier basin
        bathtub bed bin bitmap border boundary brackets bug bunch byte cell cellphone channel character
        chunk circle clause clinic coffeemachine colon column comma component compound console container
        coordinate copy core corner counter creditcard cursor cycle daemon decorator delimiter descriptor
        desklamp dictionary digest digit dot dresser dummy dump editor egg entry exponent extension factor
        feature field finder fixer flag floor font fragment framework fridge gallery generator grid guard
        handle handtowel heap helper hierarchy hint hook host instance integer interface iterator junk
        keychain lambda laptop layout leaf lettuce literal loader lock logger loop machine mailbox mapping
        mask meaning memo menu microwave mock module newspaper node operand operator outline padding
        paragraph parser patch pattern payload pen penguin photo phrase pickle piece pipe pixel platform
        pointer polygon port prompt proxy python quote ratio reader registry remotecontrol root rule
        runner sample scheme screen script section sequence shell sidetable signal signature singleton
        sink soapbar socket spam spraybottle statement stream structure suite sun symbol tail target
        template terminal theme thread toilet tool trailer tree unit utility viewer watcher widget wink
        wrapper""",
    "first": """alias atom august bug cookie daemon delta dot fox lambda magic mark memo penguin pi pickle pixel
        python rich star sun token turtle will wink""",
    "last": """able atom best border branch bunch center channel circle client core corner cycle dot field flag
        fox free glob grid guard hand hook host junk key kind lock long loop mark mask master module node
        parent pen pickle pipe pixel point port power prior prompt quote reader rich root rule runner
        sample shell space star sun super tree turtle watcher water wheel window word worker zero""",
    "topic": """algorithm alphabet angle arithmetic array audio behavior binary bugs bytes cache characters circle
        classes clauses clinic code coding columns commands conditions constants context control
        conversion cookies corner coverage debugging decimal decorators disk domain elements email
        encoding engine errors escape events examples exceptions execution extensions factory failure
        features fields files filters flags flow format frames functions future garbage generators
        graphics grid groups handlers headers heap help hierarchy identity imports indices instances
        integers interfaces iteration keys keywords lambda layout legacy libraries links literals locale
        logging loops machinery magic mail maps markup memory messages methods mocks modules names nodes
        notation numbers objects operators origin output packages padding parameters parts paths patterns
        pixels platforms points power precision problems programs properties python quotes random reasons
        records recursion references regression resources responses results rounding rules scripts
        sections selection semantics sequences series servers signals sleep sockets sources space spam
        speed statements statistics streams strings structures success suffixes sun support symbols syntax
        tables tabs tags tests threads tokens truth units usage variables versions warnings widgets
        windows words work zeros""",
    "verb": """accept acquire align allow append apply archive assign assume attempt avoid await begin bind break
        call capture cause chunk circle compile complete compute connect contain continue control convert
        create customize cycle debug decode define depend describe determine digest display divide drop
        dump encode ensure evaluate examine except execute expect extend extract fail fall fetch filter
        flush follow force format free generate group guard handle happen hold implement include indent
        index indicate inspect invoke iterate jump keep let limit listen load loop mark mask mean merge
        modify need nest normalize occur override parse pass patch perform pickle prevent print process
        produce provide quote raise reach receive refer register reload rely remain repeat represent
        require result reverse rotate run separate shape shift sign skip sleep slice space specify start
        step stop stream strip succeed supply support suppress target terminate throw time trace transfer
        traverse turn undo unpack use wait work yield""",
}


def _split_lists():
    """Shuffle every list with a fixed seed and cut it 6 : 1 : 3; training gets the words of its own besides."""
    pools = {}
    for kind, words in _LISTS.items():
        unique = sorted(set(words.split()))
        random.Random(f"arena-{kind}").shuffle(unique)
        a, b = round(0.6 * len(unique)), round(0.7 * len(unique))
        pools[kind] = {"train": unique[:a], "eval": unique[a:b], "test": unique[b:]}
    held_out = {word for pool in pools.values() for split in ("eval", "test") for word in pool[split]}
    for kind, words in _TRAINING.items():
        # a word of two kinds ("train" is a toy and a verb) may be held out as the other one
        own = [word for word in pools[kind]["train"] if word not in held_out]
        pools[kind]["train"] = own + [word for word in words.split() if word not in held_out]
    return pools


_POOLS = _split_lists()


def pool(kind, split):
    """The words of `kind` ("adjective", "noun", "first", "last", "topic", "verb") that `split` may use.

    Raises KeyError for an unknown kind or split.
    """
    return _POOLS[kind][split]


def everything():
    """All words of all kinds and splits, sorted: what a tokenizer's vocabulary should hold whole. (The words of
    _TRAINING are in the tokenizer's list of common English.)"""
    return sorted({word for words in _LISTS.values() for word in words.split()})
