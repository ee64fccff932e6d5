"""The section `attack`: clients that lie."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rayfed_kd.recipe.strict import Strict


class AttackRecipe(Strict):
    """Clients that lie about what they send: their parts are replaced when an exchange's replies are in."""

    name: Literal["paf", "lie", "ofom"]
    clients: list[Annotated[int, Field(ge=0)]] | None = Field(None, description="the attackers' ids")
    fraction: float | None = Field(None, ge=0, lt=1, description="share of the clients, drawn once")
    scale: float = Field(10.0, description="how far theta' lies, in every coordinate (paf, ofom)")
    theta: Literal["constant", "random"] = Field(
        "constant",
        description="theta': `scale` itself, or times normal numbers drawn once; softmax sees no constant",
    )
    z: float | Literal["baruch", "fedgems"] = Field(
        1.5, description="deviations from the mean (lie), or the formula that gives them"
    )
    parts: list[str] | None = Field(None, description="what is poisoned; null: all weights and logits")

    @model_validator(mode="after")
    def _one_of_two(self) -> AttackRecipe:
        if self.clients is not None and self.fraction is not None:
            raise ValueError("give at most one of clients and fraction")
        return self

    def count(self, clients: int) -> int:
        """How many attackers; where nothing is said, as FedGEMS has them: two for ofom, else one."""
        if self.clients is not None:
            return len(self.clients)
        if self.fraction is not None:
            return round(self.fraction * clients)
        return 2 if self.name == "ofom" else 1

    def fault(self, clients: int) -> str | None:
        """Why this cannot be among so many clients; None if it can."""
        named, count = self.clients or [], self.count(clients)
        wrong = sorted({client for client in named if client >= clients or named.count(client) > 1})
        if wrong:
            return f"clients: {wrong[0]}: expected each of 0 to {clients - 1} at most once"
        if count >= clients:
            return f"clients: {count} attackers for {clients} clients; expected an honest one at least"
        if self.name == "ofom" and count not in (0, 2):
            return f"clients: ofom has two attackers, one far and one mean; these are {count}"
        return None
