"""Texts with hidden facts for the needle model (tests/data/needle/README.md), seeded.

A fact reads "The code of NAME is DIGITS."; NAME is three consonant-vowel pairs, DIGITS are five. The rest
is filler: sentences of plain words that hold neither digits nor "code of", so that they cannot be taken
for a fact. One byte is one token.
"""

import random

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"

SUBJECTS = """the river|a grey heron|the old miller|her neighbour|the lighthouse|a quiet crowd|the orchard|
the night train|an empty boat|the schoolmaster|the north wind|a travelling printer|the garden wall|
his younger sister|the harbour clock|a flock of starlings|the baker|the long road""".replace(
    "\n", "").split("|")
VERBS = """waits beside|turns away from|remembers|carries water to|passes|looks over|borrows bread from|
sings about|walks around|sends letters to|sleeps near|paints|forgets|listens to""".replace(
    "\n", "").split("|")
OBJECTS = """the stone bridge|a field of barley|the empty market|the mountain|a lantern in the window|
the frozen pond|the last house of the village|a basket of apples|the painted door|the far shore|
a letter without a name|the church bells|the first snow|a small brown horse""".replace(
    "\n", "").split("|")
ENDINGS = """before the rain comes|in the early morning|as it does every year|without a word|
when the lamps are lit|after the long winter|until the evening|for no reason at all|while the others talk|
and nobody minds""".replace("\n", "").split("|")


def make_facts(rng, count):
    """`count` pairs (name, digits), names and digits all different."""
    names, codes = [], []
    while len(names) < count:
        name = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(3))
        code = f"{rng.randrange(100000):05d}"
        if name not in names and code not in codes:
            names.append(name)
            codes.append(code)
    return list(zip(names, codes))


def sentence(rng):
    text = " ".join(rng.choice(part) for part in (SUBJECTS, VERBS, OBJECTS, ENDINGS))
    return text[0].upper() + text[1:] + "."


def make_document(tokens, facts, rng):
    """A text of exactly `tokens` bytes with every fact once, spread over its whole length.

    Raises ValueError when there is no room for the facts.
    """
    statements = [f"The code of {name} is {code}." for name, code in facts]
    room = tokens - sum(len(s) + 1 for s in statements)
    if room < 0:
        raise ValueError(f"{tokens} tokens are too few for {len(facts)} facts; "
                         f"give at least {tokens - room}")
    filler = []
    while sum(len(s) + 1 for s in filler) < room:
        filler.append(sentence(rng))
    # Fact i lies at a random place of the i-th of as many equal parts.
    places = [(i + rng.random()) / len(statements) for i in range(len(statements))]
    pieces = [(place, 1, text) for place, text in zip(places, statements)]
    pieces += [((i + 0.5) / len(filler), 0, text) for i, text in enumerate(filler)]
    excess = sum(len(s) + 1 for _, _, s in pieces) - tokens
    pieces.sort(key=lambda piece: piece[0])
    # The first filler sentence gives up what is too much.
    for i, (place, is_fact, text) in enumerate(pieces):
        if not is_fact and excess > 0:
            cut = min(excess, len(text) + 1)
            pieces[i] = (place, is_fact, text[cut:] if cut <= len(text) else None)
            excess -= cut
    return "".join(text + " " for _, _, text in pieces if text is not None)


def question(name):
    return f"The code of {name} is"
