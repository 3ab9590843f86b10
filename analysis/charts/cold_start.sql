-- title: Start, exec to /health: every warm start, mean, 95% interval where n > 1; hollow: first starts, cold cache
-- kind: dots
-- unit: s
-- axis: common
SELECT setup, model, NULL AS profile, arm, coalesce(points, []), [] AS blocks, estimate.mean, estimate.lo, estimate.hi, coalesce(cold, []), NULL AS reference
FROM (FROM estimates WHERE metric = 'start_s' AND profile = '(all)')
FULL JOIN (
    SELECT setup, model, arm, list(start_s ORDER BY folder) AS cold FROM starts WHERE (kind = 'prime' OR NOT warm) AND start_s IS NOT NULL GROUP BY ALL
) USING (setup, model, arm) ORDER BY setup, model, arm;
