# ruff: noqa: E501, B905 - long lines of wording are data here
"""Records with labels by construction: tool choice, policies, tickets, facts, comparisons, replies. Own work.

Every maker is ``maker(rng) -> Row``. Nothing is copied from benchmarks; gold follows from how the record was drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from mixture.tools import CITIES, NAMES, THINGS, TOOLS, Tool, request_for, schema_of, styled

Row = dict[str, Any]

PER_TOOL = ("Should this tool be invoked for the request? Candidate tool: {name}", "Mark the candidate yes if it should be called to "
            "answer the user and no otherwise.\n\nCandidate: {name}", "Is {name} the function to call here?",
            "Decide for one function whether the assistant needs it now. Function under review: {name}",
            "Given the conversation and the schemas in the state, select whether to call the tool {name}",
            "Would calling {name} help to answer the user?",
            "The state holds what was said so far and the functions that exist. Say for each function on its own whether it has to be "
            "called to serve the user. Only the name matters here, not the arguments.\n\nFunction: {name}",
            "Read the whole dialogue and all schemas first. Tick yes for a function that the last request needs, no for any other; "
            "neither order nor parameters are asked for.\n\n\nCandidate function: {name}",
            "You check the plan of an assistant. For the function below decide if the plan needs it, given the user's words and the "
            "descriptions in the state.\n\nTool under test: {name}")  # fmt: skip
CHOOSE_TOOL = ("Which tool should be called?", "Pick the function that answers the request.", "Select the one API for the last message.",
               "Choose the right tool from the catalog in the state.", "What should the assistant call next?")  # fmt: skip


def conversation(rng: random.Random, text: str) -> tuple[str, Any]:
    """A request as the value of a state key, in one of the usual shapes."""
    roll = rng.random()
    if roll < 0.35:
        return rng.choice(("request", "query", "user_request", "message")), text
    key = rng.choice(("conversation", "messages", "dialogue"))
    turns = [{"role": "user", "content": text}]
    if rng.random() < 0.25:
        turns = [{"role": "user", "content": rng.choice(("Hi!", "Hello, can you help?", "Are you there?"))},
                 {"role": "assistant", "content": rng.choice(("Sure, what do you need?", "Hello! How can I help?"))}, *turns]  # fmt: skip
    return key, [turns] if roll > 0.8 else turns


def tool_calls(rng: random.Random) -> Row:
    """One yes/no question per offered function (as a choice or a noul)."""
    count = rng.choice((1, 1, 2, 2, 3, 3, 4, 5))
    tools = rng.sample(TOOLS, count)
    if count > 1 and rng.random() < 0.4:
        tools = related(rng, tools[0], count)
    needed = {0} if rng.random() < 0.88 else set()
    if needed and count > 1 and rng.random() < 0.08:
        needed.add(1)
    texts = [request_for(rng, tools[number]) for number in sorted(needed)]
    text = " Also: ".join(texts) if texts else request_for(rng, rng.choice([t for t in TOOLS if t not in tools]))
    style = rng.choice(("snake", "camel", "pascal", "dotted"))
    names = [styled(rng, tool.name, style) for tool in tools]
    order = list(range(count))
    rng.shuffle(order)
    schemas = [schema_of(rng, names[number], tools[number].description, tools[number].parameters) for number in order]
    return per_tool(rng, text, schemas, [number in needed for number in order])


def per_tool(rng: random.Random, text: str, schemas: list[dict[str, Any]], needed: list[bool]) -> Row:
    """A request, functions, and one yes/no question (choice or noul) per function in one of many wordings."""
    key, value = conversation(rng, text)
    asked = rng.choice(PER_TOOL)
    as_choice = rng.random() < 0.65
    yes, no = rng.choice((("Call it.", "Do not call it."), ("This tool is needed.", "This tool is not needed."),
                          ("Invoke the tool.", "Leave the tool alone."), ("use it", "skip it")))  # fmt: skip
    questions, gold = {}, {}
    for number, (schema, holds) in enumerate(zip(schemas, needed, strict=True)):
        instructions = asked.format(name=schema["name"])
        question: Row = {"type": "noul", "instructions": instructions}
        if as_choice:
            question = {"type": "choice", "instructions": instructions, "criteria": {"yes": yes, "no": no}}
        questions[f"tool_{number}"] = question
        gold[f"tool_{number}"] = ("yes" if holds else "no") if as_choice else holds
    return {"state": {key: value, rng.choice(("functions", "tools", "available_tools")): schemas},
            "questions": questions, "gold": gold}  # fmt: skip


def related(rng: random.Random, tool: Tool, count: int) -> list[Tool]:
    """The tool and others of its family first, so that the choice is hard."""
    family = tool.name.split(".")[0]
    near = [other for other in TOOLS if other is not tool and other.name.split(".")[0] == family]
    far = [other for other in TOOLS if other is not tool and other not in near]
    return [tool, *rng.sample(near, min(len(near), count - 1)), *rng.sample(far, max(0, count - 1 - len(near)))]


def tool_choice(rng: random.Random) -> Row:
    """One choice among many tools; descriptions in the options or in the state's catalogue."""
    count = rng.choice((3, 5, 8, 12, 20, 30, 50))
    tools = rng.sample(TOOLS, count)
    style = rng.choice(("snake", "camel", "pascal", "dotted"))
    names = [styled(rng, tool.name, style) for tool in tools]
    gold = rng.randrange(count)
    text = request_for(rng, tools[gold])
    key, value = conversation(rng, text)
    state: Row = {key: value}
    in_state = rng.random() < 0.5
    if in_state:
        kept = 2 if count < 10 else 0
        state["available_tools"] = [schema_of(rng, n, t.description, t.parameters[:kept]) for n, t in zip(names, tools)]
    neutral = rng.random() < 0.5
    keys = [f"option_{number}" if neutral else name for number, name in enumerate(names)]
    if neutral:
        texts: list[Any] = [name if in_state else f"{name}: {t.description}" for name, t in zip(names, tools)]
    else:
        texts = [None if in_state or rng.random() < 0.2 else tool.description for tool in tools]
    return {"state": state if in_state or rng.random() < 0.6 else text,
            "questions": {"tool": {"type": "choice", "instructions": rng.choice(CHOOSE_TOOL),
                                   "criteria": dict(zip(keys, texts))}},
            "gold": {"tool": keys[gold]}}  # fmt: skip


