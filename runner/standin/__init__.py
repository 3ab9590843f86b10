"""A stand-in for the engine: `vllm serve` and `vllm bench serve` on the scheduling model, on scaled time.

For tests and the demonstration, never chosen silently: the log says SIMULATED. Environment:

- CAMPAIGN_STANDIN_SPEED: how many times faster than a card (default 1); every duration that it reports, in
  log, metrics and results, is of this faster clock.
- CAMPAIGN_STANDIN_FAULT: one of `settings.FAULTS`.
- CAMPAIGN_STEPS_FILE: where the step trace goes.
"""
