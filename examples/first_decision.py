"""A first decision with the embedded model: `python examples/first_decision.py`."""

import dicast

model = dicast.load()
decision = model.decide(
    {"subject": "Payouts failing since Monday", "plan": "enterprise"},
    {
        "urgent": dicast.Noul("Is this urgent?"),
        "team": dicast.Choice("Who should handle it?", {"payments": "Payouts, refunds", "technical": "Bugs, outages"}),
        "impact": dicast.Score("How bad is it for the customer?", ["harmless", "annoying", "business stops"]),
    },
)
for question_id, answer in decision.items():
    print(question_id, answer.value, {option: round(p, 3) for option, p in answer.probabilities.items()})
