"""What the demonstration plays: one question, two orders, three customers. Known to parent and worker alike."""

from __future__ import annotations

QUESTION = "Refund orders A-17 and A-18 and tell the three customers"
GREETING = "Hello"
ORDERS = {"A-17": 1250, "A-18": 9900}
"""Cents to pay back, by order."""
CUT_SHORT = "A-18"
"""The order whose worker is killed after the bank paid and before the result is stored."""
LOST = "A-17"
"""The order whose result the API turns away once: stored, and not accepted yet when the worker dies."""
CUSTOMERS = {"c-1": "Ada", "c-2": "Grace", "c-3": "Edsger"}
LOOKUP_SECONDS = 0.3
"""How long the customer database takes to answer."""
PAY_SECONDS = 0.5
"""How long the bank takes for one refund; it pays one at a time."""
SETTLE = 1.0
"""Seconds after which a request to the bank that was under way has either landed or never will."""


def call_id(subject: str) -> str:
    """Return the id of the call about an order or a customer, the same in every turn of the script."""
    return f"call_{subject.replace('-', '').lower()}"
