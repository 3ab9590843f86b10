-- title: Against a plain loop and vLLM's own sweep
-- note: The same runs in the same boot of the same machine, on the same GPU: server and client flags, seed and KV blocks are those of the same plan, but for the instruments and the client's check that the server is ready. Plain: vllm serve, /health asked every 2 s, then vllm bench serve, then SIGTERM, one after the other, without instruments; sweep: vllm bench sweep serve, whose own start counts to its first run. Wall seconds a run, from its begin to the next one's; whole block: all its arms, one after the other, as one would run them; n counts blocks. Saved: GPU time, as the GPU is held all along; at least 10% where the whole interval is, with three blocks or more. Ready: from the server's start until it answers, ours and theirs. The first start after a boot finds files in no memory yet and takes seconds longer, whichever side it falls on; first starts with a cold compile cache (primes) are in neither. Own: ours less server start, probe, warm-up and window (goal: 3 s). The plain loop's client: its start, prompts, warm-up and end, without the window, while the server waits.
-- empty: Not measured: needs tools/gpu-host/plain_loop.py in the sitting of the campaign's own runs.
WITH ours AS (
    SELECT folder, setup, simulated, machine_id, gpu_uuid, model, arm, profile, repetition, own_s, start_s,
           CASE WHEN lead(run_begin_ns) OVER w - run_end_ns < 5e9 THEN seconds(run_begin_ns, lead(run_begin_ns) OVER w) ELSE total_s END AS wall_s
    FROM runs JOIN own_times USING (folder) WHERE counted WINDOW w AS (PARTITION BY sitting_id ORDER BY run_begin_ns)
), pairs AS (
    SELECT o.*, way, seconds(begin_ns, end_ns) AS theirs_s, seconds(begin_ns, ready_ns) AS their_ready_s,
           seconds(client_begin_ns, client_end_ns) - bench_duration_s AS client_s
    FROM ours o JOIN loop_runs l USING (simulated, machine_id, model, arm, profile, repetition) WHERE l.gpu_uuid IS NOT DISTINCT FROM o.gpu_uuid AND bench_failed = 0
), rows_of AS (
    SELECT setup, way, model, profile, arm, repetition, wall_s, theirs_s, start_s, their_ready_s, client_s, own_s FROM pairs
    UNION ALL SELECT setup, way, model, profile, 'whole block', repetition, sum(wall_s), sum(theirs_s), NULL, NULL, NULL, max(own_s) FROM pairs GROUP BY ALL
), means AS (
    SELECT setup, way, model, profile, arm, mean95(wall_s) AS ours_s, mean95(theirs_s) AS theirs_s, mean95(ln(wall_s / theirs_s)) AS l, avg(start_s) AS ready_s, avg(their_ready_s) AS their_ready_s,
           avg(client_s) AS client_s, max(own_s) AS own_s
    FROM rows_of GROUP BY ALL
), ratios AS (
    SELECT *, exp_of(l) AS ratio,
           struct_pack(mean := 100 * (1 - exp(l.mean)), lo := 100 * (1 - exp(l.hi)), hi := 100 * (1 - exp(l.lo)), n := l.n) AS saved
    FROM means
)
SELECT setup, way, model, profile, arm, f1(ours_s) AS ours_s, f1(theirs_s) AS theirs_s, f3(ratio) AS ratio, f1(saved) AS saved_pct,
       CASE WHEN saved.n >= 3 AND saved.lo >= 10 THEN 'at least 10%' WHEN saved.n >= 3 AND saved.hi < 10 THEN 'less than 10%' ELSE 'not resolved against 10%' END AS saved_is,
       d1(ready_s) AS ready_s, d1(their_ready_s) AS their_ready_s, d2(own_s) AS greatest_own_s, CASE WHEN own_s <= 3 THEN 'at most 3 s' ELSE 'more than 3 s' END AS own_is,
       d1(client_s) AS their_client_s
FROM ratios ORDER BY ALL;
