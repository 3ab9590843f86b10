-- title: Break-even: time saved against eager, less the longer start, after a number of requests
-- kind: lines
-- x: requests
-- y: s saved
SELECT setup, model, profile, arm, x, x * saving.mean - extra.mean AS y
FROM (SELECT *, unnest([0, 2 * coalesce(max(requests) FILTER (isfinite(requests)) OVER (PARTITION BY setup, model, profile), 500)]) AS x FROM break_evens)
WHERE saving.mean IS NOT NULL ORDER BY setup, model, profile, arm, x;
