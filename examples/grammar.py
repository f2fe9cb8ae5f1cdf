"""The demo's text: short stories of a village of weavers, made by a seeded grammar, the same bytes for the same seed.

`python examples/grammar.py --seed 0 --characters 300000 --out village.txt` writes a story a line, blank lines between.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace

# In all that follows [x|y] is x or y, drawn anew each time, and {slot} is a word that holds through the whole story.
# Of a craft, gift is what its people give away, want is why another would like it, and joy is what came of it.
CRAFTS = """
weaver: station=loom; tool=shuttle; part=[beam|frame|foot]; sense=[song|sound|clack]; need=thread; helper=spinner;
  deed=[worked|worked|wove cloth] at the loom; todo=[work at the loom|weave cloth]; order=ten yards of {shade} cloth;
  gift=a warm blanket; want=the nights were cold; joy=slept warm under the blanket;
  lesson=keep the thread even; failure=the thread broke; success=the cloth was smooth and even;
  saying=[A long cloth begins with one thread.|Every thread holds up the next one.|The loom is patient, and so am I.]
dyer: station=vat; tool=paddle; part=[hoop|lid|rim]; sense=[smell|steam]; need={plant}; helper=ferryman;
  deed=dipped the cloth in the vat; todo=dip the cloth; order=six rolls of {shade} cloth;
  gift=a pot of {shade} dye; want=the old curtains were pale; joy=hung bright {shade} curtains in the window;
  lesson=stir the vat slowly; failure=the cloth came out pale; success=the cloth came out bright;
  saying=[A bright cloth needs a slow vat.|The dye takes its time, and so must we.|The {plant} makes it {shade}.]
shepherd: station=fold; tool=crook; part=[gate|fence]; sense=[quiet|warmth]; need=hay; helper=ferryman;
  deed=tended the sheep[|| on the hill]; todo=tend the sheep; order=five bags of wool;
  gift=a bag of wool; want=the bed was hard; joy=slept on a soft bed of wool;
  lesson=call the sheep softly; failure=the sheep ran away; success=the sheep came close;
  saying=[Count the sheep before you count the coins.|A calm voice leads the sheep.|The grass grows for those who wait.]
miller: station=mill; tool=scoop; part=[wheel|shaft]; sense=[rumble|sound]; need=grain; helper=ferryman;
  deed=ground the grain at the mill; todo=grind the grain; order=nine sacks of flour;
  gift=a sack of flour; want=the flour jar was empty; joy=had sweet cakes for supper;
  lesson=pour the grain slowly; failure=the flour came out coarse; success=the flour came out fine and white;
  saying=[The river turns the wheel, but the miller must wake early.|Small grains fill a great sack.]
ferryman: station=boat; tool=oar; part=[side|front]; sense=[creak|rocking]; need=rope; helper=spinner;
  deed=rowed the boat[| across the river]; todo=row the boat;
  gift=a trip across the river; want={a.his} {kin} lived across the river; joy=sat at the table of {a.his} {kin};
  lesson=pull the oar gently; failure=the boat turned in circles; success=the boat went straight across the river;
  saying=[The river is never in a hurry.|A light load makes a quick boat.|Look at the far side, and you will reach it.]
baker: station=oven; tool=peel; part=[door|grate]; sense=[warmth|smell]; need=flour; helper=miller;
  deed=baked bread at the oven; todo=bake the bread; order=thirty loaves of bread;
  gift=a basket of bread; want=the kitchen shelf was empty; joy=had enough to eat;
  lesson=keep the fire low; failure=the bread burned; success=the bread came out round and golden;
  saying=[Good bread cannot be rushed.|Warm bread makes good friends.|The one who wakes first bakes the bread.]
smith: station=forge; tool=hammer; sense=[glow|heat]; need=coal; helper=ferryman;
  deed=hammered iron at the forge; todo=hammer the iron; order=a hundred iron nails;
  gift=a box of nails; want=the roof was loose; joy=was dry under a strong roof;
  lesson=strike while the iron is red; failure=the nail bent; success=the nail was straight and strong;
  saying=[Strong iron comes from a hot fire.|A small nail can hold a great roof.|Strike well, and strike once.]
spinner: station=wheel; tool=spindle; part=[rim|foot]; sense=[hum|sound]; need=wool; helper=shepherd;
  deed=spun wool at the wheel; todo=spin the wool; order=twelve balls of thread;
  gift=a ball of {shade} thread; want={a.his} winter coat was torn; joy=wore a whole coat again;
  lesson=turn the wheel gently; failure=the thread snapped; success=the thread was thin and strong;
  saying=[A fine thread needs a light hand.|The wheel turns, and so does the day.|Wool is soft, but thread is strong.]
