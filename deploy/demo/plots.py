# SPDX-License-Identifier: Apache-2.0
"""The plots of the corpus. See make_corpus.py for the little language.

Slots: <h> <f> <g> name the hero, the friend and a third one; <hk> <fk> <gk> their kinds; <he> <him> <his> <himself>
and <fhe> <fhim> <fhis> ... their pronouns.
"""
from dataclasses import dataclass


@dataclass
class Plot:
    texts: list  # one is taken; paragraphs are separated by an empty line
    choices: list  # groups of words that belong together: of each group one set holds for the whole story
    dry: bool = False  # hero and friend can neither swim nor fly


def d(**words):
    return words


PLOTS = []

# 1. The wheel stands still.
PLOTS.append(Plot(choices=[
    [
        d(thing="log", found="a long wet log"), d(thing="net", found="an old fishing net"),
        d(thing="crate", found="a broken crate"), d(thing="branch", found="a thick branch"),
        d(thing="basket", found="a big wicker basket"), d(thing="barrel", found="an empty barrel"),
        d(thing="stone", found="a round stone"),
    ],
    [
        d(try1="<he> pushed the <thing> with a pole, but the pole {snapped|broke in two}."),
        d(try1="<he> pulled at the <thing> with both arms, but it did not {move|budge}."),
        d(try1="<he> kicked the <thing> {hard|as hard as <he> could}, and only hurt <his> foot."),
    ],
    [
        d(try2="then <he> tied a rope around it and pulled until the rope {slipped|tore}, and <he> {fell|sat "
               "down} in the mud."),
        d(try2="then <he> {tried to lift|lifted} the wheel itself, but it was {far|much} too heavy."),
        d(try2="then <he> waited for the river to wash it away, but the river {only splashed|only laughed and "
               "ran past}."),
    ],
    [
        d(idea='"the water {holds|presses} it there," said <f>. "{close the gate first|first we must close the '
               'gate}."',
          fix="they {closed|lowered} the little gate, and the water {sank|grew low}. Now the <thing> {came out "
              "easily|slid out without a sound}.",
          moral="{sometimes you must stop a thing before you can mend it|think first, then pull}"),
        d(idea='"{use a plank and a stone|take a plank and lay it over a stone}," said <f>. "a long {arm|plank} '
               'makes a small push big."',
          fix="they set the plank under the <thing> and {leaned on|pressed down} the end together. With a pop it "
              "came {free|loose}.",
          moral="{a clever push is better than a hard one|a good idea is stronger than a strong arm}"),
        d(idea='"{turn the wheel back|try turning the wheel the other way}," said <f>. "just a little."',
          fix="they turned the wheel back by the width of one {board|hand}, and the <thing> {floated free|rolled "
              "away}.",
          moral="{sometimes the way forward begins with one step back|one step back can be the best step of all}"),
    ],
], texts=["""
<open> <colour>

<day>, the {mill wheel|big wheel} {stopped|stood still}. There was no {creak|sound} and no splash. {<h> ran
outside|<h> hurried to the water|<h> went to look}. {Under the wheel was <found>|There, between the wheel and the
wall, was <found>}, {stuck fast|jammed tight}.

{first|At first} <try1> <try2> {"this will never work," <he> said|"oh dear," <h> {sighed|said}|<H> was close to
tears}.

{just then|At that moment}, <f> the <fk> came {along the path|by|over the bridge}. <idea> <h> {nodded|liked the
idea|thought it was worth a try}. So <fix>

The wheel {groaned, shook|creaked, trembled} and began to turn {again|once more}. {that evening there was fresh flour,
and <f> got the first loaf of bread|soon the flour fell white and soft like snow|the water sang, and the whole mill
hummed}. "<moral>," {said <f>|<h> said with a smile}.
""", """
"why is it so quiet?" {asked|said} <h> the <hk> {one morning|when <he> woke up}. <H> lived at the old mill on the
river <river>, and the wheel had {never been silent|always sung <him> awake}. <H> ran down {the steps|the stairs}.
<found> {was caught in the wheel|was stuck under the wheel}.

<try1> <try2>

<H> went to {see|ask} <f>, {a <fadj> <fk>|the <fk> next door}. <F> came {at once|right away} and looked at the wheel
from {every side|the left and from the right}. <idea>

<fix> <thank>

the wheel turned {all day|until the stars came out}, and {the bread tasted better than ever|nobody in <village> went
without bread}. <H> {often said|never forgot}: <moral>.
"""]))

# 2. Something is lost.
PLOTS.append(Plot(choices=[
    [
        d(item="key", what="a small brass key"), d(item="whistle", what="a silver whistle"),
        d(item="scarf", what="a long blue scarf"), d(item="ring", what="a ring with a green stone"),
        d(item="bell", what="a tiny bell"), d(item="spoon", what="a wooden spoon"),
        d(item="button", what="a shiny red button"), d(item="hat", what="a yellow straw hat"),
    ],
    [
        d(p1="under the bed"), d(p1="behind the stove"), d(p1="in the flour bin"), d(p1="in the tall grass"),
    ],
    [
        d(p2="along the river"), d(p2="by the well"), d(p2="in the hay"), d(p2="near the bridge"),
    ],
    [
        d(where="in <his> own pocket", why="It had been there the whole time."),
        d(where="on top of <his> own head",
          why="A {gust of wind|playful breeze} had {dropped|left} it there, or so <he> said."),
        d(where="in a nest in the {elm|pear} tree", why="A {magpie|jackdaw} had taken it because it was so pretty."),
        d(where="at the bottom of the bread basket",
          why="It had slipped in {with the bread|while <he> was packing lunch}."),
        d(where="under the mat by the door", why="<he> had put it there to keep it safe, and had forgotten."),
        d(where="inside an old boot", why="<f>'s little brother had hidden it there {for fun|as a game}."),
    ],
], texts=["""
<open> {<h> had|<he> owned} <what>, {and <he> never went anywhere without it|a gift from <his> grandmother|and it was
<his> dearest treasure}. <day>, the <item> was gone.

<h> looked <p1>. {It was not there|No <item>}. <he> looked <p2>. {It was not there either|Still no <item>}. "have you
seen my <item>?" <he> asked everyone {<he> met|who passed by}. {nobody had|they all shook their heads}.

{at last|Then} <he> {met|came to} <f>, a <fadj> <fk>. "where did you have it last?" asked <f>. <h> {thought and
thought|scratched <his> head}. "{let us go back, step by step|we shall walk the whole way again|let us start where you
started}," said <f>.

So they did, and they found the <item> <where>. <why> <h> {laughed until <his> belly hurt|turned red and then
laughed|danced for joy}. "{next time|from now on}," <he> said, "I will {look close to home first|begin at the
beginning|ask you first}."
""", """
<h> the <hk> was {crying|sad}. "what is the matter?" asked <f> the <fk>. "I have lost my <item>," said <h>. "it is
<what>, and my grandmother gave it to me."

"{don't cry|dry your eyes}," said <f>. "{four eyes see more than two|we will find it together}." First they
{looked|searched} <p1>. They found {a spider, two nuts and a lot of dust|an old sock and a sleepy beetle|only dust},
but no <item>. Then they {looked|searched} <p2>. They found {a smooth white stone|a feather|a lost marble}, but no
<item>.

The sun was going down when <f> {stopped and smiled|began to laugh}. The <item> was <where>! <why>

<thank> They {shared a pot of tea|ate plum cake together|walked home hand in hand}, and <h> {tied a string to the
<item>|kept the <item> close}, so that it would {never|not} get lost again.
"""]))

