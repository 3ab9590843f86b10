-- The cells with blocks of both graphs and eager, all arms with KV blocks of one size: setup, model, profile, facts (name, value, basis, how, n), the (prompt,
-- output) tokens of the requests of the first run, warnings. Step times come from graphs and eager alone; other arms' steps and
-- throughput are there to compare with. Facts of no arm in particular come from eager, then from graphs, which counts; model_shape is
-- KV-cache bytes a token.
-- Changes and break-evens against eager are those of the report, over the passes of blocks that have both; calm: a resolved change computed without
-- the host's stalls, where less than half of it is left on the log scale.
WITH times AS (
    SELECT *, (t_ns - lag(t_ns) OVER (PARTITION BY folder ORDER BY step)) / 1e6 AS ms FROM window_steps
), steps AS (
    SELECT folder, avg(ms) FILTER (unpadded_tokens = generated_tokens) AS step_ms, count(unpadded_tokens) AS steps
    FROM times GROUP BY folder
), arms AS (
    SELECT setup, model, profile, arm, count(*) AS n, n::DOUBLE AS runs,
           avg(num_gpu_blocks * block_tokens(kv_block_tokens)) AS kv_tokens, any_value(kv_block_tokens)::DOUBLE AS block_size, avg(step_ms) AS step_ms, avg(s.steps) AS steps,
           avg(output_tok_s) AS output_tok_s, avg(f.start_s) AS start_s, avg(estimated_graph_gib) AS graph_gib,
           avg(available_kv_gib * 2 ** 30 / r.kv_tokens) FILTER (num_gpu_blocks = num_gpu_blocks_natural) AS model_shape,
           any_value(num_prompts)::DOUBLE AS requests, any_value(input_tokens)::DOUBLE AS input_tokens,
           any_value(output_tokens)::DOUBLE AS output_tokens, any_value(range_ratio)::DOUBLE AS range_ratio,
           any_value(concurrency)::DOUBLE AS concurrency, any_value(r.max_model_len)::DOUBLE AS max_model_len,
           any_value(max_num_batched_tokens)::DOUBLE AS max_num_batched_tokens, avg(model_load_gib) AS weights_gib
    FROM runs r JOIN run_figures f USING (folder) LEFT JOIN steps s USING (folder) GROUP BY setup, model, profile, arm
), changes AS (
    SELECT e.*, arm_a AS arm, c.ratio.mean AS calm FROM effects e LEFT JOIN (FROM effects WHERE metric = 'capped_tok_s') c USING (setup, model, profile, arm_a, arm_b)
    WHERE e.metric = 'output_tok_s' AND arm_b = 'eager' AND e.ratio IS NOT NULL
), facts AS (
    SELECT *, name IN ('runs', 'kv_tokens', 'steps', 'output_tok_s', 'start_s') AS of_any_arm FROM (UNPIVOT arms ON COLUMNS(* EXCLUDE (setup, model, profile, arm, n)) INTO NAME name VALUE value)
    UNION ALL BY NAME
    SELECT setup, model, profile, arm, n, 'change' AS name, 100 * (ratio.mean - 1) AS value, true AS of_any_arm, verdict FROM changes
    UNION ALL BY NAME
    SELECT setup, model, profile, arm, n, 'calm' AS name, 100 * (calm - 1) AS value, true AS of_any_arm FROM changes WHERE verdict <> 'not resolved' AND abs(ln(calm)) < abs(ln(ratio.mean)) / 2
    UNION ALL BY NAME
    SELECT setup, model, profile, arm, n, 'break_even' AS name, requests AS value, true AS of_any_arm FROM break_evens
)
SELECT setup, model, profile,
       list((CASE WHEN of_any_arm OR name = 'step_ms' THEN name || '.' || arm ELSE name END, value,
             CASE name WHEN 'step_ms' THEN 'fitted' ELSE 'measured' END, CASE WHEN of_any_arm OR name = 'step_ms' THEN coalesce(verdict, '') ELSE arm END, n) ORDER BY arm),
       (SELECT list((q.input_tokens, q.output_tokens) ORDER BY request) FROM requests q WHERE folder = (
            SELECT min(folder) FROM runs r
            WHERE counted AND (r.setup, r.model, r.profile) = (facts.setup, facts.model, facts.profile))),
       (SELECT coalesce(list('Warnings of runs of ' || w.arm || ': ' || warnings ORDER BY w.arm), []) FROM cell_warnings w WHERE (w.setup, w.model, w.profile) = (facts.setup, facts.model, facts.profile))
FROM facts WHERE of_any_arm OR name = 'block_size' OR arm IN ('graphs', 'eager')
GROUP BY ALL HAVING count(*) FILTER (name = 'change' AND arm = 'graphs') = 1 AND count(DISTINCT value) FILTER (name = 'block_size') <= 1
ORDER BY setup, model, profile
