"""The rules of the batcher, one by one and in any order of events: order, budget, lanes, bounds, refusals, leaving."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fusebert.serve.batcher import BULK, BULK_SHARE, INTERACTIVE, LANES, Batcher, Job, Limits, RefusedError


def add(batcher, *tokens, now=0.0, lane=INTERACTIVE, **more):
    job = Job(len(tokens), sum(tokens), lane=lane, **more)
    batcher.admit(job, now)
    batcher.queue(job, tokens)
    return job


def make(pace=1e-5, workers=1, **limits):
    return Batcher(Limits(**limits), pace, workers)


def test_nothing_waits_for_a_batch_to_fill():
    batcher = make()
    assert not batcher.take(0.0).pieces
    job = add(batcher, 7)
    assert batcher.take(0.0).pieces == [(job, 0)]


def test_the_oldest_go_first_until_the_budget_is_full():
    batcher = make(batch_tokens=300)
    jobs = [add(batcher, 100, 100), add(batcher, 90), add(batcher, 100), add(batcher, 5)]
    assert batcher.take(0.0).pieces == [(jobs[0], 0), (jobs[0], 1), (jobs[1], 0)]
    assert batcher.take(0.0).pieces == [(jobs[2], 0), (jobs[3], 0)]


def test_a_sequence_longer_than_the_budget_runs_alone():
    batcher = make(batch_tokens=300)
    first, long, last = add(batcher, 5), add(batcher, 512), add(batcher, 5)
    assert [batcher.take(0.0).pieces for _ in range(3)] == [[(first, 0)], [(long, 0)], [(last, 0)]]


def test_a_slow_model_gets_smaller_batches():
    assert make(pace=1e-6).budget == 8192
    assert make(pace=2e-5).budget in (999, 1000)
    assert make(pace=1.0).budget == 256


def test_the_pace_is_learnt_from_batches_that_are_large_enough():
    batcher = make(pace=1e-5)
    add(batcher, 10)
    batcher.finish(batcher.take(0.0), 1.0)  # 0.1 s a token, for a batch that is mostly overhead
    assert batcher.seconds_per_token == 1e-5
    for _ in range(40):
        add(batcher, 400)
        batcher.finish(batcher.take(0.0), 0.04)
    assert batcher.seconds_per_token == pytest.approx(1e-4, rel=0.01)


def test_interactive_jobs_overtake_bulk_ones_and_bulk_never_stands_still():
    batcher = make(batch_tokens=256)
    bulk = add(batcher, *[32] * 4000, lane=BULK)
    ran = dict.fromkeys(LANES, 0)
    first = add(batcher, 20)
    assert batcher.take(0.0).pieces[0] == (first, 0)
    for _ in range(400):
        while batcher.waiting(INTERACTIVE) < 600:  # more than the machine can do
            add(batcher, 30)
        for job, number in batcher.take(0.0).pieces:
            ran[job.lane] += job.tokens[number]
    assert bulk.taken
    assert ran[BULK] / sum(ran.values()) == pytest.approx(BULK_SHARE, abs=0.03)


def test_what_would_wait_too_long_is_refused_at_once_with_the_time_to_come_back():
    batcher = make(pace=1e-3, wait=0.5)
    for _ in range(6):
        add(batcher, 100)
    with pytest.raises(RefusedError) as refused:
        add(batcher, 1)
    assert refused.value.reason == "wait"
    assert refused.value.retry_after == pytest.approx(0.1)
    assert batcher.counts["refused", "wait", INTERACTIVE] == 1
    twice = make(pace=1e-3, wait=0.5, workers=2)
    for _ in range(6):
        add(twice, 100)
    add(twice, 1)


def test_bulk_jobs_do_not_make_interactive_ones_wait():
    batcher = make(pace=1e-3, wait=0.5)
    add(batcher, *[100] * 50, lane=BULK)
    add(batcher, 100)
    with pytest.raises(RefusedError, match="wait would be"):
        add(batcher, 1, lane=BULK)


def test_a_running_batch_is_waited_for_only_as_long_as_it_still_takes():
    batcher = make(pace=1e-3)
    add(batcher, 200)
    batcher.take(0.0)
    assert batcher.expected_wait(INTERACTIVE, 0.05) == pytest.approx(0.15)
    assert batcher.expected_wait(INTERACTIVE, 9.0) == 0


def test_a_deadline_that_cannot_be_kept_is_refused_or_dropped():
    batcher = make(pace=1e-3)
    with pytest.raises(RefusedError, match="in time"):
        add(batcher, 100, deadline=0.05)
    late, fine = add(batcher, 100, deadline=0.2), add(batcher, 10)
    batch = batcher.take(0.15)
    assert (batch.late, batch.pieces) == ([late], [(fine, 0)])
    assert late.gone
    assert batcher.counts["late", INTERACTIVE] == 1


def test_memory_is_a_bound_in_bytes_and_freed_once():
    batcher = make(memory=1000)
    with pytest.raises(RefusedError, match="split it"):
        add(batcher, 1, bytes=1001)
    first = add(batcher, 1, bytes=600)
    with pytest.raises(RefusedError, match="memory"):
        add(batcher, 1, bytes=600)
    batcher.finish(batcher.take(0.0), 0.1)
    assert batcher.bytes == 600
    batcher.release(first)
    batcher.leave(first)
    assert batcher.bytes == 0
    add(batcher, 1, bytes=600)


def test_permits_bound_the_sequences_that_wait_but_one_request_always_fits():
    batcher = make(sequences=4)
    add(batcher, *[1] * 9)
    with pytest.raises(RefusedError, match="9 texts are waiting"):
        add(batcher, 1)


def test_a_job_whose_client_left_does_not_run():
    batcher = make()
    gone, other = add(batcher, 50, 60), add(batcher, 7)
    batcher.leave(gone)
    assert batcher.waiting(INTERACTIVE) == 7
    assert batcher.take(0.0).pieces == [(other, 0)]
    left = Job(1, 9)
    batcher.admit(left, 0.0)
    batcher.leave(left)
    batcher.queue(left, [9])  # it left while it was tokenised
    assert not batcher.take(0.0).pieces


def test_a_job_whose_client_left_while_it_ran_is_not_reported_as_complete():
    batcher = make()
    job = add(batcher, 50)
    batch = batcher.take(0.0)
    batcher.leave(job)
    assert batcher.finish(batch, 0.1) == []


def test_a_closed_batcher_finishes_what_it_has():
    batcher = make()
    job = add(batcher, 5)
    batcher.closed = True
    with pytest.raises(RefusedError, match="stopping"):
        add(batcher, 5)
    assert batcher.finish(batcher.take(0.0), 0.1) == [job]


def test_what_was_lost_with_a_worker_runs_again_alone_and_only_twice():
    batcher = make()
    guilty, innocent = add(batcher, 50, 60), add(batcher, 7)
    assert batcher.lose(batcher.take(0.0)) == []
    later = add(batcher, 9)
    first, second, third = (batcher.take(0.0) for _ in range(3))
    assert [batch.pieces for batch in (first, second, third)] == [[(guilty, 0)], [(guilty, 1)], [(innocent, 0)]]
    assert batcher.lose(first) == []
    again = batcher.take(0.0)
    assert again.pieces == [(guilty, 0)]
    assert batcher.lose(again) == [guilty]
    assert guilty.gone
    assert batcher.finish(second, 0.1) == []
    assert batcher.finish(third, 0.1) == [innocent]
    assert batcher.take(0.0).pieces == [(later, 0)]
    assert batcher.counts["lost", INTERACTIVE] == 1


def test_when_nothing_can_run_all_that_waits_is_given_up():
    batcher = make(batch_tokens=300)
    jobs = [add(batcher, 200), add(batcher, 200), add(batcher, 5, lane=BULK)]
    batcher.lose(batcher.take(0.0))
    assert set(batcher.abandon()) == set(jobs)
    assert (batcher.sequences, batcher.backlog) == (0, 0)
    assert not batcher.take(0.0).pieces


def test_a_batch_that_had_more_than_its_share_does_not_tell_the_pace():
    batcher = make(pace=1e-4)
    add(batcher, 400)
    batch = batcher.take(0.0)
    batch.wide = True
    batcher.finish(batch, 0.001)
    assert batcher.seconds_per_token == 1e-4


def test_a_batch_that_waits_for_its_worker_is_waited_for_as_a_whole():
    batcher = make(pace=1e-3)
    for _ in range(2):
        add(batcher, 256)
        batch = batcher.take(0.0)
    batch.started = math.inf
    assert batcher.expected_wait(INTERACTIVE, 0.1) == pytest.approx(0.256 - 0.1 + 0.256)


class AnyOrder(RuleBasedStateMachine):
    """Jobs come, are tokenised, leave, run, are lost and are answered in any order."""

    def __init__(self):
        super().__init__()
        self.limits = Limits(batch_tokens=300, sequences=40, wait=2.0, memory=5000)
        self.batcher = Batcher(self.limits, 1e-3, 2)
        self.now = 0.0
        self.admitted, self.queued, self.done, self.ran, self.lost = [], [], [], {}, {}

    @rule(
        tokens=st.lists(st.integers(1, 512), min_size=1, max_size=8),
        size=st.integers(0, 3000),
        lane=st.sampled_from(LANES),
        allowed=st.one_of(st.just(math.inf), st.floats(0, 3)),
    )
    def arrive(self, tokens, size, lane, allowed):
        job = Job(len(tokens), sum(tokens) // 2, size, lane, self.now + allowed)
        job.real = tokens
        try:
            self.batcher.admit(job, self.now)
        except RefusedError:
            return
        self.admitted.append(job)

    @precondition(lambda self: self.admitted)
    @rule(pick=st.integers(0, 99))
    def tokenise(self, pick):
        job = self.admitted.pop(pick % len(self.admitted))
        self.batcher.queue(job, job.real)
        self.queued.append(job)

    @precondition(lambda self: self.queued)
    @rule(pick=st.integers(0, 99))
    def depart(self, pick):
        self.batcher.leave(self.queued[pick % len(self.queued)])

    @rule(seconds=st.floats(0, 0.5))
    def time_passes(self, seconds):
        self.now += seconds

    @precondition(lambda self: len(self.batcher.running) < 2)
    @rule()
    def take(self):
        budget = self.batcher.budget
        waiting = [job for job in self.queued if not job.gone and job.taken < job.count]
        batch = self.batcher.take(self.now)
        if batch.losses:
            ((job, number),) = batch.pieces
            assert self.lost.pop((id(job), number))
            self.ran[id(job), number] = job
            return
        assert batch.tokens <= budget or len(batch.pieces) == 1
        assert batch.tokens == sum(job.tokens[number] for job, number in batch.pieces)
        assert bool(batch.pieces) == bool(set(waiting) - set(batch.late))
        for lane in LANES:
            own = [job for job, _ in batch.pieces if job.lane == lane]
            oldest = [job for job in waiting if job.lane == lane and job not in batch.late]
            assert own[:1] == (oldest[:1] if own else [])
        for job, number in batch.pieces:
            assert (id(job), number) not in self.ran
            self.ran[id(job), number] = job

    @precondition(lambda self: self.batcher.running)
    @rule()
    def lose(self):
        batch = self.batcher.running[-1]
        for job in self.batcher.lose(batch):
            assert batch.losses == 2
            assert job.gone
        for job, number in batch.pieces:
            del self.ran[id(job), number]
            if not job.gone:
                self.lost[id(job), number] = True

    @precondition(lambda self: self.batcher.running)
    @rule(seconds=st.floats(0.001, 0.3))
    def finish(self, seconds):
        batch = self.batcher.running[0]
        self.done += self.batcher.finish(batch, seconds)

    @precondition(lambda self: self.done)
    @rule()
    def answer(self):
        self.batcher.release(self.done.pop())

    @invariant()
    def counts_are_true(self):
        live = [job for job in (*self.admitted, *self.queued) if not job.gone]
        assert self.batcher.sequences == sum(job.count - job.taken for job in live)
        for lane in LANES:
            assert self.batcher.waiting(lane) == sum(job.waiting for job in live if job.lane == lane)
        held = [job for job in (*self.admitted, *self.queued) if not job.released]
        assert self.batcher.bytes == sum(job.bytes for job in held) <= self.limits.memory

    def teardown(self):
        """Whatever happened, everything that is still wanted gets its answer."""
        for job in self.admitted:
            self.batcher.queue(job, job.real)
            self.queued.append(job)
        for job in self.queued:
            job.deadline = math.inf
        for _ in range(10_000):
            for batch in list(self.batcher.running):
                self.done += self.batcher.finish(batch, 0.01)
            if not self.batcher.take(self.now).pieces:
                break
        assert all(job.gone or job.finished == job.count for job in self.queued)
        assert self.batcher.sequences == 0
        assert {self.batcher.waiting(lane) for lane in LANES} == {0}


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
