-- title: Start, exec to /health: warm cache (filled), and first starts or cold cache (hollow)
-- kind: dots
-- unit: s
SELECT setup, model, NULL AS profile, arm, coalesce(points, []), [] AS blocks, estimate.mean, estimate.lo, estimate.hi, coalesce(cold, []), NULL AS reference
FROM (FROM estimates WHERE metric = 'start_s' AND profile = '(all)')
FULL JOIN (
    SELECT setup, model, arm, list(start_s ORDER BY folder) AS cold FROM starts WHERE (kind = 'prime' OR NOT warm) AND start_s IS NOT NULL GROUP BY ALL
) USING (setup, model, arm) ORDER BY setup, model, arm;
