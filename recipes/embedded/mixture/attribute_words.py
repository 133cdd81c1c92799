# ruff: noqa: E501 - long lines of wording are data here
"""Domains, slots, neutral sentences and wordings for `attributes`. Own work, CC0. Neutral sentences carry no attribute."""

from __future__ import annotations

from dataclasses import dataclass

from mixture.tools import CITIES, NAMES

DOMAINS = {"saas": 13, "shop": 12, "bank": 9, "telecom": 7, "travel": 8, "it": 8, "hr": 7, "sales": 7, "product": 7, "food": 8,
           "social": 9, "medical": 7, "code": 7, "news": 6, "meeting": 6, "mail": 9}  # fmt: skip
"""Domain -> weight."""
GROUPS = {"cs": ("saas", "shop", "bank", "telecom", "travel"), "all": tuple(DOMAINS)}
FAMILY = {**dict.fromkeys(("saas", "shop", "bank", "telecom", "travel", "it"), "service"),
          **dict.fromkeys(("hr", "sales", "mail"), "office"), **dict.fromkeys(("product", "food"), "review"),
          "social": "social", "medical": "medical", "code": "code", "news": "news", "meeting": "meeting"}  # fmt: skip
FAR = {"saas": ("medical", "food"), "bank": ("medical", "food", "code"), "code": ("medical", "food", "travel", "bank"),
       "medical": ("shop", "code", "food"), "meeting": ("medical", "food"), "travel": ("code", "medical"), "shop": ("code", "medical"),
       "it": ("food",), "telecom": ("food", "code", "medical"), "mail": ("food", "code"), "food": ("code", "saas", "bank")}  # fmt: skip
"""Domain -> domains so far away that none of their topics can be meant."""
CUSTOMER = ("customer", "writer", "user", "sender", "person", "client")
WHO = {**dict.fromkeys(GROUPS["cs"], CUSTOMER), "it": ("employee", "writer", "colleague", "user", "sender"), "hr": ("employee", "writer", "sender", "colleague"),
       "sales": ("prospect", "lead", "writer", "contact", "sender"), "product": ("reviewer", "buyer", "writer", "customer"),
       "food": ("guest", "reviewer", "writer", "diner"), "social": ("author", "poster", "writer", "user"),
       "medical": ("patient", "writer", "caller", "person"), "code": ("reviewer", "commenter", "author of the comment"),
       "news": ("report", "article", "author"), "meeting": ("note taker", "writer", "team"), "mail": ("sender", "writer", "author")}  # fmt: skip
TEXT = {**dict.fromkeys(GROUPS["cs"], ("message", "text", "ticket", "request")), "it": ("ticket", "message", "text", "request"),
        "hr": ("message", "mail", "text", "request"), "sales": ("message", "mail", "text", "note"), "product": ("review", "text", "comment"),
        "food": ("review", "text", "comment"), "social": ("post", "comment", "text", "message"), "medical": ("note", "message", "text"),
        "code": ("comment", "remark", "text"), "news": ("article", "report", "text", "item"), "meeting": ("notes", "minutes"),
        "mail": ("email", "message", "mail", "text")}  # fmt: skip
CONFLICTS = {frozenset(pair.split()) for pair in (
    "urgent can_wait", "deadline_day can_wait", "resolved urgent", "resolved deadline_day", "resolved wants_refund", "resolved compensation",
    "resolved leaves", "resolved legal_threat", "resolved public_threat", "resolved wants_human", "resolved wants_callback", "resolved angry",
    "resolved sarcastic", "praise sarcastic", "praise urgent", "praise compensation", "praise wants_refund", "can_wait angry", "polite legal_threat",
    "can_wait legal_threat", "can_wait public_threat", "polite public_threat", "can_wait repeat_contact", "resolved security_incident",
    "resolved data_loss", "leaves upgrade", "cancel_subscription upgrade", "praise cancel_subscription", "angry sarcastic", "angry upgrade",
    "upgrade sarcastic", "can_wait sarcastic", "legal_threat upgrade", "public_threat upgrade", "can_wait leaves",
    "can_wait card_lost", "can_wait fraud", "praise fraud", "praise card_lost", "praise flight_cancelled", "praise internet_down",
    "praise lost_luggage", "praise security_incident", "praise data_loss", "can_wait internet_down",
    "unsubscribes wants_demo", "unsubscribes asks_price", "unsubscribes budget_approved", "unsubscribes not_interested",
    "newsletter action_needed", "out_of_office meeting_request", "approves blocking", "approves security_flaw", "approves code_bug",
    "recommends not_recommend", "good_value too_expensive", "easy_setup hard_setup", "friendly_staff rude_staff", "delicious bad_food",
    "broke_soon durable", "will_return wont_return", "delicious food_poisoning", "food_poisoning will_return", "recommends broke_soon",
    "insult supportive", "threat supportive", "insult thanks_post", "improving chest_pain", "improving breathing", "improving getting_worse",
    "slow_service quick_service", "sick_leave resignation", "dirty will_return", "rude_staff will_return",
    "counterfeit recommends", "counterfeit durable", "not_interested wants_demo", "not_interested budget_approved", "not_interested asks_price",
    "not_interested big_team", "postponed decision", "emergency pain", "recommends food_poisoning", "recommends wont_return", "will_return wont_return", "not_recommend will_return",
    "newsletter urgent", "newsletter deadline_day", "out_of_office urgent", "scam polite", "spam_ad polite", "resolved data_loss")}  # fmt: skip