# 3. The river rises.
PLOTS.append(Plot(choices=[
    [
        d(sign="the ducks were {walking|sitting} in the {street|meadow}"),
        d(sign="the stepping stones had {vanished|gone}"), d(sign="the water had reached the third step of the mill"),
        d(sign="the little boat was floating {above|over} the path"),
    ],
    [
        d(call="rang the {old|big} bell", callnoun="the bell"),
        d(call="blew the {long|old} horn", callnoun="the horn"),
        d(call="beat on a {kettle|pot} with a spoon", callnoun="the noise"),
        d(call="ran from door to door and knocked", callnoun="the knocking"),
    ],
    [
        d(wall="bags of sand"), d(wall="stones and earth"), d(wall="sacks of flour"), d(wall="logs and clay"),
    ],
], texts=["""
<open> It had rained for {three|four|five} days, and the river <river> {grew and grew|was brown and loud}. {That
evening|One night}, <h> saw that <sign>. "{the river is coming|the water will be in the village before morning}!" <he>
{thought|cried}.

<he> did not wait. <he> <call> until {every window was bright|everyone was awake}. Some people {grumbled|were cross}.
"{go back to bed|it is only rain}," said <f> the <fk>, {yawning|and closed the window}. But {then <fhe> looked at the
water and was quiet|when <fhe> saw the water, <fhe> came running}.

All night long they {built|made} a wall of <wall>. The {old|tall} ones carried and the {young|small} ones held the
lanterns. {the water rose, and the wall held|twice the wall shook, and twice they mended it}.

In the morning the rain stopped. The village was {dry|safe}. "{you saw it first|we should have listened at once}," <f>
said to <h>. "thank you for {waking us|being so loud}." {since then|To this day}, everyone {in <village> comes out
when they hear <callnoun>|listens when <h> speaks}.
""", """
"{look|come quickly|come and look}!" called <h> the <hk>. <sign>. <F> the <fk> looked, and {stopped smiling|put down
<fhis> cup}. The river <river> had never been so {high|wild}.

"you {warn|wake} the village," said <f>, "and I will {move the sheep|bring the boats in|open the barn on the hill}."
So <h> <call>. Doors opened, {one after another|up and down the lane}, and soon {everyone was there|the street was
full of lanterns}. They built a wall of <wall>, and {nobody asked who was rich or poor|everyone worked side by side}.

{At midnight|Before dawn} the water {touched|reached} the top of the wall. {they held their breath|no one said a
word}. Then, very slowly, it {began to fall|went down again}.

They {drank hot milk|had soup and bread} together {in the barn|on the wall} while the sun came up. "{a river is
strong|no one can stop a river alone}," said <h>, {"but many hands are stronger|"but together we can ask it to wait}."
"""]))

# 4. A race.
PLOTS.append(Plot(choices=[
    [
        d(goal="to the mill and back"), d(goal="around the pond"), d(goal="up the hill to the old oak"),
        d(goal="to the stone bridge"),
    ],
    [
        d(delay="stopped to pick {berries|plums}"), d(delay="stopped to talk to the geese and show off"),
        d(delay="lay down for a little nap"), d(delay="took a short cut and got stuck in the {mud|brambles}"),
    ],
    [
        d(prize="a honey cake"), d(prize="a bag of nuts"), d(prize="a basket of pears"), d(prize="a big cheese"),
    ],
], texts=["""
<open> <he> was not fast, but <he> {never gave up|always finished what <he> began}. <f> the <fk>, however, was very
fast, and {told everybody so|said so every day}.

"{let us have a race|I will race you}, <goal>!" said <f> one day. "the winner gets <prize>." {Everyone laughed|The
others giggled}, but <h> {only nodded.|said, "very well."}

{One, two, three|Ready, steady}, go! <f> {shot away|was gone} like {the wind|an arrow}. Soon <fhe> was {so far|so very
far} ahead that <fhe> <delay>. "I have {plenty of time|all the time in the world}," <fhe> said.

<h> came along, step by step, {puffing|humming a tune}. <he> did not {stop|look left or right}. {When <f> saw <him>
again|By the time <f> noticed}, <h> was {already at the end|just crossing the line}! {The crowd cheered|Everyone
clapped}. <h> got <prize> and {shared it with <f>|gave half of it to <f>}. "{slow feet get there too|steady wins},"
<he> said, and <f> {had to smile|learned to boast a little less}.
""", """
<day>, the whole village of <village> came to see a race <goal>. {There were many runners|Seven runners stood at the
line}, and among them were <h> the <hk> and <f> the <fk>. The prize was <prize>.

<h> ran well. {Halfway|Near the end} <he> was first, and <he> could already see {the finish|the prize}. Then <he>
heard a cry behind <him>. <f> had fallen and {hurt <fhis> leg|could not get up}.

<h> looked at the finish, and <he> looked back. {"oh well," <he> said|it did not take <him> long to choose}. <he>
turned around, {helped <f> up|took <f> by the arm}, and together they {limped|went} slowly on. They came in last of
all.

{But nobody laughed|and yet the people clapped the loudest for them}. The winner, <g> the <gk>, {thought for a
moment|came over} and {gave them half of the prize|shared the prize with them}. "{I was the fastest|I have quick
legs}," said <g>, "but you {won something better|were the kindest}."
"""]))

