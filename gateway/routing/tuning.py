"""Every constant of the decision, with its reason. Pure; read by all modules of `gateway.routing`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """Constants of estimating, settling, probing and noticing a change. A rule's own thresholds go before them."""

    half_life: float = 1800.0
    """Seconds after which a statistic counts half."""
    margin: float = 0.005
    """An arm replaces the incumbent only if better by this share."""
    optimism: float = 0.7
    """Standard errors by which an arm without much data is taken to be better than it looks."""
    longer_costs: float = 0.25
    """Relative time by which a longer draft may look worse and still be tried first: it reveals all shorter ones."""
    paired_sd: float = 0.1
    """Per-request standard deviation of the difference between two draft lengths assumed before anything is known."""
    paired_requests: float = 4.0
    """How many requests that assumption weighs."""
    settle_requests: int = 5
    """Requests before a node may settle on a speculative arm."""
    settle_z: float = 1.28
    """Separation asked for before settling on a speculative arm, in standard errors: nine in ten are right then."""
    settle_plain_requests: int = 8
    """The same for plain, whose error hides its own evidence."""
    settle_plain_z: float = 1.64
    """Separation asked for before settling on plain, in standard errors."""
    settle_always: int = 60
    """Requests after which a node settles on whatever looks best."""
    switch_z: float = 2.0
    """One-sided bound for replacing a settled incumbent, in standard errors; plus one per earlier switch."""
    dwell: int = 20
    """Requests that a settled incumbent stays at least."""
    look_growth: float = 1.1
    """A settled node is looked at again when its requests have grown by this factor."""
    prior_sd: float = 0.35
    """Per-request standard deviation of relative time assumed before anything is known."""
    prior_sd_requests: float = 6.0
    """How many requests that assumption weighs."""
    task_sd: float = 0.3
    """One s.d. between tasks, as a share of relative time: how much other tasks say about this one."""
    optimistic_acceptance: float = 0.7
    """Acceptance per position assumed for an arm of which nothing is known."""
    probe_max: float = 0.1
    """Share of probes while an arm that the incumbent does not reveal may be better."""
    probe_min: float = 0.002
    """Share of probes at least."""
    probe_cost: float = 0.001
    """Relative time that probes of a settled node may cost in all: what is far off is tried more rarely."""
    pool_probe_z: float = 1.64
    pool_probe_min: float = 0.003
    """Where times are measured, the share of probes is a quarter of (z·se/Δ)², this much at least."""
    plain_first: float = 3.0
    """Measured plain requests before a pool's speculative arm is tried: without them nothing can be compared."""
    probe_cost_early: float = 0.001
    """What they may cost besides at first; a hundred requests on, half of it."""
    probe_fallen: float = 0.03
    """Share of probes right after a collapse, with the shortest draft; shrinks with the root of the requests since."""
    shift_s: float = 5.0
    """Seconds in which 63 % of a kind of request follows to the backend that has become the better one."""
    queue_margin: float = 0.05
    """Share of a request's expected time that another backend's queue or start must save before it counts."""
    queue_ramp_s: float = 4.0
    """Expected gain at which every request leaves a queue; below, a share in proportion. Load is seen a second late:
    whoever answers it faster makes the queues swing."""
    probe_z: float = 0.84
    """Standard errors of that "may be" for a longer draft of a settled node."""
    probe_ahead: float = 200.0
    """Requests that a kind of request is taken to have ahead of it at least when probes are weighed; else as many as
    were seen."""
    lend_requests: float = 100.0
    """What other temperatures and contexts of the same task may weigh together, in requests."""
    restart_requests: float = 20.0
    """What the statistics of a backend's earlier process starts (same model, version and draft) may weigh, in requests
    of each kind: enough to go on from there, little enough to be overruled within minutes."""
    loss_requests: int = 5
    """Requests of a method after which a clear loss counts as such."""
    loss_trials: float = 12.0
    """Rounds behind it: a few rounds of each request."""
    loss_z: float = 1.64
    """In flight: a method is a clear loss where even a request so many standard deviations above the task loses."""
    loss_bound_z: float = 3.0
    """Without in-flight control: standard errors by which an arm must be slower than plain,"""
    loss_margin: float = 0.05
    """and by this share besides. Near ties are left to settling and switching."""
    flight_requests: int = 5
    """Requests before a task's in-flight control may be taken off."""
    flight_probe: int = 12
    """Plain steps in flight after which a request drafts once more while that may pay; the engine lengthens it."""
    flight_rest: int = 512
    """The same once the task's account of such probes is closed."""
    flight_off_share: float = 0.03
    """Share of requests that still go out under in-flight control where the task is off."""
    account_requests: int = 8
    """Requests with probe episodes before the account may be closed."""
    account_z: float = 1.64
    """Standard errors of the account's upper bound."""
    account_sd: float = 4.0
    """Plain steps gained per request: standard deviation assumed beforehand, weighing 4 requests."""
    strength_start: float = 32.0
    """Prior strength in flight, in trials, before the spread between requests is known; it weighs 8 requests."""
    strength_max: float = 400.0
    optimistic_prior: float = 0.6
    """Acceptance per position in flight where nothing is known."""
    parent_trials: float = 4.0
    """What the other tasks' acceptance by position weighs in a task's own, in trials."""
