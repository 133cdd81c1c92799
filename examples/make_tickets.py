"""Write examples/tickets.csv (500 labelled tickets to learn from) and examples/tickets_test.jsonl (150 to test on).

The tickets are made up: what is wrong, in one of ten wordings per team, between an opening and a closing. Three
wordings of every team occur in the test file only, so a model has to recognise the matter, not the sentence.

    python examples/make_tickets.py
"""

import csv
import json
import random
from pathlib import Path

FOLDER = Path(__file__).parent
TRAIN, TEST, HELD_OUT = 500, 150, 3
OPENINGS = ["Hi,", "Hello team,", "Good morning,", "", "Hey there,", "To whom it may concern,"]
CLOSINGS = [
    "Please help.",
    "Thanks!",
    "",
    "This is the second time I write.",
    "Regards, {name}",
    "Waiting for your answer.",
]
NAMES = ["Ana", "Tom", "Priya", "Lukas", "Mei", "Omar"]
SLOTS = {
    "month": ["March", "June", "last month", "this quarter"],
    "amount": ["49 dollars", "120 euros", "15 pounds"],
    "item": ["the lamp", "my headphones", "the desk", "two chairs"],
    "city": ["Leeds", "Porto", "Graz", "Oslo"],
}
TEAMS = {
    "billing": [
        "the invoice for {month} shows {amount} too much", "I was charged {amount} twice", "my refund has not arrived",
        "the discount code was not applied to the bill", "which VAT number is on the invoice of {month}",
        "you took {amount} although I cancelled", "the receipt for {month} is missing",
        "my card statement lists a payment to you that I do not know", "I need to change the billing address",
        "the annual plan was billed monthly",
    ],
    "delivery": [
        "{item} should have come on Friday and is not here", "the tracking page has not moved for a week",
        "the courier left {item} with a neighbour in {city} whom I do not know", "only half of the order came",
        "{item} arrived in the wrong colour", "can you send {item} to {city} instead",
        "the parcel was returned to you for no reason", "nobody rang, yet the driver says I was out",
        "{item} came with a broken box and scratches", "how long does a shipment to {city} take",
    ],
    "technical": [
        "the app closes as soon as I open it", "the website shows error 500 when I search",
        "since the update the page stays white", "the export button does nothing", "the mobile app drains my battery",
        "pictures are not shown in my browser", "the import of my file stops at 80 percent",
        "everything is very slow since {month}", "your API answers with a timeout", "the search finds nothing any more",
    ],
    "account": [
        "I cannot log in with my new password", "the confirmation email to my address never comes",
        "please delete my profile and my data", "someone signed in from {city} and it was not me",
        "how do I add a colleague as an administrator", "my user name is spelled wrong",
        "two-factor codes are not accepted", "I want to merge my two profiles", "the reset link has expired",
        "I no longer have the phone that is stored for sign-in",
    ],
    "sales": [
        "what would the plan for 50 people cost", "do you offer a discount for schools", "can we see a demo next week",
        "is there a contract for a whole company", "please send a quote for {item}", "do you sell in {city}",
        "what is the difference between the two larger plans", "we would like to become a reseller",
        "can we try the product for a month", "who can tell me about a bulk order",
    ],
    "feedback": [
        "the new design is lovely", "please bring back the old menu", "a dark mode would be great",
        "your colleague in {city} was very kind", "I wish there were a shortcut for saving",
        "the newsletter comes far too often", "it would be nice to sort by date",
        "the tone of your last mail was rude", "your help pages are the best I have seen",
        "why not offer the manual in Portuguese",
    ],
}  # fmt: skip
QUESTION = {
    "type": "choice",
    "instructions": "Which team should handle this ticket?",
    "criteria": dict.fromkeys(sorted(TEAMS)),
}


def ticket(rng: random.Random, wordings: list[str]) -> str:
    """One ticket about one of the wordings."""
    matter = rng.choice(wordings).format(**{name: rng.choice(values) for name, values in SLOTS.items()})
    closing = rng.choice(CLOSINGS).format(name=rng.choice(NAMES))
    return " ".join(part for part in (rng.choice(OPENINGS), matter + ".", closing) if part)


def tickets(rng: random.Random, count: int, part: slice) -> list[tuple[str, str]]:
    """Distinct (text, team) pairs, teams in turn."""
    found: dict[str, str] = {}
    while len(found) < count:
        team = list(TEAMS)[len(found) % len(TEAMS)]
        found.setdefault(ticket(rng, TEAMS[team][part]), team)
    return list(found.items())


def main() -> None:
    """Write both files."""
    rng = random.Random(0)
    with (FOLDER / "tickets.csv").open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(["body", "team"])
        writer.writerows(tickets(rng, TRAIN, slice(0, -HELD_OUT)))
    rows = [
        {"id": f"ticket-{number}", "state": text, "questions": {"label": QUESTION}, "gold": {"label": team}}
        for number, (text, team) in enumerate(tickets(rng, TEST, slice(-HELD_OUT, None)))
    ]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (FOLDER / "tickets_test.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
