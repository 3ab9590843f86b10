-- title: Throughput by cell and arm: every run, its block's runs joined; mean and 95% interval
-- kind: dots
-- unit: tokens/s
SELECT setup, model, profile, arm, points, blocks, estimate.mean, estimate.lo, estimate.hi, [] AS hollow, NULL AS reference
FROM estimates JOIN (
    SELECT setup, model, profile, arm, metric, list(pair_id ORDER BY repetition, pass_number, pair_id) AS blocks FROM run_values GROUP BY ALL
) USING (setup, model, profile, arm, metric)
WHERE metric = 'output_tok_s' ORDER BY setup, model, profile, arm;
