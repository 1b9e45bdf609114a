"""Payments between accounts and to merchants, with four patterns of fraud of known truth, and labels that come later.

``docs/fraud-stream.md`` says what is drawn, from which distributions, and where the patterns come from.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from freshet_graph.schemas.events import Op
from freshet_graph.schemas.section import Section
from freshet_graph.stream.arrays.kinds import Bool, Float32, Float64, Int32, Int64
from freshet_graph.stream.synthetic.interactions import START_S

_HOUR_S, _DAY_S = 3600.0, 86_400.0
DEFAULT_PAYMENTS_SPAN_S: Final = 90 * _DAY_S
PATTERNS: Final = ("takeover", "stolen", "mules", "rings")
"""Patterns of fraud, in the order of their codes 0 … 3."""
SOURCES: Final = ("chargeback", "investigation")
"""Sources of labels; the later one has the higher priority."""

_FEWEST_NODES, _SHORTEST_DAYS = 200, 14
_MERCHANTS = 0.1
"""Share of the nodes that are merchants."""
_PAYER_TAIL, _MERCHANT_TAIL, _PAYEE_TAIL = 1.8, 1.2, 1.5
"""Exponents of Pareto laws: how often an account pays, a merchant is chosen, an account receives."""
_SLOTS = 4.0
"""Slots in an urn of the least active node: activity is rounded to 1/4 of it."""
_USUAL_MERCHANTS, _USUAL_PAYEES = 8, 4
_COLUMNS = np.repeat(np.arange(12, dtype=np.uint8), (68, 48, 34, 24, 17, 12, 9, 6, 15, 11, 7, 5))
"""256 slots: places of usual ends by how often they are chosen; the last four are accounts, 15 % of all payments."""
_LOYALTY = 0.85
"""Share of payments to a usual end."""
_PURSE, _PURSES = 3.0, 0.4
"""Mean and deviation of an account's logarithm of amounts."""
_PRICES, _TRANSFER = 0.8, 1.2
"""Deviation of what a payee adds to it, and the mean of that for accounts."""
_NOISE = 0.6
_HOURS = np.array([2, 1, 1, 1, 1, 2, 4, 7, 9, 10, 11, 13, 14, 12, 11, 11, 12, 14, 15, 14, 11, 8, 5, 3.0])
_WEEKDAYS = np.array([0.95, 0.95, 0.98, 1.02, 1.15, 1.1, 0.85])
"""From Monday on, the day of ``START_S``."""
_CHUNK = 1 << 17
"""Payments drawn together."""
_LARGEST_TAKEOVER = 0.25
"""Share of the takeovers' frauds at one merchant: a takeover of a large one is noticed sooner."""
_CAMPAIGNS = 3
"""Mean number of campaigns of a mule."""


class FraudOptions(Section):
    """Shares of frauds among all payments, by pattern, and how labels come. A share of 0 switches a pattern off."""

    takeover: float = Field(0.003, ge=0, le=0.05, description="Payments at merchants that were taken over.")
    stolen: float = Field(0.002, ge=0, le=0.05, description="Payments with stolen cards.")
    mules: float = Field(0.002, ge=0, le=0.05, description="Payments to and from mule accounts.")
    rings: float = Field(0.001, ge=0, le=0.05, description="Payments in rings of accounts.")
    delay_days: float = Field(
        7.0, gt=0, le=365, description="Median of the days between a payment and its label, and between that and its "
        "correction.",
    )  # fmt: skip
    delay_sigma: float = Field(0.8, ge=0, le=2, description="Deviation of the delay's logarithm.")
    never: float = Field(0.1, ge=0, le=1, description="Share of the frauds that never get a label.")
    cleared: float = Field(0.05, ge=0, le=1, description="Share of first labels of frauds that are 0.")
    mistaken: float = Field(
        0.0005, ge=0, le=0.05, description="Share of the other payments that get a label 1."
    )
    corrected: float = Field(0.8, ge=0, le=1, description="Share of wrong labels that are corrected.")


