-- title: Engine steps against KV blocks: measured and by the scheduling model
-- note: The model (analysis/scheduling.py) is given the pool, the lengths of the requests and the concurrency; no time and no measured step enters it. Steps: those while requests wait. Requests of equal length move in lockstep, so steps fall in jumps as the pool grows: fewer from is the least pool of the model's curve with over 2% fewer steps. Where the pool is not the limit, steps depend on when requests arrive, for which the model takes a fixed lag of one step: no agreement is expected there.
-- empty: No request ever waited, or no step trace.
WITH measured AS (
    SELECT setup, model, profile, arm, num_gpu_blocks AS kv_blocks, block_tokens(kv_block_tokens) AS block_tokens, mean95(steps) AS steps, mean95(mean_running) AS running, mean95(preempted) AS preempted
    FROM run_figures JOIN runs USING (folder) WHERE steps IS NOT NULL GROUP BY ALL
)
SELECT setup, model, profile, arm, kv_blocks, f0(d.steps) AS steps_while_requests_wait, m.steps AS steps_while_requests_wait_by_the_model, d2(100 * (m.steps / d.steps.mean - 1)) AS model_less_measured_pct,
       f1(d.running) AS mean_running, d1(m.mean_running) AS mean_running_by_the_model, f1(d.preempted) AS preempted, m.preempted AS preempted_by_the_model,
       coalesce((SELECT min(c.kv_blocks)::VARCHAR FROM model_steps c WHERE (c.setup, c.model, c.profile, c.block_tokens) = (d.setup, d.model, d.profile, d.block_tokens) AND c.kv_blocks > d.kv_blocks AND c.steps < 0.98 * m.steps), 'none on the curve') AS fewer_steps_from_blocks
FROM measured d LEFT JOIN model_steps m USING (setup, model, profile, kv_blocks, block_tokens) ORDER BY setup, model, profile, kv_blocks, arm;