# 5. Sharing in winter, and what comes of it.
PLOTS.append(Plot(choices=[
    [
        d(food="bread", piece="loaf"), d(food="cheese", piece="piece"), d(food="honey cake", piece="slice"),
        d(food="apple pie", piece="slice"), d(food="soup", piece="bowl"), d(food="porridge", piece="bowl"),
    ],
    [
        d(gift="a bag of seeds", later="In spring, <h> planted them, and {beans|flowers} grew up to the roof."),
        d(gift="a bundle of dry wood", later="It kept the house warm {for many days|until the snow was gone}."),
        d(gift="a woollen blanket", later="It was soft and warm, and <h> slept under it every winter."),
        d(gift="a little flute", later="{All winter|In the long evenings} there was music in the house."),
    ],
], texts=["""
<open> {That|One} winter was {long and hard|the coldest anyone could remember}. {The river froze|Even the river was
silent}, and the {cupboard was|shelves were} nearly empty. <h> had only one <piece> of <food> left.

{That night|One evening} there was a knock at the door. Outside stood {a stranger, an old <fk> covered in snow|an old
<fk>, shaking with cold}. "{please|good evening}," {said|whispered} the <fk>, "my name is <f>. {May I warm
myself|could I rest by your fire} a little?"

{<h> did not have to think|<h> thought of the empty shelf, but only for a moment}. "come in," <he> said, and cut the
<food> in two halves. "{half is enough for me|there is enough for two}." They ate and told stories until the fire
burned low.

{In the morning|When <h> woke up} the stranger was gone, but {on the table|by the door} lay <gift>. <later> {what you
share is never lost|a kind deed finds its way home|half a meal with a friend is better than a whole one alone}.
""", """
Snow lay {deep|thick} on <village>. <h> the <hk> {looked at|counted} what was left to eat: one <piece> of <food>. "{I
must make it last|it will have to do}," <he> said.

{Then|Just then} <he> heard a small voice outside. It was <f>, a young <fk> who had lost the {way|path} in the snow.
<fhis> {nose was blue|teeth were chattering}. {"I am so hungry," said <f>|"I have not eaten since yesterday," <fhe>
said}.

<h> gave <f> the bigger half, {wrapped <fhim> in a blanket|put more wood on the fire}, and {in the morning|when the
snow had stopped} showed <fhim> the way home.

A week later, when <h> {had nothing left|sat hungry by the fire}, there was a {knock|cheerful noise} at the door.
There stood <f> with <fhis> whole family, and they had brought {a pot of stew|a sack of potatoes|three fresh loaves}
and <gift>. <later> {<h> never felt the cold in the same way again|that is how <h> and <f> became friends}.
"""]))

# 6. The bridge is gone.
PLOTS.append(Plot(dry=True, choices=[
    [
        d(need="take {a basket of eggs|medicine} to <g>"), d(need="go to the market"),
        d(need="visit <his> {aunt|grandmother}"), d(need="bring the {sheep|goats} home"),
    ],
    [
        d(bad="a plank", badwhy="it was too short and fell into the water with a splash"),
        d(bad="a row of stones", badwhy="the river rolled them away like peas"),
        d(bad="a thin rope", badwhy="it stretched so far that <he> got wet to the belly"),
        d(bad="an old door", badwhy="it sank with a gurgle"),
    ],
    [
        d(good="a raft of barrels", how="tied {six|eight} empty barrels together and laid boards on them"),
        d(good="a bridge of two tree trunks", how="laid two long trunks side by side and filled the gaps with clay"),
        d(good="a rope ferry", how="stretched a strong rope from bank to bank and hung a boat on it"),
        d(good="a bridge of wagons",
          how="rolled three old wagons into the shallow water and put planks from one to the next"),
    ],
], texts=["""
<open> <day>, <he> wanted to <need>. But when <he> came to the river <river>, the bridge was gone. The {storm|high
water} had carried it away {in the night|like a straw}.

"I will make my own bridge," said <h>. <he> tried <bad>, but <badwhy>. {"hm," said <h>|<H> shook <himself> and
sighed}.

On the other side stood <f> the <fk>, who {could not get home|wanted to cross as well}. "what do you have over there?"
called <h>. "{good ropes and nails|a strong rope and two good arms}," <f> called back. "and I have {wood|boards and
time}," said <h>.

So one worked on this side and one on {that|the other}. They <how>. By {evening|sunset} there was <good>, and {they
met in the middle and shook hands|they met in the middle, laughing}. {<H> was late, but nobody minded|It was not
pretty, but it held}. "{a river has two sides," said <f>, "and so does a bridge|half a bridge is no bridge," said <f>,
"it takes someone on each bank}."
""", """
The bridge at <village> was {old|tired}, and {one night|in the spring flood} it fell into the river <river>. {"who
will build a new one?" the people asked|everybody waited for somebody else to mend it}. {Days went by|A week passed}.

<h>, a <adj> <hk>, {was tired of waiting|had to <need>}. First <he> tried <bad>, but <badwhy>. {The neighbours
laughed|Some people shook their heads}. Only <f> the <fk> did not laugh. "{the idea is good|I like it}," said <f>. "it
only has to be {bigger|stronger}. May I help?"

The two of them <how>. When the others saw it, they {stopped laughing and fetched their tools|came with hammers and
ropes}. {Before the week was over|Two days later}, <good> was ready.

"{who began it|whose idea was it}?" asked a traveller. {The people pointed at <h>|Everyone looked at <h>}. "{somebody
had to|I only began}," <he> said. "{the rest came by itself|the others did the rest}."
"""]))