class Part(NamedTuple):
    """The next stretch of time.

    Attributes:
        events: Columns src, dst (int64), t (float64 seconds, whole milliseconds), op (int8), weight (float32: the amount,
            whole cents) and event_id (string), sorted by time.
        labels: Columns event_id (string), label (int32), t (float64 seconds: when it was decided) and source (string), sorted by
            time: those decided in this stretch, or in the last part all others.
        truth: Columns event_id, pattern (string) and case (int64, number of the case within its pattern) of each fraud.
    """

    events: pa.Table
    labels: pa.Table
    truth: pa.Table


@dataclass(frozen=True, slots=True)
class _World:
    """Accounts 0 … A − 1, then merchants.

    Attributes:
        payers, merchants, payees: Urns: ids, each as often as its activity.
        usual: int32 [A, 12]: an account's usual merchants, then its usual payees.
        purse: float32 [A], of the logarithm of an account's amounts.
        price: float32 [nodes], what a payee adds to it.
    """

    payers: Int32
    merchants: Int32
    payees: Int32
    usual: Int32
    purse: Float32
    price: Float32

    @property
    def accounts(self) -> int:
        return len(self.purse)

    @property
    def nodes(self) -> int:
        return len(self.price)


@dataclass(frozen=True, slots=True)
class _Frauds:
    """Frauds beside plain payments, sorted by time: all arrays have one entry for each.

    ``t`` is in seconds from the start, ``case`` a number within the pattern.
    """

    t: Float64
    src: Int32
    dst: Int32
    amount: Float32
    pattern: NDArray[np.int8]
    case: Int32

    def __getitem__(self, rows: Any) -> "_Frauds":
        return _Frauds(*(getattr(self, field.name)[rows] for field in fields(self)))


def payments(
    nodes: int,
    edges: int,
    *,
    options: FraudOptions | None = None,
    seed: int = 0,
    start_s: float = START_S,
    span_s: float = DEFAULT_PAYMENTS_SPAN_S,
) -> Iterator[Part]:
    """Generate exactly ``edges`` payments, sorted by time, with frauds among them and labels beside them.

    A part is drawn at a time, so memory holds a part, the nodes (about 200 bytes each) and the frauds (about 50 bytes each). Each
    pattern, and the labels, are drawn from a generator of their own: events and truth do not depend on how labels come, and the
    cases of a pattern not on other patterns, except takeovers, whose number of payments depends on what others leave.

    Args:
        nodes: At least 200; a tenth of them, the highest ids, are merchants, and the others accounts.
        edges: Number of payments, frauds included.
        options: Shares of the patterns, delays and mistakes of labels.
        seed: Same arguments and seed give the same parts.
        start_s: Start of the stream, seconds since the epoch, a Monday's midnight.
        span_s: Its length, at least 14 days: times are in [start_s, start_s + span_s).

    Raises:
        ValueError: A number is out of range; the text is fit for users.
    """
    options = FraudOptions() if options is None else options
    if nodes < _FEWEST_NODES:
        raise ValueError(f"payments need at least {_FEWEST_NODES} nodes, found {nodes}")
    if span_s < _SHORTEST_DAYS * _DAY_S:
        raise ValueError(
            f"frauds last days, so the span must be at least {_SHORTEST_DAYS} days, found {span_s} s"
        )
    generators = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(7)]
    of_world, of_payments, of_labels, *of_patterns = generators
    world = _world(nodes, of_world)
    drawn = [
        _stolen(world, options.stolen * edges, span_s, of_patterns[PATTERNS.index("stolen")]),
        _mules(world, options.mules * edges, span_s, of_patterns[PATTERNS.index("mules")]),
        _rings(world, options.rings * edges, span_s, of_patterns[PATTERNS.index("rings")]),
    ]
    frauds = _Frauds(
        *(np.concatenate([getattr(some, field.name) for some in drawn]) for field in fields(_Frauds))
    )
    frauds = frauds[np.argsort(frauds.t, kind="stable")]
    plain = edges - len(frauds.t)
    if plain < len(frauds.t):
        raise ValueError(
            f"{len(frauds.t)} of {edges} payments would be frauds, because a case has several. Take more edges, or lower shares"
        )
    taken = _takeovers(world, options.takeover * edges, plain, span_s, of_patterns[0])
    return _parts(world, frauds, taken, plain, options, start_s, span_s, of_payments, of_labels)


