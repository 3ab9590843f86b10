-- title: Padding by runtime mode
-- part: Padding and preemption
-- note: Sums over the steps of all counted runs, those in the window and, of them, those while requests wait. A step replayed from a FULL or PIECEWISE graph is padded up to a captured size; NONE runs as it is. Padding: padded less unpadded tokens, over padded tokens.
-- chart: padding
-- empty: No step trace.
WITH spans AS (SELECT 'in the window' AS span, * FROM window_steps UNION ALL BY NAME SELECT 'while requests wait' AS span, * FROM waiting_steps)
SELECT setup, model, profile, arm, span, runtime_mode, runs, steps,
       d1(100 * steps / sum(steps) OVER (PARTITION BY setup, model, profile, arm, span)) AS share_of_steps_pct,
       unpadded AS unpadded_tokens, padded AS padded_tokens, d1(100 * (padded - unpadded) / nullif(padded, 0)) AS padding_pct
FROM (
    SELECT setup, model, profile, arm, span, coalesce(runtime_mode, 'not reported') AS runtime_mode, count(DISTINCT folder) AS runs, count(*) AS steps,
           sum(unpadded_tokens) AS unpadded, sum(padded_tokens) AS padded
    FROM spans WHERE unpadded_tokens IS NOT NULL GROUP BY ALL
) ORDER BY setup, model, profile, arm, span, runtime_mode;
