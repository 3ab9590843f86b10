-- title: What was measured
-- note: Blocks are repetitions, each run whole; the study has five. Graphs / eager: output tokens per second, paired by block, with its 95% interval. Beside: blocks in which another GPU of the host was at work for more than a tenth of a load window.
-- empty: No run counts yet.
WITH asked AS (
    SELECT setup, m.key AS model, p.profile FROM (SELECT DISTINCT setup FROM runs WHERE counted AND kind = 'run'), (SELECT m.key FROM campaign, json_each(configuration -> '$.models') m) m, (VALUES ('sporadic'), ('sustained')) p(profile)
    WHERE EXISTS (SELECT 1 FROM campaign, json_each(configuration -> '$.profiles') c WHERE c.key = p.profile)
), cells AS (
    SELECT setup, model, profile, count(DISTINCT pair_id) AS blocks, list(DISTINCT arm ORDER BY arm) AS arms, count(DISTINCT pair_id) FILTER (share > 0.1) AS beside
    FROM window_shares GROUP BY ALL
)
SELECT setup, model || ' ' || profile AS cell, coalesce(blocks, 0) AS blocks, coalesce(beside, 0) AS beside, coalesce(array_to_string(arms, ', '), 'none') AS arms,
       CASE WHEN e.n IS NULL THEN 'not measured' ELSE estimate_text(f3(e.ratio)) END AS graphs_over_eager,
       CASE WHEN e.n IS NULL THEN 'not measured' WHEN e.n = 1 THEN 'one block: no interval' WHEN e.n = 2 THEN 'not resolved: two blocks' WHEN e.verdict = 'not resolved' THEN 'not resolved'
            ELSE 'graphs ' || e.verdict END AS verdict
FROM asked FULL JOIN cells USING (setup, model, profile)
LEFT JOIN (SELECT * FROM effects WHERE metric = 'output_tok_s' AND arm_a = 'graphs' AND arm_b = 'eager') e USING (setup, model, profile)
ORDER BY setup, model, profile;