"""Pairs that would contradict each other in one message, beside those that the bank's contrasts name."""
SLOT_ATTRIBUTES = {
    "order": "order_number",
    "amount": "amount",
    "phone": "phone",
    "email": "email_address",
    "city": "place",
}
SLOTS = {
    "name": NAMES, "city": CITIES, "rival": ("Vantrix", "Bluepine", "Hartmann", "Kestrel", "Nordwind", "Zapeo"),
    "product": ("the lamp", "the tent", "the kettle", "the jacket", "the desk", "the drill", "the backpack", "the coffee machine",
                "the keyboard", "the blender", "the chair", "the camera", "the rug", "the vacuum cleaner"),
    "years": ("six", "seven", "eight", "nine", "twelve", "fifteen", "twenty"),
    "email": tuple(f"{name.lower()}@example.{end}" for name in NAMES for end in ("com", "org")),
}  # fmt: skip
NUMBERED = {"order": ("#####", "A-####", "ORD-#####", "##-###-##", "#######"), "amount": ("## euros", "$##", "€#.##", "### dollars", "£##.##"),
            "phone": ("0## ### ## ##", "555-0###", "+49 ### #####", "(0##) ### ###"), "n": ("#", "##")}  # fmt: skip
"""Slots whose # become digits."""
FILLERS = {
    "service": ("Hello.", "Hi there.", "Good morning.", "Dear team,", "I am writing about my account.", "My name is {name}.", "This is about the matter in the title.",
                "I use it on my laptop.", "I am on the standard plan.", "It concerns my own account.", "My colleague {name} is copied.", "{name} here.",
                "I am writing on behalf of my sister.", "I usually work from home.", "The weather is grey here."),
    "office": ("Hello {name}.", "Hi all.", "Good morning.", "Dear {name},", "It was a quiet week here.", "I am writing from my home office.", "{name} is in copy.",
               "I hope the week started well.", "This concerns our department.", "The office is half empty at the moment."),
    "review": ("I went there with {name}.", "It was a rainy Sunday.", "My first review here.", "A friend told me about it.", "I had some time to form an opinion.",
               "We were four people.", "It was a present from {name}.", "I am in my forties.", "We came by bike."),
    "social": ("Good morning everyone.", "Sitting on the train right now.", "So I watched the game last night.", "My cat is asleep on the sofa.", "Just had a coffee.",
               "It is raining here again.", "Monday again.", "We painted the kitchen yesterday.", "I baked bread for the first time.", "The bus was full this morning."),
    "medical": ("I am calling for myself.", "I am {n}0 years old.", "I work in an office.", "I live with my partner.", "My name is {name}.", "I take no supplements.",
                "I am registered at your practice.", "I moved here a year ago.", "I walk a lot."),
    "code": ("In the second function.", "See the loop further down.", "About this file:", "One remark on this change.", "I read it this morning.", "This is in the parser.",
             "Looking at the last commit.", "In the helper module.", "Regarding line {n}."),
    "news": ("The report was published on Monday.", "A spokesperson confirmed it.", "Further details will follow.", "Local media were first to write about it.",
             "The statement came in the morning.", "Several agencies carried the story.", "Observers had expected it."),
    "meeting": ("We met in the small room.", "{name} took the notes.", "The meeting started at nine.", "Seven people were there.", "{name} opened the round.",
                "There was coffee.", "We went through the agenda.", "The call lasted half an hour."),
}  # fmt: skip
JUDGE = (
    "Which description fits the {text}?",
    "Judge the {text} by the two criteria.",
    "Compare the {text} with both descriptions.",
    "Decide by the criteria.",
)
PAIRS = (
    ("yes", "no"),
    ("A", "B"),
    ("Yes.", "No."),
    ("true", "false"),
    ("correct", "incorrect"),
    ("right", "wrong"),
    ("B", "A"),
    ("1", "0"),
    ("agree", "disagree"),
)
"""Words for true and false."""
MARKS = (
    ("present", "absent"),
    ("flag", "ignore"),
    ("applies", "does not apply"),
    ("found", "not found"),
    ("match", "no match"),
    ("detected", "not detected"),
    ("tick", "leave blank"),
)
MARKED = (
    "Look for this in the {{text}}: {label}. Say {yes} or {no}.",
    "{label}: {yes} or {no}?",
    "Check the {{text}} for the following: {label}.",
    "Criterion: {label}.",
    "Label to check: {label}",
)
KEYS = (
    ("yes", "no"),
    ("yes", "no"),
    ("y", "n"),
    ("true", "false"),
    ("A", "B"),
    ("B", "A"),
    ("1", "0"),
    ("0", "1"),
    ("option_0", "option_1"),
)
ANSWERS = (
    ("yes", "no"),
    ("Yes.", "No."),
    ("that is right", "that is not right"),
    ("it holds", "it does not hold"),
    ("The answer is yes.", "The answer is no."),
)
NONE = ("none of these", "none of the above", "nothing of the kind", "no option applies", "something else")
WHICH = ("Which of these applies to the {text}?", "Which statement about the {text} is true?", "Pick the one that fits.", "What is true of the {who}?", "Choose the matching description.",
         "Which label belongs to this {text}?", "What does the {text} contain?", "Only one of these holds. Which?", "Tag the {text}.", "What can be said about this {text}?")  # fmt: skip