"""
PEOPLE = """
she: he=she; him=her; his=her; child=girl; name=[Ada|Clara|Edith|Hanna|Ida|Lena|Marta|Nora|Rosa|Tilda|Vera|Greta]
he: he=he; him=him; his=his; child=boy; name=[Adam|Bruno|Emil|Felix|Hugo|Jonas|Karl|Leo|Otto|Peter|Simon|Tom]
"""
SLOTS = """
story: days=[two|three|four|five]; coins=[six|seven|eight|twelve|twenty]; garment=[coat|cloak|scarf];
  meadow=[meadow|field|valley|garden]; kin=[sister|brother|mother|aunt|uncle]; any=[spring|summer|autumn|winter];
  elder=[grandmother|grandfather|mother|father]; buyer=[merchant|innkeeper|captain|teacher|doctor|farmer];
  opening=[{a} was a {a.job} in the village by the river.|{a} the {a.job} loved the {a.sense} of the {a.station}.|
    In {season}, {a} the {a.job} {a.deed} every day.|Every [morning|day] {a} the {a.job} {a.deed}.|
    There was once a {a.job} named {a}, who {a.deed} from morning until evening.|
    It was {season}, and {a} the {a.job} was busy at the {a.station}.|
    {a} the {a.job} lived [near the bridge|beside the market|at the end of the lane|at the foot of the hill].|
    In {season} {a} the {a.job} {a.deed}, and the {c.job} {c.deed}.]