# 7. Afraid of something.
PLOTS.append(Plot(choices=[
    [
        d(fear="the dark",
          done="<he> saw the lights of home",
          need="the lantern went out on the way home",
          help="the stars had been there all along",
          step="<he> closed <his> eyes and counted to ten. When <he> opened them, it was not so black any more"),
        d(fear="thunder",
          done="the storm passed",
          need="a storm broke while <he> was alone in the barn",
          help="the thunder was only the clouds bumping into one another",
          step="<he> began to count between the flash and the boom: one, two, three, four, five"),
        d(fear="high places",
          done="the kitten was safe in <his> arms",
          need="a kitten sat crying on the roof of the mill",
          help="the ladder did not care how high it was",
          step="<he> looked only at the next step, and then at the next one"),
        d(fear="the old forest",
          done="the lamb came running to <him>",
          need="a lamb ran off between the trees",
          help="the strange faces were only knots in the bark",
          step="<he> sang a song, first very softly and then louder"),
    ],
    [
        d(end="{being brave is being afraid and going on|brave does not mean without fear}"),
        d(end="{fear grows small when you walk towards it|a fear is biggest before you look at it}"),
    ],
], texts=["""
<open> <he> was {good at many things|strong and clever}, but <he> was afraid of <fear>. {<he> told nobody about
it|<he> had never told anyone}.

{one evening|one day}, <need>. {There was no one to help|Nobody else was near}. <h>'s knees {shook|turned to butter}
and <his> heart {beat like a drum|went thump, thump, thump}. "I cannot do it," <he> {whispered|thought}. "{but I
must|but somebody has to}."

Then <he> remembered what <f>, {the old <fk>|<his> neighbour}, {had once told <him>|always said}: "{you need not be
brave for a whole day|courage comes in small pieces}. {One little step is enough|Take one, and then another}." So
<step>.

{It helped|It worked}. And after a while, <h> noticed that <help>. {In the end|Before long} <done>, and <h> was {tired
and proud|proud and happy|very glad}.

"were you not afraid?" asked <f> {the next day|later}. "yes, very much," said <h>. <F> smiled. "{good|there you are}.
<end>."
""", """
"I am not afraid of anything," said <h> the <hk>. That was not {quite|really} true. <h> was afraid of <fear>, {but
<he> was ashamed of it|and <he> hoped nobody would find out}.

{One day|Then it happened:} <need>. <h> stood {still as a stone|there and trembled}. At that moment <f> the <fk> came
{around the corner|by}. "you are shaking," said <f> {gently|kindly}. {<h> looked at the ground|<h> nodded}. "I am
afraid of <fear>," <he> said. {It was strange|To <his> surprise}: as soon as <he> had said it, {it felt lighter|the
fear grew smaller}.

"I am afraid of {geese|spiders|deep water|bees}," said <f>. "{shall we go together|let us do it together}." So <step>.
<f> stayed close, {and never let go|and did not laugh once}.

{In the end|Before long} <done>, and <h> saw that <help>. "<end>," said <f>, "{and two can be brave more easily than
one|and now we both know it}."
"""]))

# 8. Broken, and owned up to.
PLOTS.append(Plot(choices=[
    [
        d(pot="jug", pots="the blue jug"), d(pot="window", pots="the round window"),
        d(pot="vase", pots="the painted vase"), d(pot="clock", pots="the old clock"),
        d(pot="bowl", pots="the big glass bowl"),
    ],
    [
        d(game="playing ball"), d(game="dancing"), d(game="chasing a butterfly"), d(game="jumping over chairs"),
        d(game="practising with a hoop"),
    ],
    [
        d(lie="the wind did it"), d(lie="the cat did it"), d(lie="it was like that before"),
        d(lie="it fell by itself"),
    ],
], texts=["""
<open> <day>, <h> was <game> in the house of <f>, {the old <fk>|<his> neighbour}, {although <he> was not allowed
to|though <he> knew better}. Crash! <pots> lay on the floor in {a hundred|many} pieces.

<h> {went pale|held <his> breath}. <he> {swept|pushed} the pieces under the {carpet|cupboard}. {When|That evening,
when} <f> came home and asked about the <pot>, <h> said, "<lie>." <f> {only said "I see"|said nothing and put the
kettle on}.

{That night|In bed}, <h> could not sleep. The lie {lay on <his> chest like a stone|pinched <him> like a tight shoe}.
{As soon as it was light|Early in the morning}, <he> ran to <f>. "it was me," <he> said. "I broke it, and I am
{so|very} sorry."

"I know," said <f>. "{I saw the pieces|there was a piece on your sleeve}. I was {only waiting|hoping} for you to tell
me." {Together they glued what they could|<h> worked in <f>'s garden for a week to pay for it}. {The <pot> was never
as fine as before, but|And} <h> slept {very well|like a log} that night. {A mended pot is better than a hidden one|The
truth is heavy only until you say it}.
"""]))