SUBJECTS = (
    "Hello",
    "Request",
    "My account",
    "A message",
    "For your team",
    "Contact form",
    "Note",
    "From the website",
    "Case",
    "(no subject)",
    "Quick note",
)
STATE_KEYS = {"service": ("message", "text", "ticket", "description", "content"), "office": ("message", "text", "email", "body"), "review": ("review", "text", "comment"),
              "social": ("post", "comment", "text", "content"), "medical": ("note", "message", "text"), "code": ("comment", "review_comment", "text"),
              "news": ("article", "text", "item", "snippet"), "meeting": ("notes", "minutes", "text")}  # fmt: skip
FIELDS = {"channel": ("web", "app", "form"), "language": ("en",), "id": (17, 204, 5031, 881), "received": ("09:12", "14:40", "18:03"), "source": ("inbox", "import"),
          "status": ("new", "unread")}  # fmt: skip
AGENT = (
    "One moment.",
    "I see.",
    "Noted.",
    "Go on.",
    "I am reading your message.",
    "Understood.",
    "I have opened your record.",
)


@dataclass(frozen=True)
class Scale:
    """A scale of three levels, lowest first."""

    asked: tuple[str, ...]
    levels: tuple[tuple[str, str, str], ...]
    mixed: bool = False
    """Whether both ends together make the middle."""


SCALES = {
    "urgency": Scale(("How urgent is it?", "Rate the urgency.", "How soon does the {who} need a reaction?", "Priority of this {text}?"),
                     (("can wait", "soon", "at once"), ("no hurry", "within a day", "immediately"), ("low", "medium", "high"))),
    "mood": Scale(("How does the {who} feel?", "Rate the mood of the {text}.", "Tone of the {text}?"),
                  (("angry", "neutral", "pleased"), ("very negative", "neither", "positive"), ("hostile", "matter of fact", "friendly"))),
    "opinion": Scale(("How good was the experience?", "Rate the sentiment of the {text}.", "What is the {who}'s verdict?"),
                     (("negative", "mixed", "positive"), ("bad", "both good and bad", "good"), ("complaints only", "praise and complaints", "praise only")), True),
    "triage": Scale(("How serious is it?", "Rate the seriousness of what the {who} reports.", "How soon should somebody see the {who}?"),
                    (("harmless", "needs an appointment", "call an ambulance"), ("routine", "soon", "emergency"))),
    "review": Scale(("How serious are the remarks?", "Rate the severity of the {text}.", "How much stands in the way of merging?"),
                    (("none or cosmetic", "should be improved", "must be fixed first"), ("minor", "medium", "blocking"))),
}  # fmt: skip
