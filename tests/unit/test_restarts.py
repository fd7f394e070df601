"""Back-off of a supervised process."""

from baton.restarts import RestartConfig, RestartPolicy


def test_delays_double_up_to_the_bound_and_a_crash_loop_is_said_once() -> None:
    policy = RestartPolicy(
        RestartConfig(first_delay_us=100, delay_us_max=1_000, healthy_us=10_000, crash_loop_deaths=3)
    )
    policy.started(0)
    restarts = [policy.died(10) for _ in range(6)]
    assert [r.at_us - 10 for r in restarts] == [100, 200, 400, 800, 1_000, 1_000]
    assert [r.crash_loop for r in restarts] == [False, False, True, False, False, False]


def test_a_healthy_life_clears_the_record() -> None:
    policy = RestartPolicy(RestartConfig(first_delay_us=100, healthy_us=10_000))
    policy.started(0)
    policy.died(1)
    policy.started(100)
    assert policy.died(10_100).deaths == 1