# 9. A seed takes time.
PLOTS.append(Plot(choices=[
    [
        d(plant="apple tree", seed="an apple seed", yield_="apples", big="the tree gave shade to the whole yard"),
        d(plant="pumpkin",
          seed="a flat white seed",
          yield_="pumpkins",
          big="the biggest pumpkin was as large as a cart"),
        d(plant="sunflower", seed="a striped seed", yield_="sunflowers", big="the sunflower looked over the roof"),
        d(plant="bean", seed="a speckled bean", yield_="beans", big="the beans climbed up to the window"),
        d(plant="rose bush", seed="a tiny black seed", yield_="roses", big="the whole wall was covered with flowers"),
    ],
    [
        d(silly="<he> dug it up to see whether it was growing"), d(silly="<he> poured a whole bucket of water on it"),
        d(silly="<he> shouted at it to hurry up"), d(silly="<he> played the drum to wake it up"),
    ],
], texts=["""
<open> <f>, {a <fadj> <fk>|an old <fk>}, gave <him> <seed>. "{plant it|put it in the ground}," said <f>, "{and
wait|and be patient}."

<h> planted it {at once|by the wall}. The next morning <he> ran out to look. {Nothing|There was only brown earth}. The
day after, still nothing. On the third day <silly>. "{that will not help|it does not like that}," said <f>, {and
laughed|shaking <fhis> head}. "a seed has its own clock. {Give it a little water, a little sun and a lot of time|You
can only care for it and wait}."

So <h> {learned to wait|tried again}. <he> gave it a cup of water each evening, {pulled out the weeds|chased away the
snails}, and {told it about <his> day|hummed to it}. {One morning|After many days} there was a {tiny green tip|little
green leaf}. {<H> hardly dared to breathe|"it is here!" <h> shouted}.

The <plant> grew {and grew|week after week}, until <big>. {There were <yield_> for everyone|The whole village came to
see the <yield_>}. "what did you do?" {they asked|asked the neighbours}. "{almost nothing," said <h>, "just a little
every day|I waited," said <h>, "and that was the hardest part}."
""", """
<h> the <hk> and <f> the <fk> each planted <seed>. <F> {watered it every evening|cared for it a little each day}. <h>
was {in a hurry|not so patient}. First <he> forgot it, and then <silly>.

{After some weeks|When summer came}, <f> had a fine <plant>, and <h> had {a bare spot of earth|only weeds}. "{it is
not fair|you had the better seed}," said <h>. <f> {did not get angry|smiled}. "{they came from the same bag|they were
just the same}," said <f>. "come, I have {one more|another}. This time {we will do it together|I will show you}."

{Every evening|Each day} they {met at the fence|went out with the watering can}. They watered, {they weeded|they
looked for snails}, and they talked about {the weather and the stars|this and that}. {And it grew|Slowly, very slowly,
it came up}. {By autumn|In the end}, <big>.

"{so it was not the seed|now I understand}," said <h>. "{it needed me every day." "and so do friends|it was the
caring." "just like a friendship}," said <f>.
"""]))

# 10. A lost little one.
PLOTS.append(Plot(choices=[
    [
        d(baby="duckling", cry="peep", parent="mother duck"), d(baby="lamb", cry="baa", parent="ewe"),
        d(baby="kitten", cry="mew", parent="mother cat"), d(baby="gosling", cry="peep", parent="grey goose"),
        d(baby="puppy", cry="yip", parent="sheepdog"),
    ],
    [
        d(spot="under a {bramble|blackberry} bush"), d(spot="in an empty flowerpot"),
        d(spot="behind the {water|rain} barrel"), d(spot="on the steps of the mill"),
    ],
    [
        d(home1="the pond", home2="the farm on the hill"), d(home1="the orchard", home2="the island in the river"),
        d(home1="the market square", home2="the barn behind the bridge"),
        d(home1="the ferry", home2="the far meadow"),
    ],
], texts=["""
<open> <colour>

<day>, <he> heard a {faint|small|thin} sound <spot>: "<cry>, <cry>!" It was a <baby>, {all alone|wet and lost}.
"{where is your mother|do you belong to someone}?" asked <h>. The <baby> only said "<cry>".

<h> {put it in <his> hat|wrapped it in <his> scarf|carried it gently} and went to <home1>. "is this your <baby>?" <he>
asked. {"no," said <f> the <fk>|<F> the <fk>, who was working there, shook <fhis> head}. "{ours are all here|I have
never seen it}. but {try|ask at} <home2>."

{The way was long|It began to rain}, and the <baby> grew {heavy|sleepy}. <h> {sang to it|told it a story} and walked
on. {At last|Finally} <he> came to <home2>. The <parent> was {running up and down|looking everywhere}. When she saw
the <baby>, she {cried out for joy|was so glad that she could not speak}.

The <baby> {turned around once|looked back at <h>} and said "<cry>". {It sounded very much like thank you|This time
<h> understood it quite well}. <h> walked home {in the rain, whistling|with an empty hat and a full heart|under the
first stars}.
"""]))

# 11. Learning a skill.
PLOTS.append(Plot(choices=[
    [
        d(skill="bake bread",
          f1="the loaf was as hard as a brick",
          f2="the loaf was flat as a plate",
          win="the loaf was golden and round",
          tip="let the dough sleep before you wake it with the fire"),
        d(skill="play the fiddle",
          f1="it screeched so badly that the crows flew away",
          f2="two strings broke",
          win="a soft, clear tune came out",
          tip="do not fight the bow, let it walk by itself"),
        d(skill="whistle",
          f1="only air came out",
          f2="it sounded like a leaking kettle",
          win="a bright, long note rang out",
          tip="make a small mouth, as if you kissed the wind"),
        d(skill="fly a kite",
          f1="the kite fell into the ditch",
          f2="the kite hung in the top of a pear tree",
          win="the kite rose above the hill",
          tip="wait for the wind, and then give it string"),
        d(skill="make a clay pot",
          f1="the pot fell over like a tired cow",
          f2="the pot had a hole in it",
          win="the pot stood straight and smooth",
          tip="go slowly, and keep your hands wet"),
        d(skill="skate",
          f1="<he> sat down on the ice at once",
          f2="<he> slid into a heap of snow",
          win="<he> glided over the ice like a swan",
          tip="bend your knees and look ahead, not down"),
    ],
    [
        d(end="{every master was a beginner once|nobody is born knowing it}"),
        d(end="{to fail is only to practise|each mistake is a step}"),
        d(end="{try again is the best teacher|the third time is friends with the first two}"),
    ],
], texts=["""
<open> <h> wanted to {learn how to|learn to} <skill>. {"how hard can it be?" <he> said|It looked so easy}.

The first time, <f1>. {<f> the <fk> laughed, but not in a mean way|<H> frowned}. The second time, <f2>. "I will never
learn it," {said <h>|<h> cried} and {threw <himself> into the grass|wanted to give up}.

<f>, {the old <fk>|a <fadj> <fk>}, sat down beside <him>. "do you know how long it took me?" <fhe> asked. "{a whole
year|two winters and a summer}. {listen|I will tell you a secret}: <tip>."

The next day, <h> tried again. <he> {took a deep breath and|did not hurry, and} remembered what <f> had said. This
time <win>! {<h> could hardly believe it|<h> jumped for joy|"I did it!" <he> shouted}.

"{you see|well done}," said <f>. "<end>." {And now <h> teaches the little ones, and <he> never laughs at them|From
then on, <h> practised every day}.
"""]))

