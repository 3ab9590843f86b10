-- title: What a warm start consists of: means over n starts
-- kind: bars
-- unit: s
WITH parts(place, metric, part) AS (
    VALUES (1, 'outside_s', 'outside'), (2, 'load_s', 'load'), (3, 'compile_s', 'torch.compile'), (4, 'capture_s', 'capture'), (5, 'init_rest_s', 'rest of engine init')
)
SELECT setup, model, NULL AS profile, arm, part, coalesce(sum(estimate.mean) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS begins, sum(estimate.mean) OVER w AS ends, estimate.n
FROM estimates JOIN parts USING (metric) WHERE profile = '(all)' WINDOW w AS (PARTITION BY setup, model, arm ORDER BY place)
QUALIFY count(estimate.mean) OVER (PARTITION BY setup, model, arm) = 5 ORDER BY setup, model, arm, place;
