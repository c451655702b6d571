"""Membership against a model that recomputes everything from the facts it was told."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fanwise.parallel.launch.membership import Membership, View

Places = dict[int, tuple[int, int]]


def test_an_agreement_to_an_older_view_does_not_count() -> None:
    places = {0: (2, 5), 1: (2, 5), 2: (2, 5)}
    membership = Membership((0, 1, 2), lambda rank: places.get(rank, (0, 0)))
    assert membership.lost(2) == View(3)
    assert membership.acknowledged(0, 3) is None
    assert membership.acknowledged(1, 3) == View(4, (0, 1), 5)
    assert membership.lost(1) == View(5)
    assert membership.acknowledged(0, 3) is None
    assert membership.acknowledged(0, 5) == View(6, (0,), 5), "what was committed before stays"


class ViewsMachine(RuleBasedStateMachine):
    """The model keeps facts only: who lives, who has agreed to what, where each has arrived."""

    make: type[Membership] = Membership

    def __init__(self) -> None:
        super().__init__()
        self.places: Places = {}
        self.members: tuple[int, ...] = (0, 1, 2)
        self.views = self.make(self.members, lambda rank: self.places.get(rank, (0, 0)))
        self.view = 2
        self.committed = 0
        self.living = {0, 1, 2}
        self.agreed: set[tuple[int, int]] = set()

    def expect(self, view: View | None, *, may_pause: bool) -> None:
        expected: View | None = None
        if self.view % 2 == 0 and may_pause:
            self.view += 1
            expected = View(self.view)
        elif self.view % 2 and self.living and all((rank, self.view) in self.agreed for rank in self.living):
            here = [turn if view == self.view - 1 else 0 for view, turn in map(self.place, self.members)]
            self.committed = max(self.committed, min(here))
            self.members = tuple(sorted(self.living))
            self.view += 1
            expected = View(self.view, self.members, self.committed)
        assert view == expected

    def place(self, rank: int) -> tuple[int, int]:
        return self.places.get(rank, (0, 0))

    @rule(data=st.data())
    def lost(self, data: st.DataObject) -> None:
        rank = data.draw(st.integers(0, 3))
        was_member = rank in self.living
        self.living.discard(rank)
        view = self.views.lost(rank)
        if was_member:
            self.expect(view, may_pause=True)
        else:
            assert view is None

    @precondition(lambda self: self.living and self.view % 2)
    @rule(data=st.data(), late=st.booleans())
    def agrees(self, data: st.DataObject, late: bool) -> None:
        rank = data.draw(st.sampled_from(sorted(self.members)))
        view = self.view - 2 * late
        new_view = self.views.acknowledged(rank, view)
        if late or rank not in self.living:
            assert new_view is None
        else:
            self.agreed.add((rank, view))
            self.expect(new_view, may_pause=False)

    @precondition(lambda self: self.living and self.view % 2)
    @rule()
    def all_agree(self) -> None:
        """As a rule they do."""
        view = self.view
        for rank in sorted(self.living):
            if self.view == view:
                new_view = self.views.acknowledged(rank, view)
                self.agreed.add((rank, view))
                self.expect(new_view, may_pause=False)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), turns=st.integers(1, 3))
    def arrives(self, data: st.DataObject, turns: int) -> None:
        self.arrive(data.draw(st.sampled_from(sorted(self.living))), turns)

    @precondition(lambda self: self.living)
    @rule(turns=st.integers(1, 3))
    def all_arrive(self, turns: int) -> None:
        for rank in sorted(self.living):
            self.arrive(rank, turns)

    def arrive(self, rank: int, turns: int) -> None:
        if (rank, self.view) not in self.agreed:
            self.places[rank] = (self.view - self.view % 2, max(self.place(rank)[1], self.committed) + turns)

    @invariant()
    def the_whole_state_is_the_models(self) -> None:
        assert (self.views.view, self.views.members, self.views.committed) == (self.view, self.members, self.committed)
        assert self.views.living == self.living
        assert self.views.is_changing == (self.view % 2 == 1)


TestViews = ViewsMachine.TestCase
TestViews.settings = settings(max_examples=80, stateful_step_count=40)
