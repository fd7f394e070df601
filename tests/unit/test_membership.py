"""Who is a member, through restarts, late news and the loss of their source."""

from dataclasses import replace

import msgspec

from core.membership import Joined, Left, Member, MemberKind, Membership

TTL_US = 5_000_000
A = Member(MemberKind.DECODE, "a", "127.0.0.1:1", "first", started_us=100)
B = Member(MemberKind.DECODE, "b", "127.0.0.1:2", "only", started_us=90)


def test_members_join_stay_by_announcing_and_expire() -> None:
    membership = Membership()
    assert membership.announced((B, A), TTL_US, 0) == [Joined(B), Joined(A)]
    assert membership.members(MemberKind.DECODE) == (A, B)
    assert membership.announced((A,), TTL_US, 3_000_000) == []
    assert membership.next_deadline_us == TTL_US
    assert membership.tick(TTL_US) == [Left(B, "expired")]
    assert membership.members(MemberKind.DECODE) == (A,) and membership.members(MemberKind.ROUTER) == ()
    membership.check()


def test_a_newer_incarnation_replaces_and_an_older_one_arriving_late_is_ignored() -> None:
    membership = Membership()
    newer = replace(A, incarnation="second", started_us=200, address="127.0.0.1:9")
    membership.announced((A,), TTL_US, 0)
    assert membership.announced((newer,), TTL_US, 1) == [Left(A, "replaced"), Joined(newer)]
    assert membership.announced((A,), TTL_US, 2) == []
    assert membership.get(MemberKind.DECODE, "a") == newer


def test_the_last_view_stands_while_the_source_is_lost_and_a_term_longer() -> None:
    membership = Membership()
    membership.announced((A, B), TTL_US, 0)
    membership.source_lost(1)
    assert membership.tick(100 * TTL_US) == [] and membership.next_deadline_us is None
    assert membership.members(MemberKind.DECODE) == (A, B)
    # An emptied source empties nobody at once: everyone has a term to announce again.
    assert membership.announced((), TTL_US, 100 * TTL_US) == []
    assert membership.announced((A,), TTL_US, 101 * TTL_US - 1) == []
    assert membership.tick(101 * TTL_US) == [Left(B, "expired")]


def test_a_broken_stream_marks_down_that_incarnation_only() -> None:
    membership = Membership()
    membership.announced((A, B), TTL_US, 0)
    membership.mark_down(MemberKind.DECODE, "a", "some other", 1)
    assert membership.up(MemberKind.DECODE) == (A, B)
    membership.mark_down(MemberKind.DECODE, "a", "first", 1)
    assert membership.up(MemberKind.DECODE) == (B,) and membership.members(MemberKind.DECODE) == (A, B)
    membership.announced((A,), TTL_US, 2)
    assert membership.up(MemberKind.DECODE) == (B,)
    membership.mark_up(MemberKind.DECODE, "a", "first", 3)
    assert membership.up(MemberKind.DECODE) == (A, B)


def test_a_reading_of_some_joins_and_renews_those_and_ends_nobody() -> None:
    membership = Membership()
    newer = replace(A, incarnation="second", started_us=200)
    membership.announced((A, B), TTL_US, 0)
    assert membership.heard_of((newer,), TTL_US, TTL_US) == [Left(A, "replaced"), Joined(newer)]
    assert membership.members(MemberKind.DECODE) == (newer, B)
    assert membership.announced((), TTL_US, TTL_US) == [Left(B, "expired")]
    assert membership.members(MemberKind.DECODE) == (newer,)


def test_who_withdraws_is_gone_at_once() -> None:
    membership = Membership()
    membership.announced((A,), TTL_US, 0)
    assert membership.withdrawn(MemberKind.DECODE, "a", "another", 1) == []
    assert membership.withdrawn(MemberKind.DECODE, "a", "first", 1) == [Left(A, "withdrawn")]
    assert membership.members(MemberKind.DECODE) == ()


def test_an_announcement_survives_the_wire_and_other_versions_of_it() -> None:
    assert msgspec.json.decode(msgspec.json.encode(A), type=Member) == A
    newer = b'{"kind":"router","id":"r","address":"h:1","incarnation":"i","later_field":[1]}'
    older = (
        b'{"kind":"router","id":"r","address":"h:1","incarnation":"i","started_us":0,"http_address":"h:2"}'
    )
    for announcement in (newer, older):
        assert msgspec.json.decode(announcement, type=Member) == Member(MemberKind.ROUTER, "r", "h:1", "i")
