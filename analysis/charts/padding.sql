-- title: Padding of FULL steps while requests wait: share of all runs' steps by rows added to reach a captured size
-- kind: bars
-- unit: % of steps
WITH s AS (
    SELECT setup, model, profile, arm, folder, least(padded_tokens - unpadded_tokens, 8) AS added FROM waiting_steps WHERE runtime_mode = 'FULL' AND padded_tokens IS NOT NULL
), bins AS (
    SELECT setup, model, profile, arm, CASE WHEN added = 0 THEN 0 WHEN added <= 2 THEN 1 WHEN added <= 4 THEN 2 WHEN added <= 7 THEN 3 ELSE 4 END AS bin, count(*) AS steps FROM s GROUP BY ALL
)
SELECT setup, model, profile, arm, ['none', '1 or 2', '3 or 4', '5 to 7', '8 or more'][bin + 1] AS part,
       100 * (sum(steps) OVER w - steps) / sum(steps) OVER a AS begins, 100 * sum(steps) OVER w / sum(steps) OVER a AS ends, n
FROM bins JOIN (SELECT setup, model, profile, arm, count(DISTINCT folder) AS n FROM s GROUP BY ALL) USING (setup, model, profile, arm)
WINDOW w AS (PARTITION BY setup, model, profile, arm ORDER BY bin), a AS (PARTITION BY setup, model, profile, arm)
ORDER BY setup, model, profile, arm, bin;