def tool_needed(rng: random.Random) -> Row:
    """Can any of the offered tools answer, and does the request fit a described tool?"""
    tools = rng.sample(TOOLS, rng.randint(2, 5))
    fits = rng.random() < 0.5
    asked = rng.choice(tools) if fits else rng.choice([t for t in TOOLS if t not in tools])
    text = request_for(rng, asked)
    other = rng.choice([t for t in TOOLS if t is not asked])
    listed = [{"name": tool.name, "description": tool.description} for tool in tools]
    pick = rng.random() < 0.5
    shown = asked if pick else other
    return {"state": {"request": text, "tools": listed},
            "questions": {
                "any": {"type": "noul", "instructions": rng.choice(("Can one of the listed tools serve this request?",
                                                                     "Is any of these tools useful here?"))},
                "fit": {"type": "noul", "instructions": f"Is this request about the following task: {shown.description}"},
            }, "gold": {"any": fits, "fit": pick}}  # fmt: skip


# --- tickets -------------------------------------------------------------------------------------------------------

PROBLEMS = {
    "billing": ("I was charged twice for {thing}", "the invoice shows {n} euros too much", "my refund for {thing} has not arrived",
                "the direct debit failed and now there is a fee", "why did my subscription price go up by {n} euros"),
    "technical": ("the app crashes whenever I open settings", "the export button gives error {n}", "nothing loads since this morning",
                  "the sync stops after {n} files", "the website shows a blank page"),
    "delivery": ("{thing} should have come last week", "the courier left {thing} with a neighbour I don't know",
                 "tracking has not moved for {n} days", "half of my order was missing from the box"),
    "account": ("I can't log in any more", "please change the email of my account", "someone else seems to use my login",
                "I'd like my profile deleted", "the two factor code never arrives"),
    "sales": ("do you offer a discount for {n} seats", "what does the team plan cost", "can we get a demo next week",
              "is there a version for schools"),
}  # fmt: skip
TEAM_TEXTS = {
    "billing": ("payments, invoices and refunds", "Money matters", "charges and bills"),
    "technical": ("errors, crashes and outages", "Something is broken in the product", "bugs"),
    "delivery": ("parcels and couriers", "shipping problems", "late or missing goods"),
    "account": ("logins and personal data", "access to the account", "sign-in and profile"),
    "sales": ("prices and new contracts", "people who want to buy", "offers and demos"),
}
TONES = (
    (0, ("Hello, no rush at all: ", "Hi team, whenever you have time, ", "Good morning. Small question: "), (" Thanks a lot!", " Have a nice day.")),
    (1, ("Hello, ", "Hi, ", "Dear support, "), (" Please look into it.", " Thank you.")),
    (2, ("This is unacceptable! ", "I am really angry now. ", "For the third time: "), (" I expect an answer TODAY.", " Otherwise I cancel everything!", " Shame on you.")),
)  # fmt: skip
URGENT = (
    " We cannot work until this is solved.",
    " It is urgent, our event starts in an hour.",
    " Everything stands still here.",
)


