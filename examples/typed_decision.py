"""Questions as a Pydantic model, the decision as an instance of it: `python examples/typed_decision.py`."""

import enum
from typing import Annotated, Literal

from pydantic import BaseModel, Field

import dicast


class Impact(enum.IntEnum):
    """How bad is it for the customer?"""

    HARMLESS = 0
    ANNOYING = 1
    BUSINESS_STOPS = 2


class Ticket(BaseModel):
    """A field per question; the field's description is the question."""

    urgent: bool = Field(description="Is this urgent?")
    team: Literal["payments", "technical", "sales"] = Field(description="Who should handle it?")
    impact: Impact
    leaving: Annotated[float, dicast.Noul("Does the customer threaten to leave?")]


ticket = dicast.load().decide("Our payouts have failed since Monday. Fix it or we leave!", Ticket).parsed
print(repr(ticket))