# 12. A quarrel, and how it ended.
PLOTS.append(Plot(choices=[
    [
        d(thing="boat", use="took turns rowing and fishing"),
        d(thing="sled", use="sat on it together, and it went twice as fast"),
        d(thing="ladder", use="held it for each other and picked the apples at the very top"),
        d(thing="big umbrella", use="walked under it side by side, and both stayed dry"),
        d(thing="wheelbarrow", use="filled it together and pushed it together"),
        d(thing="cart", use="pulled it together and filled it with hay"),
    ],
    [
        d(loss="While they pulled, {the wind|a gust of wind} {took it and carried it|blew it} into the "
               "{river|ditch}."),
        d(loss="They pulled and pulled until, with a crack, it broke."),
        d(loss="While they were shouting, it slid down the hill all by itself and landed in the {pond|mud}."),
    ],
], texts=["""
<h> the <hk> and <f> the <fk> were neighbours {in <village>|on the river <river>} and {the best of friends|good
friends}. {one day|<day>,} they found an old <thing> {by the road|in the grass|in the barn}. "I saw it first!"
{said|cried} <h>. "but I picked it up!" said <f>.

{They pulled this way and that|One pulled at one end and one at the other}. <loss> {Now they were both angry|"that is
your fault!" they both shouted}, and {each went home alone|they did not speak for three days}.

{Those were long days|It was very quiet in the lane}. <h> {ate alone|had nobody to laugh with}. <f> {sat at the
window|had nobody to walk with}. {At last|On the fourth day} <h> {took <his> tools|went out}, {got the <thing> back
and mended it|fetched the <thing> and repaired it}. Then <he> knocked at <f>'s door. "{it is yours|you can have it},"
<he> said. "{I would rather have a friend than a <thing>|I miss you}."

"{I was just coming to say the same|no, it is ours}," said <f>. So they <use>. {And it was much more fun than having
it alone|They never quarrelled about it again}.
""", """
<open> <f> the <fk> was <his> best friend. {But one day|Then, one day,} they quarrelled about a <thing>. "it is mine,"
said <h>. "no, mine," said <f>. <loss>

<g>, {an old <gk>|a wise <gk>}, had {seen it all|watched them}. "{and who has it now|whose is it now}?" asked <g>.
"{now nobody has it|that is what comes of pulling}." <h> and <f> {looked at their feet|were ashamed}.

"{let us get it back|we could mend it}," said <h> {after a while|in a small voice}. "together?" asked <f>. "together,"
said <h>. It took {the whole afternoon|until evening}, and {they got wet and dirty|they hit their thumbs twice}, and
{they laughed a lot|in the end they were laughing}.

After that they <use>. "{one and one is more than two|a thing that is shared grows bigger}," said <g>, {and went home
smiling|and nodded}.
"""]))

# 13. A noise in the night.
PLOTS.append(Plot(choices=[
    [
        d(noise="tap, tap, tap", cause="a loose shutter in the wind", small="<h> fastened it with a bit of string"),
        d(noise="whoo, whoo",
          cause="an empty bottle on the wall, and the wind was blowing over it",
          small="<h> put it in the cupboard"),
        d(noise="scratch, scratch",
          cause="a mouse that was dragging home a crust of bread",
          small="<h> gave it some cheese as well"),
        d(noise="splash, splash", cause="a young otter learning to dive", small="<h> clapped, and the otter bowed"),
        d(noise="creak, creak", cause="the gate, which needed a drop of oil", small="<h> oiled it the next morning"),
        d(noise="ding, ding", cause="a goat with a bell that had come to eat the roses", small="<h> led it home"),
    ],
    [
        d(guess1="a ghost", guess2="a robber"), d(guess1="a giant", guess2="a wolf"),
        d(guess1="a dragon", guess2="a ghost"), d(guess1="a troll", guess2="a bear"),
    ],
], texts=["""
<open> One night, <he> {woke up|sat up in bed}. There was a noise {outside|behind the house}: <noise>. "{it is|perhaps
it is} <guess1>," thought <h>, and pulled the blanket over <his> head. But the noise {did not stop|came again}:
<noise>.

<h> {crept|tiptoed} to the house of <f> the <fk>, who lived next door. "wake up! There is <guess1> in the garden!" <f>
listened. "{that is not <guess1>|no, it is not}," <fhe> {whispered|said}, and turned pale. "that is <guess2>!"

{The two of them|So the two} took {a lantern and a broom|a candle and a frying pan|a lamp and a big spoon} and went
out, {close together|one behind the other}. <noise>! {They nearly ran away|Their knees knocked}. Then <h> {lifted the
light|held up the light}. It was <cause>.

For a moment they {said nothing|just stood there}. Then they laughed so loudly that {all the dogs barked|the owl flew
away}. <small>. "{in the dark, ears are big and eyes are small|a light is the best cure for ghosts}," said <f>, and
they {went back to bed|had a cup of warm milk and slept well}.
"""]))

# 14. A dry summer.
PLOTS.append(Plot(choices=[
    [
        d(clue="the moss between the stones was still green"), d(clue="the bees were all flying the same way"),
        d(clue="the willow on the hill still had fresh leaves"), d(clue="in one spot the grass was wet with dew"),
    ],
    [
        d(block="a fallen rock"), d(block="a heap of mud and leaves"), d(block="an old dam of branches"),
        d(block="roots and stones"),
    ],
], texts=["""
<open> {That summer|One year} it did not rain {for weeks|at all}. The {grass turned yellow|fields were dry}, the well
{was empty|gave only dust}, and the river <river> was {no more than a thread|only a row of puddles}. {The mill wheel
stood still|Without water the mill could not turn}.

"{we must leave|we shall have to go away}," said the {people|villagers}. But <h> {walked and looked|did not give up}.
<he> {followed the dry bed of the stream|climbed up and up}, and {there|then} <he> noticed something: <clue>. "where
there is green, there is water," <he> {said|thought}.

<he> called <f> the <fk>, and together they {dug|went on}. Behind <block> they heard {a gurgle|a soft murmur}. It was
a spring that had lost its way! {They pulled and pushed|They worked until their backs ached}, and {suddenly|all at
once} the water {jumped out|burst free}, cold and clear.

It ran down the hill, {past the gardens|through the fields} and {over the wheel|into the mill}. {The wheel gave a
creak and turned|Slowly the wheel began to turn}. The whole village {danced in the wet|drank and sang}. "how did you
find it?" they asked. "{I looked where others only walked|I asked the plants}," said <h>.
"""]))