def ticket(rng: random.Random) -> Row:
    """A support message: team, tone, urgency, a wish for money back."""
    team = rng.choice(list(PROBLEMS))
    tone, starts, ends = rng.choice(TONES)
    core = rng.choice(PROBLEMS[team]).format(thing=rng.choice(THINGS), n=rng.randint(2, 60))
    urgent = rng.random() < 0.4
    refund = rng.random() < 0.3
    text = rng.choice(starts) + core + "." + (rng.choice(URGENT) if urgent else "")
    text += rng.choice((" I want my money back.", " Please refund me.", " Return the payment.")) if refund else ""
    text += rng.choice(ends)
    teams = rng.sample(list(PROBLEMS), rng.randint(2, 5))
    if team not in teams:
        teams[0] = team
    rng.shuffle(teams)
    described = rng.random() < 0.7
    questions: Row = {
        "team": {"type": "choice", "instructions": rng.choice(("Who should handle it?", "Route the ticket.", "Which team owns this?",
                                                               "Pick a department.")),
                 "criteria": {name: rng.choice(TEAM_TEXTS[name]) if described else None for name in teams}},
        "tone": {"type": "score", "instructions": rng.choice(("How upset is the customer?", "Rate the anger of the writer.")),
                 "criteria": rng.choice((["friendly and relaxed", "matter of fact", "angry"], ["calm", "neutral", "furious"],
                                         ["not upset at all", "neutral", "very upset"]))},
        "urgent": {"type": "noul", "instructions": rng.choice(("Is this urgent?", "Does it need an answer at once?",
                                                               "The matter blocks the customer's work or event."))},
        "refund": {"type": "noul", "instructions": rng.choice(("Does the customer ask for a refund?", "Is money back requested?",
                                                               "The writer wants the payment returned."))},
    }  # fmt: skip
    gold: Row = {"team": team, "tone": tone, "urgent": urgent, "refund": refund}
    state: Any = text
    if rng.random() < 0.5:
        state = {"subject": core[:40], "body": text, "plan": rng.choice(("free", "pro", "enterprise"))}
    return {"state": state, "questions": questions, "gold": gold}


# --- facts: extraction, negation, comparison ------------------------------------------------------------------------

FACTS = {
    "city": (CITIES, ("ships to {v}", "goes to {v}"), "destination"),
    "colour": (("red", "blue", "green", "black", "white", "grey"), ("is {v}", "comes in {v}"), "colour"),
    "owner": (NAMES, ("belongs to {v}", "was ordered by {v}"), "customer"),
    "status": (("paid", "unpaid", "cancelled", "refunded"), ("is {v}", "has been {v}"), "payment"),
    "carrier": (("DPX", "Norpost", "SwiftCo", "Kargo"), ("travels with {v}", "is carried by {v}"), "carrier"),
    "size": (("small", "medium", "large"), ("has size {v}", "is a {v} one"), "size"),
}


def facts(rng: random.Random) -> Row:
    """A described order with true, false and negated claims, and what it does not say."""
    known = rng.sample(list(FACTS), rng.randint(2, 4))
    values = {key: rng.choice(FACTS[key][0]) for key in known}
    number = rng.randint(100, 999)
    thing = rng.choice(THINGS).split(" ", 1)[-1]
    if rng.random() < 0.5:
        parts = [rng.choice(FACTS[key][1]).format(v=value) for key, value in values.items()]
        state: Any = f"Order {number} ({thing}) " + ", it ".join(parts) + "."
    else:
        state = {"order": number, "item": thing, **{FACTS[key][2]: value for key, value in values.items()}}
    questions: Row = {}
    gold: Row = {}
    for index, key in enumerate(rng.sample(known, min(2, len(known)))):
        options = FACTS[key][0]
        true = rng.random() < 0.5
        value = values[key] if true else rng.choice([item for item in options if item != values[key]])
        claim = "the order " + rng.choice(FACTS[key][1]).format(v=value)
        negated = rng.random() < 0.3
        asked = rng.choice(
            ("Is it right that {c}?", "Does the record say that {c}?", "Claim: {c}.", "{c}. Is this correct?")
        )
        if negated:
            claim = "it is not the case that " + claim
        questions[f"claim_{index}"] = {"type": "noul", "instructions": asked.format(c=claim)}
        gold[f"claim_{index}"] = true != negated
    key = rng.choice(list(FACTS))
    questions["mentioned"] = {"type": "noul", "instructions": f"Is the {FACTS[key][2]} of the order given?"}
    gold["mentioned"] = key in known
    key = rng.choice(known)
    options = rng.sample(list(FACTS[key][0]), min(len(FACTS[key][0]), rng.randint(2, 5)))
    if values[key] not in options:
        options[0] = values[key]
    rng.shuffle(options)
    questions["which"] = {
        "type": "choice",
        "instructions": f"What is the {FACTS[key][2]}?",
        "criteria": dict.fromkeys(options),
    }
    gold["which"] = values[key]
    return {"state": state, "questions": questions, "gold": gold}


