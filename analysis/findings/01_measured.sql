-- title: What was measured
-- note: Blocks are repetitions, each run whole with all arms of its plan; the study has five. One that was run again, with more arms, is a further block of the same prompts, and the ratio is also given without the earlier one. Load: requests in all, how many at once at most, tokens in and out of each (varied: drawn within so much of these). Machines: virtual machines (boots), each with GPUs of its own; the blocks of one are more alike than those of several (table One value a machine). Graphs / eager: output tokens per second, paired by block, with its 95% interval. Beside: blocks in which another GPU of the host was at work for more than a tenth of a load window.
-- empty: No run counts yet.
WITH asked AS (
    SELECT setup, m.key AS model, p.profile FROM (SELECT DISTINCT setup FROM runs WHERE counted AND kind = 'run'), (SELECT m.key FROM campaign, json_each(configuration -> '$.models') m) m, (VALUES ('sporadic'), ('sustained')) p(profile)
    WHERE EXISTS (SELECT 1 FROM campaign, json_each(configuration -> '$.profiles') c WHERE c.key = p.profile)
), cells AS (
    SELECT setup, model, profile, count(DISTINCT pair_id) AS blocks, count(DISTINCT machine_id) AS machines, list(DISTINCT arm ORDER BY arm) AS arms, count(DISTINCT pair_id) FILTER (share > 0.1) AS beside
    FROM window_shares JOIN (SELECT folder, machine_id FROM runs) USING (folder) GROUP BY ALL
), once AS (  -- graphs over eager with the last pass of each repetition alone, where one was run more than once
    SELECT setup, model, profile, exp_of(mean95(CASE WHEN last THEN ln(g.value / e.value) END)) AS ratio
    FROM (SELECT *, pass_number = max(pass_number) OVER (PARTITION BY setup, model, profile, repetition) AS last FROM run_values WHERE metric = 'output_tok_s' AND arm = 'graphs') g
    JOIN (FROM run_values WHERE metric = 'output_tok_s' AND arm = 'eager') e USING (setup, model, profile, pair_id) GROUP BY ALL HAVING NOT bool_and(last)
), loads AS (
    SELECT profile, any_value(num_prompts || ' requests, ' || concurrency || ' at once, ' || input_tokens || ' in, ' || output_tokens || ' out' || CASE WHEN range_ratio > 0 THEN ', varied by ' || (100 * range_ratio)::BIGINT || '%' ELSE '' END) AS load
    FROM runs WHERE kind = 'run' GROUP BY profile
)
SELECT setup, model || ' ' || profile AS cell, coalesce(load, 'none ran') AS load, coalesce(blocks, 0) AS blocks, coalesce(machines, 0) AS machines, coalesce(beside, 0) AS beside, coalesce(array_to_string(arms, ', '), 'none') AS arms,
       CASE WHEN e.n IS NULL THEN 'not measured' ELSE estimate_text(f3(e.ratio)) || CASE WHEN once.ratio IS NOT NULL THEN '; each repetition once: ' || estimate_text(f3(once.ratio)) ELSE '' END END AS graphs_over_eager,
       CASE WHEN e.n IS NULL THEN 'not measured' WHEN e.n = 1 THEN 'one block: no interval' WHEN e.n = 2 THEN 'not resolved: two blocks' WHEN e.verdict = 'not resolved' THEN 'not resolved'
            ELSE 'graphs ' || e.verdict END AS verdict
FROM asked FULL JOIN cells USING (setup, model, profile) LEFT JOIN loads USING (profile)
LEFT JOIN (SELECT * FROM effects WHERE metric = 'output_tok_s' AND arm_a = 'graphs' AND arm_b = 'eager') e USING (setup, model, profile)
LEFT JOIN once USING (setup, model, profile)
ORDER BY setup, model, profile;
