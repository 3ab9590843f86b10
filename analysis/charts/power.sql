-- title: Mean power over the window: every run, mean, 95% interval where n > 1; dashed: the GPU at rest, where it was measured
-- kind: dots
-- unit: W
-- axis: common
SELECT setup, model, profile, arm, points, [] AS blocks, estimate.mean, estimate.lo, estimate.hi, [] AS hollow, at_rest_w AS reference
FROM estimates LEFT JOIN (
    SELECT setup, avg(watts) AS at_rest_w FROM (SELECT DISTINCT setup, sitting_id FROM runs WHERE counted AND kind = 'run') JOIN (
        SELECT sitting_id, coalesce(any_value(value) FILTER (key = 'gpu.idle.counter_mw'), any_value(value) FILTER (key = 'gpu.idle.sensor_mw'))::DOUBLE / 1000 AS watts
        FROM sitting_facts GROUP BY sitting_id
    ) USING (sitting_id) GROUP BY setup
) USING (setup) WHERE metric = 'mean_power_w' ORDER BY setup, model, profile, arm;