COMPARE = (("is taller than", "is shorter than", "tallest", "shortest"), ("is older than", "is younger than", "oldest", "youngest"),
           ("is faster than", "is slower than", "fastest", "slowest"), ("earns more than", "earns less than", "best paid", "worst paid"),
           ("is heavier than", "is lighter than", "heaviest", "lightest"))  # fmt: skip


def comparisons(rng: random.Random) -> Row:
    """Chains of comparisons or numbers with yes/no and choice questions."""
    more, less, most, least = rng.choice(COMPARE)
    people = rng.sample(list(NAMES), 3)
    chain = [
        f"{people[0]} {more} {people[1]}.",
        f"{people[2]} {less} {people[1]}." if rng.random() < 0.5 else f"{people[1]} {more} {people[2]}.",
    ]
    rng.shuffle(chain)
    a, b = rng.sample(range(3), 2)
    word, holds = (more, a < b) if rng.random() < 0.5 else (less, a > b)
    extreme, answer = (most, 0) if rng.random() < 0.5 else (least, 2)
    shuffled = people[:]
    rng.shuffle(shuffled)
    state: Any = " ".join(chain) if rng.random() < 0.6 else {"facts": chain}
    return {"state": state,
            "questions": {"claim": {"type": "noul", "instructions": f"{people[a]} {word} {people[b]}{rng.choice(('.', ', right?', '. True?'))}"},
                          "who": {"type": "choice", "instructions": f"Who is the {extreme}?", "criteria": dict.fromkeys(shuffled)}},
            "gold": {"claim": holds, "who": people[answer]}}  # fmt: skip


def quantities(rng: random.Random) -> Row:
    """Two named amounts and questions on which is larger."""
    a, b = rng.sample(list(CITIES), 2)
    x, y = rng.sample(range(2, 99), 2)
    unit, more, less = rng.choice((("thousand people", "more people", "fewer people"), ("parks", "more parks", "fewer parks"),
                                   ("km of tram lines", "a longer tram network", "a shorter tram network"),
                                   ("rainy days a month", "more rain", "less rain")))  # fmt: skip
    word, holds = (more, x > y) if rng.random() < 0.5 else (less, x < y)
    facts_ = [f"{a} has {x} {unit}.", f"{b} has {y} {unit}."]
    rng.shuffle(facts_)
    state: Any = {"topic": a, "facts": facts_} if rng.random() < 0.6 else " ".join(facts_)
    asked = rng.choice(
        (f"Does {a} have {word} than {b}?", f"Is it true that {a} has {word} than {b}?", f"{a} has {word} than {b}.")
    )
    return {"state": state, "questions": {"q": {"type": "noul", "instructions": asked}}, "gold": {"q": holds}}


# --- policies over attributes ----------------------------------------------------------------------------------------

ATTRIBUTES = {
    "tier": ("bronze", "silver", "gold"), "region": ("EU", "US", "Asia"), "channel": ("web", "phone", "shop"),
    "device": ("laptop", "tablet", "phone"), "contract": ("monthly", "yearly"), "verified": (True, False),
    "returning": (True, False), "category": ("food", "toys", "books", "tools"),
}  # fmt: skip
ACTIONS = ("approve", "reject", "escalate", "review", "hold", "refund", "notify", "archive")