# 15. A letter must arrive.
PLOTS.append(Plot(choices=[
    [
        d(news="<g> had become a grandmother", who="<g>"),
        d(news="the bridge was ready and there would be a feast", who="the miller"),
        d(news="<g>'s brother would come home from the sea", who="<g>"),
        d(news="school would begin again on Monday", who="the teacher"),
    ],
    [
        d(o1="{a strong wind|the wind} tore at the letter, but <he> put it under <his> hat"),
        d(o1="a herd of cows stood in the way, and <he> had to wait until the last one had passed"),
        d(o1="thick fog came up, and <he> had to feel <his> way along the fence"),
        d(o1="rain poured down, and <he> rolled the letter up and put it into a bottle"),
    ],
    [
        d(o2="{the path ended at a stream|there was a stream}, and <f> the <fk> took <him> across on a raft"),
        d(o2="<he> lost the way, and <f> the <fk> showed <him> the right road"),
        d(o2="<his> shoe fell apart, and <f> the <fk> tied it together with a ribbon"),
        d(o2="<he> was so tired that <he> could hardly walk, and <f> the <fk> let <him> ride in the cart"),
    ],
], texts=["""
<open> <he> carried letters from {door to door|village to village}, in sunshine and in snow. <day>, <he> got a {thick
white|blue} letter for <who>. "{it is important|please hurry}," {said the woman at the office|they told <him>}.

The way was long. {first|Soon} <o1>. Then <o2>. "where are you going in such a hurry?" asked <f>. "I have a letter,"
said <h>, "and someone is waiting."

{It was dark|The stars were out} when <h> {knocked at the last door|arrived}. {The letter was a little damp and had a
bent corner|The letter had a muddy spot on it}, but it was there. {It was opened at once|With trembling fingers it was
opened}. It said that <news>!

{There were tears and laughter|Everybody hugged everybody}, and <h> had to {sit by the fire|stay for supper}. "were
you not tempted to turn back?" {they asked|someone asked}. "{a little|once or twice}," said <h>. "{but a letter cannot
walk by itself|but what is begun should arrive}."
"""]))

# 16. A light in the fog.
PLOTS.append(Plot(choices=[
    [
        d(boat="ferry"), d(boat="fishing boat"), d(boat="little boat"), d(boat="raft"),
    ],
    [
        d(light="a lantern", act="held it as high as <he> could"),
        d(light="a fire of dry reeds", act="fed it all night"),
        d(light="a row of candles", act="set them all along the bank"),
        d(light="a drum", act="beat it slowly, boom, boom, boom"),
    ],
], texts=["""
<open> {One autumn evening|One evening}, fog {came up from the water|lay on the river}, so thick that {you could not
see your own feet|even the geese stayed at home}. <f> the <fk> was still out {on the river|on the water} in a <boat>,
and {there are sharp rocks below the mill|the current is strong there}.

"{how will <fhe> find the way?|<fhe> will never find the landing!}" {thought <h>|<h> asked <himself>}. {<he> called,
but the fog swallowed <his> voice|<he> shouted until <he> was hoarse, but nobody answered}. Then <he> took <light> and
<act>. {An hour went by|The time crept along}. <his> arms {ached|grew heavy} and <his> feet were cold, but <he> {did
not stop|stayed}.

{Far out|Out there}, <f> {had lost all hope|was going in circles}. {Then there was something in the fog|Suddenly <fhe>
noticed something}, {small|faint} and steady. <fhe> turned the <boat> towards it, {stroke by stroke|slowly, slowly},
until it {bumped|knocked} against the landing.

"{you waited for me|was that you}?" asked <f>. "{of course|all the time}," said <h>, {shivering|and sneezed}. Since
that night, {a light burns by the mill whenever there is fog|nobody on the river <river> is left alone in the fog}.
{Even a small light is big in the dark|It does not take much to show someone the way home}.
"""]))

# 17. A chain of trades.
PLOTS.append(Plot(choices=[
    [
        d(a="an egg", a_="egg"), d(a="a ball of wool", a_="wool"), d(a="a walking stick", a_="stick"),
        d(a="a wooden spoon", a_="spoon"),
    ],
    [
        d(b="a jar of honey", b_="honey", bwho="beekeeper"), d(b="a sack of flour", b_="flour", bwho="miller"),
        d(b="a pair of boots", b_="boots", bwho="cobbler"),
    ],
    [
        d(c="a goose", c_="goose", cwho="farmer"), d(c="a cart", c_="cart", cwho="carter"),
        d(c="a copper kettle", c_="kettle", cwho="tinker"),
    ],
    [
        d(wish="a warm coat", wwho="tailor"), d(wish="a fiddle", wwho="music maker"),
        d(wish="a little boat", wwho="boat builder"),
    ],
], texts=["""
<open> <he> {wished for|dreamed of} <wish>, but <he> had no money. All <he> had was <a>. "{well|then}," said <h>, "{I
will see how far it takes me|one must begin somewhere}."

{On the road|At the market} <he> met a <bwho>. "{I could use that <a_>|that <a_> is just what I need}," said the
<bwho>. "I will give you <b> for it." {A good trade|<H> agreed}. A little later came a <cwho>. "oh, <b>!" said the
<cwho>. "{will you take <c> for it?|I would give <c> for that.}" {<h> shook hands on it|"gladly," said <h>}.

So <h> went with the <c_> to the <wwho>. {But on the way|Just before the door} <he> met <f>, {a poor <fk>|an old
<fk>}, who {was crying|looked very sad}. "{my <c_> is gone|I have lost my <c_>}," said <f>, "{and without it I cannot
work|and I do not know what to do}." <h> {sighed|looked at the <c_>}. Then <he> gave it to <f>. "{take it|you need it
more than I do}," <he> said.

The <wwho> had {seen it through the window|watched from the door}. "{come in|wait}," {said|called} the <wwho>. "I have
made <wish>, and I was waiting for someone {with a good heart|who deserves it}." And so <h> {got <his> wish after
all|went home with <wish>, and all for <a>}.
"""]))

