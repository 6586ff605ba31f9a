"""Teardown of a row: refund, delete the artifacts, confirm, and at the end move the row to its terminal status."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from .action import Id, Row
from .document import Document, text_of, value_of
from .errors import TeardownIncomplete
from .executor import operation
from .flow import Flow, Invoke, ask

REQUEST = "SELECT outcome, status FROM once.cancel_request(%(machine)s, %(id)s)"
REFUND = """
SELECT items, amount, items_total, amount_total, remaining, pass AS pass_
  FROM once.cancel_refund(%(machine)s, %(id)s, %(max)s)"""
ITEMS = "SELECT item_id, item FROM once.cancel_items(%(machine)s, %(id)s, %(after)s, %(max)s)"
CONFIRM = "SELECT confirmed FROM once.cancel_confirm(%(machine)s, %(id)s, %(pass_)s)"
FINISH = """
SELECT outcome, status, items_total, amount_total FROM once.cancel_finish(%(machine)s, %(id)s, %(patch)s::json)"""
PENDING = "SELECT id FROM once.cancel_pending(%(machine)s, %(max)s)"


@dataclass(frozen=True)
class Requested:
    outcome: str  # teardown, accepted, done, too_late, not_found
    status: str | None


@dataclass(frozen=True)
class Refunded:
    items: int
    amount: Decimal
    items_total: int
    amount_total: Decimal
    remaining: bool
    pass_: int


@dataclass(frozen=True)
class Item:
    item_id: str
    item: str  # json text of the item's row

    @property
    def value(self) -> Any:
        return value_of(self.item)


@dataclass(frozen=True)
class Cancelled:
    outcome: str  # cancelled: by this call; done: by another
    status: str
    items_total: int
    amount_total: Decimal


@operation
def request(row: Row) -> Flow[Requested]:
    """Sets the row's cancel flag, unless the row is in a terminal status.

    teardown: tear down now. accepted: an action has a lease on the row, and its holder is to tear the row down.
    done: the row is already cancelled. too_late: the row is in another terminal status. not_found: no such row.
    """
    (told,) = yield from ask(REQUEST, **_which(row))
    return Requested(**told._asdict())


@operation
def refund(row: Row, max_items: int | None = None) -> Flow[Refunded]:
    """Marks the undecided items, at most max_items, and credits the amounts of those for which refund.when is true.

    refund is a member of the machine's definition, and refund.marker names the items' column that is marked. An item is
    undecided if this column is NULL or has the value of refund.undecided. A repeated call credits nothing twice.
    """
    (told,) = yield from ask(REFUND, **_which(row), max=max_items)
    return Refunded(**told._asdict())


@operation
def items(row: Row, after: str | None = None, max: int = 1000) -> Flow[list[Item]]:
    """The marked items, sorted by id, also those that an earlier pass listed."""
    return [Item(**one._asdict()) for one in (yield from ask(ITEMS, **_which(row), after=after, max=max))]


@operation
def confirm(row: Row, pass_: int) -> Flow[bool]:
    """Records that the artifacts of all items listed after this pass of `refund` are deleted.

    False: a refund after this pass marked more items. List the items again.
    """
    (told,) = yield from ask(CONFIRM, **_which(row), pass_=pass_)
    return bool(told.confirmed)


@operation
def finish(row: Row, patch: Document = None) -> Flow[Cancelled]:
    """The terminal move. TeardownIncomplete: begin at the top again."""
    (told,) = yield from ask(FINISH, **_which(row), patch=text_of(patch))
    return Cancelled(**told._asdict())


@operation
def pending(machine: str, max: int = 100) -> Flow[list[Row]]:
    """Rows that are flagged, not leased and not finished: what a teardown worker takes up."""
    return [Row(machine, row.id) for row in (yield from ask(PENDING, machine=machine, max=max))]


@operation
def teardown(
    row: Row, delete: Callable[[Any], Any], *, patch: Document = None, page: int = 1000, rounds: int = 5
) -> Flow[Cancelled]:
    """The whole teardown, each call in a transaction of its own. After an error or a crash, call `teardown` again.

    delete(item) removes what one item left outside; a missing thing counts as deleted. item is the parsed row.
    If new items appear meanwhile, another round begins. TeardownIncomplete: new items appeared in the last round, too.
    """
    for last in _rounds(rounds):
        refunded = yield from refund.flow(row)
        after = None
        while listed := (yield from items.flow(row, after, page)):
            for one in listed:
                yield Invoke(delete, (one.value,))
            after = listed[-1].item_id
        if not (yield from confirm.flow(row, refunded.pass_)) and not last:
            continue
        try:
            return (yield from finish.flow(row, patch))
        except TeardownIncomplete:
            if last:
                raise
    raise AssertionError("unreachable")


def _rounds(rounds: int) -> Iterator[bool]:
    return (number == rounds for number in range(1, rounds + 1))


def _which(row: Row) -> dict[str, Id]:
    return {"machine": row.machine, "id": row.id}