def _parts(
    world: _World,
    frauds: _Frauds,
    taken: Float64,
    plain: int,
    options: FraudOptions,
    start_s: float,
    span_s: float,
    rng: np.random.Generator,
    of_labels: np.random.Generator,
) -> Iterator[Part]:
    pieces = max(int(np.ceil(span_s / _HOUR_S)), -(-plain // _CHUNK))
    piece_s = span_s / pieces
    middle_s = (np.arange(pieces) + 0.5) * piece_s
    rhythm = (
        _HOURS[(middle_s % _DAY_S // _HOUR_S).astype(int)] * _WEEKDAYS[(middle_s // _DAY_S).astype(int) % 7]
    )
    counts = rng.multinomial(plain, rhythm / rhythm.sum())
    borders = np.flatnonzero(np.diff(np.cumsum(counts) // _CHUNK)) + 1
    borders = np.concatenate(([0], borders, [pieces]))
    is_target = np.isfinite(taken[:, 0])
    waiting = _no_labels()
    first = 0
    for begin, end in pairwise(borders.tolist()):
        # Only times need an order: the other columns of plain payments are drawn alike at any time.
        t = np.repeat(np.arange(begin, end, dtype=np.float64), counts[begin:end])
        t = _milliseconds(np.sort(t + rng.random(len(t))) * piece_s)
        src, dst, amount = _plain(world, len(t), rng)
        pattern, case = np.full(len(t), -1, np.int8), np.zeros(len(t), np.int32)
        rows = np.flatnonzero(is_target[dst])
        rows = rows[(t[rows] >= taken[dst[rows], 0]) & (t[rows] < taken[dst[rows], 1])]
        pattern[rows], case[rows] = 0, dst[rows]
        last = end == pieces
        low, high = np.searchsorted(frauds.t, (begin * piece_s, np.inf if last else end * piece_s))
        some = frauds[low:high]
        places = np.searchsorted(t, some.t)
        t, src, dst = (
            np.insert(t, places, some.t),
            np.insert(src, places, some.src),
            np.insert(dst, places, some.dst),
        )
        amount, case = np.insert(amount, places, some.amount), np.insert(case, places, some.case)
        pattern = np.insert(pattern, places, some.pattern)
        t += start_s
        # Same results as one string at a time, some ten times as fast.
        number = pc.cast(pa.array(np.arange(first, first + len(t))), pa.string())
        event_id = pc.binary_join_element_wise("p", number, "")
        first += len(t)
        waiting = pa.concat_tables([waiting, _labels(event_id, t, pattern >= 0, options, of_labels)])
        is_due = (
            np.ones(len(waiting), np.bool_) if last else waiting["t"].to_numpy() < start_s + end * piece_s
        )
        due = waiting.filter(pa.array(is_due))
        waiting = waiting.filter(pa.array(~is_due))
        frauds_here = np.flatnonzero(pattern >= 0)
        yield Part(
            pa.table(
                {
                    "src": src.astype(np.int64),
                    "dst": dst.astype(np.int64),
                    "t": t,
                    "op": np.full(len(t), Op.INSERT, np.int8),
                    "weight": amount,
                    "event_id": event_id,
                }
            ),
            due.take(np.argsort(due["t"].to_numpy(), kind="stable")),
            pa.table(
                {
                    "event_id": event_id.take(pa.array(frauds_here)),
                    "pattern": pa.array(PATTERNS).take(pa.array(pattern[frauds_here])),
                    "case": case[frauds_here].astype(np.int64),
                }
            ),
        )


def _world(nodes: int, rng: np.random.Generator) -> _World:
    merchants = max(20, round(nodes * _MERCHANTS))
    accounts = nodes - merchants
    payers = _urn(0, accounts, _PAYER_TAIL, rng)
    shops = _urn(accounts, merchants, _MERCHANT_TAIL, rng)
    payees = _urn(0, accounts, _PAYEE_TAIL, rng)
    usual = np.concatenate(
        (
            _from(shops, (accounts, _USUAL_MERCHANTS), rng),
            _others(_from(payees, (accounts, _USUAL_PAYEES), rng), np.arange(accounts)[:, None], accounts),
        ),
        axis=1,
    )
    price = _PRICES * rng.standard_normal(nodes, np.float32)
    price[:accounts] += _TRANSFER
    return _World(
        payers, shops, payees, usual, _PURSE + _PURSES * rng.standard_normal(accounts, np.float32), price
    )


def _urn(first: int, count: int, tail: float, rng: np.random.Generator) -> Int32:
    """Ids from ``first`` on, each as often as its activity: a draw is a random place, without a search."""
    slots = np.ceil(_SLOTS * (rng.pareto(tail, count) + 1.0)).astype(np.int64)
    slots = np.minimum(
        slots, max(1, slots.sum() // 20)
    )  # no node has more than about a twentieth of all payments
    return np.repeat(np.arange(first, first + count, dtype=np.int32), slots)


def _from(urn: Int32, shape: int | tuple[int, int], rng: np.random.Generator) -> Int32:
    return urn[rng.integers(0, len(urn), shape, dtype=np.uint32)]


def _others(drawn: Int32, than: Int32 | Int64, accounts: int) -> Int32:
    """Replace an account that would pay itself by the next one."""
    return np.where(drawn == than, (drawn + 1) % accounts, drawn)


def _plain(world: _World, count: int, rng: np.random.Generator) -> tuple[Int32, Int32, Float32]:
    """Sources, destinations and amounts: sources by activity, mostly to one of their usual ends."""
    src = _from(world.payers, count, rng)
    column = _COLUMNS[rng.integers(0, len(_COLUMNS), count, dtype=np.uint8)]
    dst = world.usual.reshape(-1)[src * np.int64(world.usual.shape[1]) + column]
    stray = np.flatnonzero(rng.random(count, np.float32) >= _LOYALTY)
    is_transfer = column[stray] >= _USUAL_MERCHANTS
    shop, payee = _from(world.merchants, len(stray), rng), _from(world.payees, len(stray), rng)
    dst[stray] = np.where(is_transfer, _others(payee, src[stray], world.accounts), shop)
    return src, dst, _amounts(world, src, dst, rng)


def _amounts(
    world: _World, src: Int32, dst: Int32, rng: np.random.Generator, raised: float | Float32 = 0.0
) -> Float32:
    """Lognormal amounts of these pairs, in whole cents; ``raised`` is added to their logarithm."""
    noise = rng.standard_normal(len(src), np.float32)
    return _cents(np.exp(world.purse[src] + world.price[dst] + np.float32(_NOISE) * noise + raised))


def _cents(amount: NDArray[Any]) -> Float32:
    return np.maximum(np.round(amount.astype(np.float32), 2), np.float32(0.01))


def _milliseconds(t: Float64) -> Float64:
    return np.asarray(np.floor(t * 1000) / 1000, np.float64)


def _takeovers(world: _World, target: float, plain: int, span_s: float, rng: np.random.Generator) -> Float64:
    """When a node is taken over: float64 [nodes, 2] seconds from the start, begin and end; infinite: never.

    Merchants in random order, until the payments that they expect meanwhile reach ``target``.
    """
    taken = np.full((world.nodes, 2), np.inf)
    if not target:
        return taken
    activity = np.bincount(world.payers, minlength=world.accounts)
    column = np.bincount(_COLUMNS) / len(_COLUMNS)
    weight = activity[:, None] / activity.sum() * column[None, :_USUAL_MERCHANTS]
    usual = np.bincount(world.usual[:, :_USUAL_MERCHANTS].ravel(), weight.ravel(), world.nodes)
    stray = np.bincount(world.merchants, minlength=world.nodes) / len(world.merchants)
    share = _LOYALTY * usual + (1 - _LOYALTY) * column[:_USUAL_MERCHANTS].sum() * stray
    order = world.accounts + rng.permutation(world.nodes - world.accounts)
    length_s = rng.uniform(14 * _DAY_S, 42 * _DAY_S, len(order))
    first_s = rng.uniform(-length_s, span_s)
    begin_s, end_s = np.maximum(first_s, 0), np.minimum(first_s + length_s, span_s)
    expected = plain * share[order] * (end_s - begin_s) / span_s
    fitting = np.minimum(1.0, _LARGEST_TAKEOVER * target / np.maximum(expected, 1e-9))
    end_s = begin_s + (end_s - begin_s) * fitting
    enough = np.searchsorted(np.cumsum(expected * fitting), target) + 1
    taken[order[:enough]] = np.stack([begin_s, end_s], axis=1)[:enough]
    return taken


def _stolen(world: _World, target: float, span_s: float, rng: np.random.Generator) -> _Frauds:
    """Bursts of 3 to 12 larger payments of an account, within 2 hours to 4 days, at merchants that it does not use."""
    size = _sizes(target, 3, 12, rng)
    case, _ = _members(size)
    src = _from(world.payers, len(size), rng)[case]
    dst = np.zeros(len(case), np.int32)
    open_ = np.arange(len(case))
    while len(open_):
        dst[open_] = rng.integers(world.accounts, world.nodes, len(open_))
        open_ = open_[(world.usual[src[open_]] == dst[open_, None]).any(axis=1)]
    length_s = rng.uniform(_DAY_S / 12, 4 * _DAY_S, len(size))
    begin_s = rng.uniform(0, span_s - length_s)
    t = begin_s[case] + length_s[case] * rng.random(len(case))
    raised = (1.1 + 0.5 * rng.standard_normal(len(case))).astype(np.float32)
    return _frauds("stolen", t, src, dst, _amounts(world, src, dst, rng, raised), case)


def _mules(world: _World, target: float, span_s: float, rng: np.random.Generator) -> _Frauds:
    """Campaigns: 3 to 10 accounts pay a mule within 8 hours, which pays 90 to 98 % of it to 1 to 4 others within 9 hours.

    A mule has about three campaigns, within two weeks.
    """
    incoming = _sizes(target, 3, 10, rng, beside=2.5)
    outgoing = rng.integers(1, 5, len(incoming))
    recruits = -(-len(incoming) // _CAMPAIGNS)
    of = rng.integers(0, recruits, len(incoming))
    mule = rng.integers(0, world.accounts, recruits, np.int32)[of]
    window_s = min(14 * _DAY_S, span_s / 2)
    begin_s = rng.uniform(0, span_s - window_s, recruits)[of] + rng.uniform(0, window_s - _DAY_S, len(of))

    gathering_s = rng.uniform(1, 8, len(of)) * _HOUR_S
    case, _ = _members(incoming)
    payer = _others(rng.integers(0, world.accounts, len(case), np.int32), mule[case], world.accounts)
    paid_s = begin_s[case] + gathering_s[case] * rng.random(len(case))
    paid = _amounts(world, payer, mule[case], rng, 0.5)
    total = np.bincount(case, paid, len(of))

    passing_s = rng.uniform(0.5, 6, len(of)) * _HOUR_S
    left_s = begin_s + gathering_s + rng.uniform(0.2, 3, len(of)) * _HOUR_S
    passed, _ = _members(outgoing)
    receiver = _others(rng.integers(0, world.accounts, len(passed), np.int32), mule[passed], world.accounts)
    share = rng.uniform(0.5, 1.5, len(passed))
    share /= np.bincount(passed, share, len(of))[passed]
    passed_on = _cents(share * (total * rng.uniform(0.9, 0.98, len(of)))[passed])
    passed_s = left_s[passed] + passing_s[passed] * rng.random(len(passed))
    return _frauds(
        "mules",
        np.concatenate((paid_s, passed_s)),
        np.concatenate((payer, mule[passed])),
        np.concatenate((mule[case], receiver)),
        np.concatenate((paid, passed_on)),
        np.concatenate((case, passed)),
    )


def _rings(world: _World, target: float, span_s: float, rng: np.random.Generator) -> _Frauds:
    """Cycles of 3 to 8 distinct accounts, one to three times around, half an hour to 12 hours apart, equal within 5 %."""
    size = _sizes(target, 3, 8, rng, factor=2.0)
    rounds = rng.integers(1, 4, len(size))
    member = rng.integers(0, world.accounts, (len(size), 8), np.int32)
    while (again := np.flatnonzero((np.diff(np.sort(member, axis=1)) == 0).any(axis=1))).size:
        member[again] = rng.integers(0, world.accounts, (len(again), 8), np.int32)
    case, hop = _members(size * rounds)
    gap_s = np.cumsum(rng.uniform(0.5, 12, len(case)) * _HOUR_S)
    last = np.cumsum(size * rounds) - 1
    first = last + 1 - size * rounds
    begin_s = rng.uniform(0, span_s - (gap_s[last] - gap_s[first]))
    t = begin_s[case] + gap_s - gap_s[first][case]
    amount = np.exp(_PURSE + _TRANSFER + 1.0 + _NOISE * rng.standard_normal(len(size)))
    return _frauds(
        "rings",
        t,
        member[case, hop % size[case]],
        member[case, (hop + 1) % size[case]],
        _cents(amount[case] * rng.uniform(0.95, 1.05, len(case))),
        case,
    )


def _sizes(
    target: float, low: int, high: int, rng: np.random.Generator, *, factor: float = 1.0, beside: float = 0.0
) -> Int64:
    """Sizes of cases, ``low`` to ``high`` evenly, whose events are about ``target``: size · factor + beside of each."""
    cases = max(1, round(target / ((low + high) / 2 * factor + beside))) if target else 0
    return rng.integers(low, high + 1, cases)


def _members(size: Int64) -> tuple[Int64, Int64]:
    """The case of each event, and its number within the case."""
    case = np.repeat(np.arange(len(size)), size)
    return case, np.arange(len(case)) - np.repeat(np.cumsum(size) - size, size)


def _frauds(name: str, t: Float64, src: Int32, dst: Int32, amount: Float32, case: Int64) -> _Frauds:
    code = np.full(len(t), PATTERNS.index(name), np.int8)
    return _Frauds(_milliseconds(t), src, dst, amount, code, case.astype(np.int32))


def _labels(
    event_id: pa.Array, t: Float64, is_fraud: Bool, options: FraudOptions, rng: np.random.Generator
) -> pa.Table:
    """What sources say later: a first label, and a correction of some wrong ones."""
    frauds = np.flatnonzero(is_fraud)
    frauds = frauds[rng.random(len(frauds)) >= options.never]
    others = np.flatnonzero(rng.random(len(t), np.float32) < options.mistaken)
    others = others[~is_fraud[others]]
    row = np.concatenate((frauds, others))
    label = np.concatenate((rng.random(len(frauds)) >= options.cleared, np.ones(len(others), np.bool_)))
    decided = t[row] + _delays(len(row), options, rng)
    wrong = np.flatnonzero((label != is_fraud[row]) & (rng.random(len(row)) < options.corrected))
    corrected = decided[wrong] + _delays(len(wrong), options, rng)
    source = np.repeat((0, 1), (len(row), len(wrong)))
    return pa.table(
        {
            "event_id": event_id.take(pa.array(np.concatenate((row, row[wrong])))),
            "label": np.concatenate((label, ~label[wrong])).astype(np.int32),
            "t": np.ceil(np.concatenate((decided, corrected)) * 1000) / 1000,
            "source": pa.array(SOURCES).take(pa.array(source)),
        }
    )


def _no_labels() -> pa.Table:
    names = {"event_id": pa.string(), "label": pa.int32(), "t": pa.float64(), "source": pa.string()}
    return pa.schema(list(names.items())).empty_table()


def _delays(count: int, options: FraudOptions, rng: np.random.Generator) -> Float64:
    """Seconds, lognormal."""
    return options.delay_days * _DAY_S * np.exp(options.delay_sigma * rng.standard_normal(count))