# 18. Too much at once.
PLOTS.append(Plot(choices=[
    [
        d(load="apples", unit="sacks"), d(load="bricks", unit="baskets"), d(load="pumpkins", unit="crates"),
        d(load="flour", unit="sacks"), d(load="turnips", unit="baskets"),
    ],
    [
        d(on="boat", crack="the water came over the side", lost="sank to the bottom of the river"),
        d(on="cart", crack="a wheel broke with a bang", lost="rolled into the ditch"),
        d(on="sled", crack="it began to slide faster and faster", lost="flew into the deep snow"),
    ],
], texts=["""
<open> <he> had ten <unit> of <load> to bring to {the market|<village>}, and only one small <on>. "{twice is enough|I
will go twice}," <he> thought at first. But {<he> was in a hurry|<he> was lazy that day}. "{no, I will take them all
at once|once is quicker}."

{<f> the <fk> came by|<F> the <fk> looked over the fence}. "that is too much," said <f>. "{nonsense|it will do}," said
<h>, and put on one more, {and one more|and then the last}. The <on> {groaned|creaked}. {For a while it went well|The
first mile was fine}. Then <crack>, and all the <load> <lost>.

<h> sat {there|in the middle of it} {with a red face|and did not know whether to laugh or to cry}. {<f> came with a
rope|<F> rolled up <fhis> sleeves}. {<fhe> did not say "I told you so"|<fhe> said nothing at all, which was kind}.
They {gathered up what was left|collected what they could find}, and it took {the rest of the day|much longer than two
trips}.

{Since then|After that}, <h> always goes twice. "{the slow way was the quick way|who carries too much carries it
twice}," <he> says.
"""]))

# 19. A forgotten birthday?
PLOTS.append(Plot(choices=[
    [
        d(b1='<f> the <fk> {ran past|hurried by} with a big parcel and said only, "no time, no time!"'),
        d(b1="<f> the <fk> closed the door {quickly|in a hurry} when <he> came near"),
        d(b1="<f> the <fk> hid something behind <fhis> back and went red"),
    ],
    [
        d(b2="<ghe> {said|told <him>} that <ghe> had to {wash the windows|count the hens|sweep the chimney}"),
        d(b2="<ghe> only yawned and closed <ghis> eyes"), d(b2="<ghe> talked about the weather and nothing else"),
    ],
    [
        d(gift="a kite in all colours"), d(gift="a rocking chair"), d(gift="a pair of red boots"),
        d(gift="a tiny mill with a wheel that turned"), d(gift="a lantern with stars on it"),
    ],
], texts=["""
<open> {Today was <his> birthday|It was <his> birthday}, and <he> {got up early|could hardly wait}. But {nobody
came|nobody said a word about it}.

<h> {went outside|walked through the village}. <b1>. {How strange|<h> wondered about that}. Then <he> met <g> the
<gk>, but <b2>. "{they have all forgotten me|nobody remembers}," thought <h>. <he> {went down to the river|sat by the
water} and {threw little stones|watched the leaves float by}. {Even the river seemed sad|A tear ran down <his> cheek}.

When it {grew|was getting} dark, <he> went home. {There was no light in the window|The house was dark and quiet}. <h>
opened the door, and, all at once, {twenty candles were burning|there was light everywhere}! "{surprise|happy
birthday}!" {everyone shouted|cried <f> and <g> and all the others}.

There was {a cake as big as a mill stone|a plum cake with nuts}, and music, and in the middle stood <gift>. "{we made
it for you|we worked on it all week}," said <f>. "{that is why we had to be so silent|we were so afraid you would
notice}." <h> {laughed and cried at the same time|could not say a word, but <his> face said it all}. {Sometimes
friends are quiet because they are busy being friends|It was the best birthday <he> ever had}.
"""]))

# 20. The silent bell, or clock, and the small helper.
PLOTS.append(Plot(choices=[
    [
        d(obj="bell",
          sound="sang out over the roofs",
          was="a bird had built its nest in it",
          cure="So they waited {four|five} weeks until the young birds had flown away"),
        d(obj="clock",
          sound="struck twelve, loud and clear",
          was="a single grain of corn lay between two wheels",
          cure="{it was picked out with a feather|one little push, and it was out}"),
        d(obj="organ",
          sound="filled the whole square with music",
          was="a family of mice was living in the biggest pipe",
          cure="{they built a new house for the mice, with a blue door|the mice got a fine new box with straw}"),
        d(obj="fountain",
          sound="leaped up high and sparkled",
          was="a marble had rolled into the pipe",
          cure="{with a long straw and a bit of wax it came out|it was fished out with a bent spoon}"),
    ],
], texts=["""
{Once upon a time, the|The|Long ago, the} {old|big} <obj> of <village> {fell silent|stopped}. {"it is broken," the
people said|Nobody knew why}. The smith came with his hammer {and hit it|and shook his head}. The {mayor|teacher}
{made a long speech|wrote a long letter}. {None of it helped|The <obj> stayed silent}.

"may I {look|try}?" asked <h>, a <adj> <hk>. {The people laughed|Some smiled}. "{you are much too small.|what do you
know about it?}" But <f>, {the old <fk>|a wise <fk>}, said, "{let <him> try|small eyes see small things}."

So <h> {climbed|crawled} inside. It was {dark and dusty|narrow and dark} there. <he> {felt here and listened
there|looked into every corner}, and then <he> {found it|saw it}: <was>. "{I have it|come and look}!" <he> called.
<cure>.

Then the <obj> <sound>, {for the first time in months|more beautifully than before}. {The people threw their hats in
the air|Everyone cheered}. {"I hit it too hard," said the smith|"I talked too much," said the mayor}. "{and you
looked|and <h> looked closely}," said <f>. "{that is the whole secret|that is how things get mended}."
"""]))