"""
DYES = [("red", "madder", "a ripe apple"), ("blue", "woad", "the summer sky"), ("yellow", "weld", "the morning sun")]
PLACES = ["under the bench", "behind the door", "in the basket", "on the shelf", "near the gate", "below the window"]

# A plot is headed "season: who may be the hero (a) > who may be the friend (b)", and the more heroes it lists, the
# more often it is told. A third villager (c) only passes by, without a name. [|x] is x or nothing.
PLOTS = """
== any: weaver weaver dyer miller baker smith spinner > helper
{opening} [The {season} market was {days} days away, and {a} had promised {a.order} to a {buyer}.|A {buyer} had asked
{a} for {a.order} before the market, and the market was {days} days away.] But [in the middle of the work|on the first
day|that same evening] the {a.need} ran out. [|The {a.job} said, "Without {a.need} I cannot [finish in time|keep my
promise]."] So {a} [ran|hurried|walked] to {b} the {b.job} and asked for {a.need}. The {b.job} said, "[I have {a.need}
for you, and you can pay me after the market.|Take my {a.need}, because a promise must be kept.]" {a} worked [by the
light of a candle|late into the night|without a rest] until {a.order} were ready. [At the market the {buyer} paid
{coins} silver coins, and {a} gave a fair share to {b}.|The {buyer} came to the market and was pleased, and {a} paid {b}
that very day.|{a} kept the promise, and after the market {a.he} thanked {b} with {a.gift}.]
== any: weaver weaver any any any any > any
{opening} [One [cold|bright|windy|quiet] morning the {a.tool} was gone.|But one day {a} could not find the {a.tool}.]
The {a.job} said, "[Without my {a.tool} I cannot {a.todo}.|Has anyone seen my {a.tool}?]" [|{a} looked {first} and
{second}, but the {a.tool} was not there.|{a} searched {first} and {second}, and found only dust.] {b} the {b.job}
[heard the noise|saw the worried face of the {a.job}] and came to help. [At last {b} looked {third}, and there lay the
{a.tool}.|The {b.job} said, "Your {a.tool} is {third}, where you left it."|They searched together, and the {b.job} found
the {a.tool} {third}.] [|{a} was so glad that {a.he} gave {b} {a.gift}.] [From that day on, {a} hung the {a.tool} on a
[nail|hook] every evening.|The {b.job} said, "[Give a thing its own place, and it will not be lost.|Four eyes see more
than two.]"]
== any: weaver weaver any any any > child
{opening} [A [small|young|shy] {b.child} named {b} came to the door and wanted to learn.|{b}, a young {b.child} from
[the next village|over the hill], wanted to learn to {a.todo}.] [|The {a.job} said, "[Watch first, and then try.|Come
in, and I will show you.|It takes a year to learn, so begin today.]"] But {b} [hurried|did not listen|dreamed of other
things], and {a.failure}. [|{b} [wept a little|wanted to go home|sat down and sighed], but {a} only smiled.] The {a.job}
said, "Now {a.lesson}, and [try again|do not hurry]." {b} tried again and again, and on the [third|fourth|fifth|tenth]
day {a.success}. [So {b} learned that [patience is a good teacher|slow hands do the best work|nobody is born with a
craft].|By the end of {season} the {b.child} could {a.todo} alone, and {a} was proud.|Then {a} gave {b} a [new|small]
{a.tool}, and the {b.child} carried it home with joy.]
== any: weaver weaver dyer shepherd miller ferryman baker spinner > smith
{opening} [One [morning|evening|day] there was a loud crack, and the {a.part} of the {a.station} was broken.|After many
years the {a.part} of the {a.station} cracked, and the work stopped.] The {a.job} said, "The old {a.station} is worn,
and I cannot {a.todo} without it." {a} went to the forge, where {b} the smith hammered iron. The smith said, "[I can
mend it with an iron band.|Show me the {a.part}, and I will make it strong.]" [|{b} lit the fire, lifted the hammer, and
made a band of iron.] By evening the {a.part} of the {a.station} was [strong|whole] again. [{a} paid with {a.gift}, and
the smith was content.|The old {a.station} served {a} for [many|ten|twenty] more years, because it had been mended with
care.|And so the {a.job} {a.deed} again.]
== any: weaver weaver weaver weaver > smith spinner dyer miller shepherd
{a} the weaver had an old loom that had belonged to {a.his} {elder}. The old loom [was slow|was dark with age|creaked],
but the [cloth was always smooth|[song|sound] of the loom filled the house]. The {b.job} said, "[Sell the old loom and
buy a new one.|A new loom would be twice as fast.]" The weaver said, "[The old loom knows my hands.|My {elder} taught me
at this loom, and I will keep it.]" [|{a} [oiled|cleaned] the [beam|frame|foot] of the loom and tied the new thread.] In
{season} a {buyer} came to the village and looked for the finest cloth. The {buyer} [passed by the new looms and bought
the cloth of the old loom for {coins} silver coins|had never seen such fine cloth, and paid {coins} silver coins]. [The
{b.job} said, "[I was wrong, for old things can be the best things.|Now I see why you kept the old loom.]"|So the old
loom stayed in its place by the window, and {a} never sold it.]
== summer: weaver weaver weaver > dyer
{opening} {a} wanted to make a {shade} {garment} for {a.his} {kin}, but all the cloth was white. So {a.he} went to {b}
the dyer, who dipped the cloth in the vat. The weaver said, "Can you make this cloth {shade}?" The dyer said, "[For
{shade} dye I need {plant}.|I make {shade} dye from {plant}, and {plant} grows in the {meadow}.]" {a} and {b} gathered
{plant} in the {meadow} until the basket was full. {b} boiled the {plant} [until noon|for an hour], and soon the cloth
was as {shade} as {likeness}. [At the next market the {kin} of the weaver wore the {shade} {garment}, and everyone
praised it.|The weaver said, "You made it {shade}, and I made it warm, so it belongs to us both."]
== any: dyer dyer > child
{a} the dyer made {shade} dye from {plant} and {other_shade} dye from {other_plant}. A {buyer} asked for {shade} cloth,
and {a} sent {b}, a young {b.child}, to fill the vat. But {b} was [in a hurry|half asleep|thinking of supper] and put
{other_plant} in the vat. When they lifted the cloth, it was not {shade} but {other_shade}. The dyer said, "The
{other_plant} gives {other_shade}, and the {plant} gives {shade}." {b} washed the vat, filled it with {plant}, and
dipped a new cloth. [|This time the cloth was as {shade} as {likeness}.] [The {buyer} saw both and bought both, and {b}
never mixed the plants again.|The dyer said, "[A mistake is a lesson that we remember.|Look twice, and dip once.]"]
== spring: shepherd > weaver
In spring {a} the shepherd sheared the sheep and filled {days} bags with wool. The spinner spun the wool into thread at
the wheel. The dyer dipped the thread in the vat, and the {plant} made it {shade}. {b} the weaver worked at the loom
until the cloth was long enough for a {garment}. [|The weaver said, "This wool is soft, so the sheep were tended well."]
When winter came, {b} gave the {shade} {garment} to {a}, who tended the sheep in the snow. The shepherd said, "[My wool
has come home to me.|The sheep are warm, and now I am warm too.]" [|Many hands had made it, and it kept out the wind for
many years.]
== winter: shepherd shepherd shepherd > weaver miller baker smith spinner
{opening} One evening the snow fell [thick and fast|without a sound], and a lamb was missing from the fold. The shepherd
said, "A small lamb cannot live through such a night." {b} the {b.job} [took a lamp|brought a lamp and a rope] and went
with {a} up the hill. They called and listened, and at last they heard the lamb [behind a stone|under a tree|beside a
frozen pond]. {a} lifted it with the crook and carried it home under {a.his} coat. [|The {b.job} said, "One lamb is
small, but it is not small to you."] [In the morning the shepherd tended the sheep, and the lamb ran beside
{a.him}.|From then on, the lamb followed {a} everywhere, and {a.he} counted the sheep twice each night.]
== autumn: dyer > weaver spinner shepherd
{opening} {a} had hung {a.order} in the {meadow} to dry. Then [dark clouds came over the hill|the wind turned|thunder
rolled over the village], and rain began to fall. The dyer said, "If the rain falls on the cloth, the {shade} will wash
away." {b} the {b.job} left the {b.station}, and together they [ran|hurried] to the {meadow} and carried in the cloth.
[|They were wet to the skin, but the cloth was dry.] The {b.job} said, "[Next time, look at the sky first.|Cloth dries
best under a roof in autumn.]" [{a} gave {b} {a.gift}, and built a roof for the cloth before winter came.|After that,
{a} dried the cloth under a roof, and no rain could reach it.]
== summer: miller > baker
{a} was a miller in the village, and that summer the river was so low that the wheel of the mill stood still. The miller
said, "Without water I cannot grind the grain." {b} the baker had no flour, so the oven was cold and the village had no
bread. The baker said, "[I will help you, for your trouble is mine.|Let us clear the stones, and the water will come.]"
They moved the stones in the river, and a thin stream ran to the mill. The wheel turned, the miller ground the grain,
and the baker baked bread at the oven. [|That evening everyone in the village ate warm bread and thanked them both.]
[The first loaf went to the miller, and the second went to the children.|The miller said, "A small stream is enough when
friends share it."]
== any: weaver any any any any > any
{opening} But {a} was not content, because {b.want}. {a.he} had no coins, so {a.he} went to {b} the {b.job} to make a
bargain. The {a.job} said, "If you give me {b.gift}, I will give you {a.gift}." The {b.job} said, "[That is fair, and
here is my hand.|A good bargain makes two people glad.|Let it be so.]" [|They shook hands [at the well|on the bridge|in
the middle of the market].] Soon {a} {b.joy}, and {b} was happy with {a.gift}. [|A fair bargain is [soon made and long
remembered|better than a full purse].]
== any: weaver weaver any any any > any
{opening} One day {a} and {b} the {b.job} began to argue about whose work was harder. The {a.job} said, "I {a.todo} all
day, and nobody works harder." The {b.job} said, "Anyone can do that, but not everyone can {b.todo}." An old [woman|man]
at the well told them to change places for one day. So the {a.job} tried to {b.todo}, but {b.failure}. The {b.job} tried
to {a.todo}, but {a.failure}. [In the evening they laughed, and each of them praised the work of the other.|After that,
the {a.job} {a.deed}, the {b.job} {b.deed}, and they never argued again.]
== any: weaver dyer spinner shepherd > ferryman
{opening} {a} had to carry {a.order} to the market on the other side of the river. {a.he} walked [past the mill|through
the {meadow}|over the hill] and met {b} the ferryman beside the boat. [|The {a.job} said, "Will you take me across the
river?"] The ferryman said, "[Sit still in the middle of the boat.|Put the load in the boat, and hold it well.]" {b}
took the oar and rowed the boat [through the fog|through the waves|under the wide sky] to the other side. [|At the
market {a} was paid {coins} silver coins and bought a gift for {a.his} {kin}.] [In the evening {a} came home by the same
boat and paid the ferryman with {a.gift}.|The ferryman said, "You trusted me and the boat, and so the river was kind to
us."]
== any: weaver any any any > any
{opening} On the road to the market {a} found a purse with {coins} silver coins. [|The {a.job} said, "Someone is
[looking|weeping] for this purse."] [|{a.he} asked the {c.job}, who {c.deed}, but the purse belonged to someone else.]
At last {a} gave the purse back to {b} the {b.job}, who had lost it [on the bridge|beside the well|near the gate]. Later
that year the {a.need} ran out, and {a} could not buy more. Then {b} came to the door with all the {a.need} that {a}
needed. The {b.job} said, "[You were honest with me, so I will help you.|What you give comes back to you.]"
== any: weaver weaver shepherd any any any > any
[The sun rose|Morning came|The bell rang], and the village woke. [The {a.job} {a.deed}, the {b.job} {b.deed}, and the
{c.job} {c.deed}.|All morning the {a.job} {a.deed}, and the {b.job} {b.deed}.] At noon {a} the {a.job} met {b} the
{b.job} [at the well|on the bridge], and they shared [bread and cheese|apples and milk]. The {a.job} said, "{a.saying}"
[|The {b.job} said, "[{b.saying}|I love the {b.sense} of the {b.station} more than silver.]"] [|A {buyer} [walked|rode]
past and [waved|called a greeting] to them.] [In the evening {a} put away the {a.tool}, {b} put away the {b.tool}, and
the village was quiet.|When the stars came out, {a} left the {a.station}, {b} left the {b.station}, and everyone slept.]
"""


class Villager(SimpleNamespace):
    """Somebody in a story: a craft and a person, word by word."""

    def __str__(self) -> str:
        return str(self.name)


def read_table(text: str) -> dict[str, dict[str, str]]:
    """The fields of each entry, by the name it begins with."""
    table = {}
    for entry in re.split(r"\n(?=\w)", text.strip()):
        name, fields = " ".join(entry.split()).split(": ", 1)
        table[name] = dict(field.split("=") for field in fields.split("; "))
    return table


def read_plots(text: str) -> list[tuple[str, str, list[str], str]]:
    """Season, hero, friends and sentences of each plot, once for every hero it lists."""
    plots = []
    for season, heroes, friends, story in re.findall(r"== (\w+): (.+) > (.+)\n([^=]+)", text):
        plots += [(season, hero, friends.split(), story) for hero in heroes.split()]
    return plots


def draw(text: str, dice: random.Random) -> str:
    """The text with one of each [x|y] drawn, the inner ones first."""
    while "[" in text:
        text = re.sub(r"\[([^][]*)\]", lambda options: dice.choice(options[1].split("|")), text)
    return text


def make_text(seed: int = 0, characters: int = 300_000) -> str:
    """Stories of a village of weavers, one a line with a blank line between, in at least so many characters."""
    dice = random.Random(seed)
    plots, crafts, people, slots = read_plots(PLOTS), read_table(CRAFTS), read_table(PEOPLE), read_table(SLOTS)["story"]

    def settle(fields: dict[str, str]) -> dict[str, str]:
        """The fields with all that they leave open drawn, so that it holds through a story."""
        return {name: draw(value, dice) for name, value in fields.items()}

    def make_story() -> str:
        season, hero, friends, story = dice.choice(plots)
        hero = dice.choice(list(crafts)) if hero == "any" else hero
        others = [job for job in crafts if job != hero]
        friend = dice.choice(friends)
        friend = crafts[hero]["helper"] if friend == "helper" else friend if friend in crafts else dice.choice(others)
        passer = dice.choice([job for job in others if job != friend])
        # The two have different pronouns, so that "he" and "she" are always clear; a ferryman is a man.
        pair = ["he", "she"] if hero == "ferryman" else ["she", "he"]
        if "ferryman" not in (hero, friend):
            dice.shuffle(pair)
        dyes, places = list(DYES), list(PLACES)
        dice.shuffle(dyes)
        dice.shuffle(places)
        words: dict[str, str | Villager] = {**settle(slots)}
        words["season"] = words.get(season, season)
        words["shade"], words["plant"], words["likeness"] = dyes[0]
        words["other_shade"], words["other_plant"], _ = dyes[1]
        words["first"], words["second"], words["third"], *_ = places
        for letter, job, person in zip("abc", (hero, friend, passer), (*pair, "he"), strict=True):
            words[letter] = Villager(job=job, **settle(people[person]), **settle(crafts[job]))
        story = draw(story, dice)
        while "{" in story:
            story = story.format(**words)
        story = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", " ".join(story.split()))
        return re.sub(r'(^|[.?!]"? )([a-z])', lambda start: start[1] + start[2].upper(), story)

    stories: list[str] = []
    size = -1  # the last story has one line end where the others have two
    while size < characters:
        stories.append(make_story())
        size += len(stories[-1]) + 2
    return "\n\n".join(stories) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the text of the demo: short stories of a village of weavers.")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same text")
    parser.add_argument("--characters", type=int, default=300_000, help="write at least so many")
    parser.add_argument("--out", type=Path, help="the file to write; without it, the text goes to the screen")
    options = parser.parse_args()
    text = make_text(options.seed, options.characters)
    if options.out:
        options.out.write_text(text, encoding="ascii", newline="\n")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
