# SPDX-License-Identifier: Apache-2.0
"""The cast, the places, and the sentences that any plot may use. See make_corpus.py for the little language."""

BOYS = """Tom Ned Pip Oskar Finn Bram Hugo Theo Jory Milo Rufus Edwin Otto Sam Jasper Barnaby Felix Amos Colin Dario
Ivo Kit""".split()
GIRLS = """Mara Nell Tilda Ida Rosa Elsie Hazel Lina Greta Ada Poppy Clara June Mabel Anya Dora Fern Ivy Nora Petra
Tess Willa""".split()
ANIMALS = """otter mouse hedgehog duck goat frog donkey fox squirrel rabbit badger mole beaver cat dog crow turtle
goose toad pony""".split()
WORKERS = """miller baker shepherd weaver carpenter gardener potter cobbler beekeeper tailor farmer
gatekeeper""".split()
CROSSERS = set("otter duck frog beaver turtle goose toad crow".split())  # need no bridge
ADJECTIVES = """small young cheerful curious gentle quiet clever kind shy patient merry brave thoughtful friendly busy
stubborn honest dreamy lively""".split()
VILLAGES = """Alderwick Stonebeck Willowmere Fernhollow Duckbridge Applewater Hazelford Mossbank Larkfield Otterby
Greenweir Reedly""".split()
RIVERS = "Linnet Tansy Brindle Wend Merrow Sallow Silverun Pebble".split()
HOMES = [
    "beside an old mill", "near a stone bridge", "in a crooked house under a willow tree", "at the edge of a wood",
    "on a small farm above the river", "in a little cottage beside the millpond", "at the end of a green lane",
    "where two streams meet", "on a hill above the village", "close to the water mill",
]
DENS = [
    "in a warm den beneath an oak", "among the reeds by the river", "in a snug hole under the mill",
    "behind a hedge near the orchard", "under the roots of a tall ash tree",
]

OPENINGS = [
    "once upon a time, {there was|there lived} a <adj> <hk> {named|called} <h>. <h> lived <home>.",
    "once upon a time, {there was|there lived} a <adj> <hk> {named|called} <h> who lived <home>.",
    "once upon a time, <home>, there lived a <adj> <hk> {named|called} <h>.",
    "once upon a time, in the village of <village>, there {was|lived} a <adj> <hk> {named|called} <h>.",
    "long ago, {beside|on the bank of} the river <river>, there lived a <adj> <hk> {named|called} <h>.",
    "in the {little|quiet|old} village of <village> lived a <adj> <hk> {named|called} <h>.",
    "<h> was a <adj> <hk> who lived <home>.",
    "<h> the <hk> lived <home>, {not far from the village of <village>|not far from the river <river>}.",
    "there was once a <adj> <hk> {named|called} <h> who lived <home>.",
    "{not far from|near} the village of <village> lived <h>, a <adj> <hk>.",
]
COLOUR = [
    "{every morning|each day}, <he> {opened the window and listened to the water|walked down to the river to say "
    "hello to the fish|greeted the sun with a little song|counted the clouds before breakfast|swept the doorstep "
    "and hummed}.",
    "{everyone|all the neighbours} {liked|knew} <him>, {because <he> always had a kind word|for <he> was never "
    "too busy to stop and talk|and <he> knew everyone too}.",
    "<he> loved {warm bread and long walks|the smell of rain|quiet evenings by the fire|the sound of the turning "
    "wheel|stories about the sea|the first apples of the year} {more than anything|best of all}.",
    "it was a {good|quiet|simple} life, and <he> {liked it|was happy with it|would not have changed it}.",
    "<he> {wore a red scarf, even in summer|had a small round hat with a feather|had a habit of talking to the "
    "trees|knew every path and every stone nearby}.",
]
ASIDES = [
    "somewhere {far away|behind the houses} a dog barked.",
    "the wind {moved in the trees|had turned|was humming in the fence}.",
    "{high above, a bird called|A bird called, and another one answered}.",
    "a {leaf|feather} {came drifting down|floated by}.",
    "for a {while|moment}, {nobody spoke|nobody said anything}.",
    "from {far off|the village} came the {smell of bread|sound of a bell}.",
]
DAY = (
    "one {cold|bright|windy|misty|warm|sunny|grey|fresh} {spring morning|summer morning|autumn "
    "morning|morning|afternoon|day}"
)
THANK = (
    '{"thank you," said <h>. "I could not have done it {alone|without you}."|"thank you, <f>!" <h> '
    '{cried|said|called}. "you are a {true|good} friend."|<H> thanked <f> {again and again|with all <his> '
    'heart|and gave <fhim> a big hug}.}'
)