def policy(rng: random.Random) -> Row:
    """Ordered rules over categorical attributes; the first that applies decides."""
    used = rng.sample(list(ATTRIBUTES), rng.randint(3, 5))
    state: Row = {key: rng.choice(ATTRIBUTES[key]) for key in used}
    actions = rng.sample(ACTIONS, 3)
    rules, answer = [], actions[2]
    for number, key in enumerate(rng.sample(used, 2)):
        value = rng.choice(ATTRIBUTES[key])
        shown = (
            {True: f"{key}", False: f"not {key}"}.get(value, f"{key} is {value}")
            if isinstance(value, bool)
            else f"{key} is {value}"
        )
        rules.append(f"{'If' if number == 0 else 'Else if'} {shown}: {actions[number]}.")
        if answer == actions[2] and state[key] == value and actions[number] not in (answer,):
            answer = actions[number]
    text = " ".join([*rules, f"Otherwise {actions[2]}."])
    shuffled = actions[:]
    rng.shuffle(shuffled)
    in_state = rng.random() < 0.3
    asked = "What happens under the policy?" if in_state else f"{text} What happens?"
    key = rng.choice(used)
    value = rng.choice(ATTRIBUTES[key])
    questions: Row = {"action": {"type": "choice", "instructions": asked, "criteria": dict.fromkeys(shuffled)}}
    target = rng.choice(actions)
    rule_text = "" if in_state else text + " "
    questions["is"] = {"type": "noul", "instructions": f"{rule_text}Is the outcome '{target}'?"}
    questions["attr"] = {
        "type": "noul",
        "instructions": f"Is {key} {'yes' if value is True else 'no' if value is False else value}?",
    }
    return {"state": {**state, "policy": text} if in_state else state, "questions": questions,
            "gold": {"action": answer, "is": answer == target, "attr": state[key] == value}}  # fmt: skip


# --- small inference ------------------------------------------------------------------------------------------------

WHO = (("A dog", "An animal", "A cat"), ("A boy", "A child", "A man"), ("A guitarist", "A musician", "A painter"), ("A woman", "A person", "A robot"),
       ("A nurse", "A medical worker", "A pilot"))  # fmt: skip
DOES = (("is sleeping", "is resting", "is running"), ("is eating pizza", "is eating", "is fasting"), ("is swimming in a lake", "is in the water", "is on a roof"),
        ("is shouting loudly", "is making noise", "is silent"), ("is riding a red bike", "is on a bike", "is standing still"))  # fmt: skip


def inference(rng: random.Random) -> Row:
    """Does the second sentence follow, contradict, or stay open?"""
    who, does = rng.choice(WHO), rng.choice(DOES)
    premise = f"{who[0]} {does[0]}{rng.choice(('', ' near the house', ' in the morning', ' with a friend'))}."
    kind = rng.choice(("yes", "no", "open"))
    extra = rng.choice(("and likes it", "because of the weather", "for the first time", "as planned"))
    hypothesis = {"yes": f"{rng.choice(who[:2])} {rng.choice(does[:2])}.", "no": f"{rng.choice(who[:2])} {does[2]}.",
                  "open": f"{who[1]} {does[1]} {extra}."}[kind]  # fmt: skip
    labels = rng.choice(({"yes": "it follows", "no": "it contradicts", "open": "it is undecided"},
                         {"yes": "entailment", "no": "contradiction", "open": "neutral"},
                         {"yes": "The first sentence proves the second.", "no": "Both cannot be true.", "open": "Cannot be known."}))  # fmt: skip
    items = list(labels.items())
    rng.shuffle(items)
    asked = {
        "type": "choice",
        "instructions": f"What is the relation of the text to: {hypothesis}",
        "criteria": dict(items),
    }
    yes = {
        "type": "noul",
        "instructions": rng.choice(("Does this follow? {h}", "Can we conclude: {h}", "{h}")).format(h=hypothesis),
    }
    state: Any = rng.choice((premise, {"premise": premise}))
    return {"state": state, "questions": {"rel": asked, "follows": yes} if rng.random() < 0.5 else {"rel": asked},
            "gold": {"rel": kind, "follows": kind == "yes"}}  # fmt: skip


MAKERS: dict[str, tuple[Callable[[random.Random], Row], int]] = {
    "tool_calls": (tool_calls, 3200),
    "tool_choice": (tool_choice, 1600),
    "tool_needed": (tool_needed, 900),
    "ticket": (ticket, 1800),
    "facts": (facts, 2200),
    "comparisons": (comparisons, 1000),
    "quantities": (quantities, 800),
    "policy": (policy, 1600),
    "inference": (inference, 1200),
}
"""Maker and number of records."""
